"""Images on a node: each is fetched once for all replicas of a start that the node has."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

from lockstep.containers.commands import pull
from lockstep.containers.engine import ContainerEngine, EngineAnswer
from lockstep.containers.references import check_reference, is_pinned, registry_of
from lockstep.errors import ContainerEngineError, ImageError, LockstepError

PULL_TIMEOUT_S: Final = 3600.0
BUILT_HERE: Final = "localhost/"
"""How podman calls images that were built on the machine and have no registry."""

_POLL_S: Final = 0.1

_USERS: Final = re.compile(
    "|".join(
        (
            *("manifest unknown", "name unknown", "not found", "invalid reference", "did not resolve", "unauthorized"),
            *("denied", "authentication required", "does not exist", "no matching manifest", "no image found in"),
            *("server gave http response to https client", "repository name must be"),
        )
    )
)
"""What registries and engines say of an image that another try cannot bring."""

_MACHINES: Final = re.compile("no such host|refused|time[d ]?-?out|reset by peer|network is unreachable|no space left")
"""What they say of a registry that cannot be reached; it counts more, since it may quote the other."""


@final
@dataclass(frozen=True, kw_only=True)
class _Fetched:
    """What the last fetch of an image on this node was.

    Attributes:
        start: the gang's start that it was for.
        image_id: what was fetched.
    """

    start: str
    image_id: str


def ensure_image(
    engine: ContainerEngine,
    image: str,
    *,
    start: str,
    folder: Path,
    cancelled: threading.Event,
    say: Callable[[str], object],
) -> str:
    """Sees to it that an image is on this node; blocks until it is.

    One that is named by its digest and is there is not asked for again. A tag may have come to mean another image, so
    its registry is asked once for each start of a gang; where it cannot be reached, what is there is taken. A name
    without a registry means what is there, if anything is.

    Args:
        engine: the node's engine.
        image: the image's name.
        start: names the start of the gang, the same for all its replicas on the node.
        folder: where the node keeps locks and what was fetched.
        cancelled: ends the wait when set.
        say: is told what is done, a line each.

    Returns:
        The image's id.

    Raises:
        ImageError: there is no such image, or it may not be had.
        ContainerEngineError: the registry or the engine does not answer; `cancelled` was set.
    """
    check_reference(image, what="imageUri")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem = folder / hashlib.sha256(image.encode()).hexdigest()[:32]
    with _alone(stem.with_suffix(".lock"), cancelled=cancelled):
        present = image_id(engine, image)
        record = stem.with_suffix(".json")
        is_settled = is_pinned(image) or registry_of(image) is None
        if present is not None and (is_settled or _read(record) == _Fetched(start=start, image_id=present)):
            return present
        if present is None and image.startswith(BUILT_HERE):
            raise ImageError(
                f"image {image} is not on this node, and its name has no registry to fetch it from",
                action="push it to a registry, and name it by that, or build it on the node",
            )
        fetched = _fetch(engine, image, present=present, cancelled=cancelled, say=say)
        partial = record.with_suffix(".partial")
        partial.write_text(json.dumps({"start": start, "imageId": fetched}))
        partial.replace(record)
        return fetched


def image_id(engine: ContainerEngine, image: str) -> str | None:
    """Returns the id of an image that is on this machine; None for one that is not.

    Raises:
        ContainerEngineError: the engine does not answer.
    """
    answer = engine.call(["image", "inspect", "--format", "{{.Id}}", image])
    return None if answer.code else answer.output.strip()


def failure_of(engine: ContainerEngine, image: str, *, answer: EngineAnswer) -> LockstepError:
    """Says why an image could not be fetched or put away: whether by its name, or by what is between here and there."""
    reason = answer.last_line.removeprefix("Error: ").removeprefix("Error response from daemon: ")
    text = reason.lower()
    if _USERS.search(text) and not _MACHINES.search(text):
        return ImageError(
            f"image {image}: {engine.kind} says: {reason}",
            action=f"check its name; a registry that asks who you are needs `{engine.kind} login` on each node",
        )
    return ContainerEngineError(f"image {image}: its registry cannot be reached; {engine.kind} says: {reason}")


def _fetch(
    engine: ContainerEngine,
    image: str,
    *,
    present: str | None,
    cancelled: threading.Event,
    say: Callable[[str], object],
) -> str:
    say(f"fetching image {image} with {engine.describe()}")
    begun = time.monotonic()
    answer = engine.call(pull(engine, image), timeout_s=PULL_TIMEOUT_S, cancelled=cancelled)
    if answer.code:
        failure = failure_of(engine, image, answer=answer)
        if present is None:
            raise failure
        say(f"{failure}; the one that is on this node is taken, {present}")
        return present
    found = image_id(engine, image)
    if found is None:
        raise ContainerEngineError(f"image {image} is not there after {engine.kind} fetched it")
    say(f"fetched image {image} in {time.monotonic() - begun:.1f} s: {found}")
    return found


def _read(record: Path) -> _Fetched | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # nothing yet, or not to be believed
        document = cast("dict[str, Any]", json.loads(record.read_text()))
        return _Fetched(start=str(document["start"]), image_id=str(document["imageId"]))
    return None


@contextlib.contextmanager
def _alone(path: Path, *, cancelled: threading.Event) -> Iterator[None]:
    """Keeps other runners of this node from fetching the same image meanwhile; who dies lets go."""
    with path.open("a") as file:
        os.set_inheritable(file.fileno(), False)
        while True:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if cancelled.wait(_POLL_S):
                    raise ContainerEngineError("the wait for an image was cancelled") from None
        yield
