"""Pulls images to a node: each image once per gang attempt, for all its replicas on the node."""

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
"""The prefix that podman gives to images that were built on the machine and have no registry."""

_POLL_S: Final = 0.1

_PERMANENT_ERRORS: Final = re.compile(
    "|".join(
        (
            *("manifest unknown", "name unknown", "not found", "invalid reference", "did not resolve", "unauthorized"),
            *("denied", "authentication required", "does not exist", "no matching manifest", "no image found in"),
            *("server gave http response to https client", "repository name must be"),
        )
    )
)
"""Messages of registries and engines about errors that a retry cannot fix."""

_UNREACHABLE_ERRORS: Final = re.compile(
    "no such host|refused|time[d ]?-?out|reset by peer|network is unreachable|no space left"
)
"""Messages about a registry that cannot be reached. They take precedence, because they may quote the others."""


@final
@dataclass(frozen=True, kw_only=True)
class _Fetched:
    """The record of the last pull of an image on this node.

    Attributes:
        start: the gang attempt for which the image was pulled.
        image_id: the id of the pulled image.
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
    """Ensures that an image is on this node. Blocks until it is.

    An image that is named by its digest is not pulled again if it is present. A tag may refer to a new image, so its
    registry is asked once for each attempt of a gang. If the registry cannot be reached, the present image is used. A
    name without a registry means the present image, if there is one.

    Args:
        engine: the container engine of the node.
        image: the name of the image.
        start: an identifier of the gang attempt, the same for all its replicas on the node.
        folder: the folder in which the node keeps locks and the records of pulls.
        cancelled: ends the wait when set.
        say: called with each progress message, one line each.

    Returns:
        The id of the image.

    Raises:
        ImageError: there is no such image, or access to it is denied.
        ContainerEngineError: the registry or the engine does not answer, or ``cancelled`` was set.
    """
    check_reference(image, what="imageUri")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem = folder / hashlib.sha256(image.encode()).hexdigest()[:32]
    with _lock_image(stem.with_suffix(".lock"), cancelled=cancelled):
        present = image_id(engine, image)
        record = stem.with_suffix(".json")
        is_settled = is_pinned(image) or registry_of(image) is None
        if present is not None and (is_settled or _read(record) == _Fetched(start=start, image_id=present)):
            return present
        if present is None and image.startswith(BUILT_HERE):
            raise ImageError(
                f"image {image} is not on this node, and its name has no registry to fetch it from",
                action="push it to a registry and use that name, or build it on the node",
            )
        fetched = _fetch(engine, image, present=present, cancelled=cancelled, say=say)
        partial = record.with_suffix(".partial")
        partial.write_text(json.dumps({"start": start, "imageId": fetched}))
        partial.replace(record)
        return fetched


def image_id(engine: ContainerEngine, image: str) -> str | None:
    """Returns the id of an image on this machine; None if the image is not here.

    Raises:
        ContainerEngineError: the engine does not answer.
    """
    answer = engine.call(["image", "inspect", "--format", "{{.Id}}", image])
    return None if answer.code else answer.output.strip()


def pull_error(engine: ContainerEngine, image: str, *, answer: EngineAnswer) -> LockstepError:
    """Returns the error of a failed pull or push: ImageError if a retry cannot help, else ContainerEngineError."""
    reason = answer.last_line.removeprefix("Error: ").removeprefix("Error response from daemon: ")
    text = reason.lower()
    if _PERMANENT_ERRORS.search(text) and not _UNREACHABLE_ERRORS.search(text):
        return ImageError(
            f"image {image}: {engine.kind} says: {reason}",
            action=f"check its name; for a private registry, run `{engine.kind} login` on each node",
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
        failure = pull_error(engine, image, answer=answer)
        if present is None:
            raise failure
        say(f"{failure}; using the image that is already on this node, {present}")
        return present
    found = image_id(engine, image)
    if found is None:
        raise ContainerEngineError(f"image {image} is not there after {engine.kind} fetched it")
    say(f"fetched image {image} in {time.monotonic() - begun:.1f} s: {found}")
    return found


def _read(record: Path) -> _Fetched | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # no record, or a damaged one
        document = cast("dict[str, Any]", json.loads(record.read_text()))
        return _Fetched(start=str(document["start"]), image_id=str(document["imageId"]))
    return None


@contextlib.contextmanager
def _lock_image(path: Path, *, cancelled: threading.Event) -> Iterator[None]:
    """Locks an image against pulls by other runners of this node. The lock of a dead process is released."""
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
