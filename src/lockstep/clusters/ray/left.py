"""What replicas could not say, on its way from their nodes to the service: segments that a bucket has refused.

Once a gang is over its nodes may go, so their segments go to the node of its supervisor, which stays beside the head;
and from there to the service, where that is another machine, which carries them to the bucket once it takes them. Both
ways are the same: a segment is written whole where it goes before it is removed where it was, and keeps its name, so
that one which is brought twice is there once.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import math
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, final

import ray
from typing_extensions import override

from lockstep.errors import CorruptDataError
from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.spools import LOG_FOLDER, METRICS_FOLDER, SEGMENT_NAME, clear_spool, keep_segment, segments_of

LOGGER: Final = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 15.0
MARKER: Final = ".here-"


class AbstractLeft(abc.ABC):
    """A node's disk, as far as replicas have left segments on it. All paths are of that node.

    What another node's disk refuses is raised as the OSError that it was there.
    """

    @abc.abstractmethod
    def left(self, spool: str) -> list[str]:
        """Returns the segments in a replica's spool folder, by their paths in it: ``log/000000000000.jsonl``."""

    @abc.abstractmethod
    def sees(self, path: str) -> bool:
        """Whether there is such a file."""

    @abc.abstractmethod
    def read_left(self, spool: str, name: str) -> bytes:
        """Returns a segment's content.

        Raises:
            FileNotFoundError: somebody else has carried it.
        """

    @abc.abstractmethod
    def drop_left(self, spool: str, name: str) -> None:
        """Removes a segment that is elsewhere now, and the folder with the last one. Idempotent."""


class AbstractLeftHere(AbstractLeft):
    """The disk of the node where it is called: what an actor extends that lets others have its node's segments."""

    @override
    def left(self, spool: str) -> list[str]:
        return segments_of(Path(spool))

    @override
    def sees(self, path: str) -> bool:
        return Path(path).exists()

    @override
    def read_left(self, spool: str, name: str) -> bytes:
        return Path(spool, name).read_bytes()

    @override
    def drop_left(self, spool: str, name: str) -> None:
        Path(spool, name).unlink(missing_ok=True)
        clear_spool(Path(spool))


@final
class LeftThere(AbstractLeft):
    """The disk of an actor's node.

    Args:
        actor: the handle of an actor that extends `AbstractLeftHere`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    @override
    def left(self, spool: str) -> list[str]:
        return self._get(self._actor.left.remote(spool))

    @override
    def sees(self, path: str) -> bool:
        return self._get(self._actor.sees.remote(path))

    @override
    def read_left(self, spool: str, name: str) -> bytes:
        return self._get(self._actor.read_left.remote(spool, name))

    @override
    def drop_left(self, spool: str, name: str) -> None:
        self._get(self._actor.drop_left.remote(spool, name))

    @staticmethod
    def _get(call: Any) -> Any:
        return ray.get(call, timeout=CALL_TIMEOUT_S)


def fetch_left(source: AbstractLeft, *, order: ReplicaOrder, at_most_bytes: float = math.inf) -> int:
    """Brings what a replica has left from a node's disk to this one, to its spool folder. Blocks.

    Args:
        source: that node's disk, which may be this one.
        order: the replica; its segments are put beside the URLs that it names.
        at_most_bytes: once it has brought so much, it leaves the rest for another call.

    Returns:
        How many bytes it has brought; none where nothing was left there, or was here already.

    Raises:
        OSError: this disk does not take a segment, which stays where it is.
        RayError: the other node does not answer, or its disk fails: such an error may be an OSError too.
        CorruptDataError: what it says is left is no segment.
    """
    names = source.left(order.spool)
    if not names or _is_same_disk(source, spool=Path(order.spool)):
        return 0
    num_bytes = 0
    for name in names:
        if num_bytes >= at_most_bytes:
            break
        num_bytes += _bring_one(source, name, order=order)
    return num_bytes


def _bring_one(source: AbstractLeft, name: str, *, order: ReplicaOrder) -> int:
    kind, _, segment = name.partition("/")
    url = {LOG_FOLDER: order.log_url, METRICS_FOLDER: order.metrics_url}.get(kind)
    if url is None or not SEGMENT_NAME.fullmatch(segment):
        raise CorruptDataError(f"what {order.name} has left is no segment: {name!r}")
    try:
        data = source.read_left(order.spool, name)
    except FileNotFoundError:
        return 0
    keep_segment(Path(order.spool, kind), url=url, key=segment, data=data)
    source.drop_left(order.spool, name)
    return len(data)


def _is_same_disk(source: AbstractLeft, *, spool: Path) -> bool:
    """Whether the other node sees what this process writes: what it has is here already."""
    marker = spool / f"{MARKER}{uuid.uuid4().hex}"
    spool.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        marker.touch(mode=0o600)
        return source.sees(str(marker))
    finally:
        marker.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is something in it
            spool.rmdir()
            spool.parent.rmdir()


def any_left(orders: Iterable[ReplicaOrder]) -> bool:
    """Whether a segment of one of these replicas is on this process's disk; what cannot be looked at is not there."""
    try:
        return any(segments_of(Path(order.spool)) for order in orders)
    except OSError as error:  # it is asked where a gang ends, which has to be told whatever the disk does
        LOGGER.warning("what replicas have left cannot be looked at: %s", error)
        return False
