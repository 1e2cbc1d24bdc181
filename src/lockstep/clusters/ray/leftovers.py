"""Copies leftover segments, which the bucket has refused, from the replicas' nodes to the service.

When a gang has ended, its nodes may be removed. So their segments are first copied to the supervisor's node, which is
the head's node, and from there to the service if it is on another machine. The service uploads them once the bucket
accepts them. Both copies work in the same way: a segment is written completely at its destination before it is removed
at its source, and keeps its name, so a segment that is copied twice exists once.
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


class AbstractLeftovers(abc.ABC):
    """Access to the segments that replicas have left on a node's disk. All paths are paths on that node.

    An OSError on another node is raised here as an OSError too.
    """

    @abc.abstractmethod
    def list_segments(self, spool: str) -> list[str]:
        """Returns the segments in a replica's spool folder, as paths relative to it: ``log/000000000000.jsonl``."""

    @abc.abstractmethod
    def has_file(self, path: str) -> bool:
        """Returns whether the node has such a file."""

    @abc.abstractmethod
    def read_segment(self, spool: str, name: str) -> bytes:
        """Returns a segment's content.

        Raises:
            FileNotFoundError: another process has delivered and removed the segment.
        """

    @abc.abstractmethod
    def remove_segment(self, spool: str, name: str) -> None:
        """Removes a segment that has been copied, and with the last segment its folder. Idempotent."""


class AbstractLocalLeftovers(AbstractLeftovers):
    """The segments on the disk of this process's node. Actors extend this class to offer their node's segments."""

    @override
    def list_segments(self, spool: str) -> list[str]:
        return segments_of(Path(spool))

    @override
    def has_file(self, path: str) -> bool:
        return Path(path).exists()

    @override
    def read_segment(self, spool: str, name: str) -> bytes:
        return Path(spool, name).read_bytes()

    @override
    def remove_segment(self, spool: str, name: str) -> None:
        Path(spool, name).unlink(missing_ok=True)
        clear_spool(Path(spool))


@final
class RemoteLeftovers(AbstractLeftovers):
    """The segments on the disk of an actor's node.

    Args:
        actor: the handle of an actor that extends `AbstractLocalLeftovers`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    @override
    def list_segments(self, spool: str) -> list[str]:
        return self._get(self._actor.list_segments.remote(spool))

    @override
    def has_file(self, path: str) -> bool:
        return self._get(self._actor.has_file.remote(path))

    @override
    def read_segment(self, spool: str, name: str) -> bytes:
        return self._get(self._actor.read_segment.remote(spool, name))

    @override
    def remove_segment(self, spool: str, name: str) -> None:
        self._get(self._actor.remove_segment.remote(spool, name))

    @staticmethod
    def _get(call: Any) -> Any:
        return ray.get(call, timeout=CALL_TIMEOUT_S)


def copy_leftovers(source: AbstractLeftovers, *, order: ReplicaOrder, at_most_bytes: float = math.inf) -> int:
    """Copies a replica's leftover segments from a node's disk to the replica's spool folder on this one. Blocks.

    Args:
        source: the disk of the node, which may be this one.
        order: the replica's order. Its URLs are stored with the segments.
        at_most_bytes: the number of bytes after which it stops and leaves the rest for another call.

    Returns:
        The number of copied bytes; 0 if no segments were left, or if they were on this disk already.

    Raises:
        OSError: this disk refuses a segment. The segment stays on its node.
        RayError: the other node does not answer, or its disk fails. Such an error may be an OSError too.
        CorruptDataError: a name that the node lists is not a segment's.
    """
    names = source.list_segments(order.spool)
    if not names or _is_same_disk(source, spool=Path(order.spool)):
        return 0
    num_bytes = 0
    for name in names:
        if num_bytes >= at_most_bytes:
            break
        num_bytes += _copy_segment(source, name, order=order)
    return num_bytes


def _copy_segment(source: AbstractLeftovers, name: str, *, order: ReplicaOrder) -> int:
    kind, _, segment = name.partition("/")
    url = {LOG_FOLDER: order.log_url, METRICS_FOLDER: order.metrics_url}.get(kind)
    if url is None or not SEGMENT_NAME.fullmatch(segment):
        raise CorruptDataError(f"{order.name} left a file that is not a segment: {name!r}")
    try:
        data = source.read_segment(order.spool, name)
    except FileNotFoundError:
        return 0
    keep_segment(Path(order.spool, kind), url=url, key=segment, data=data)
    source.remove_segment(order.spool, name)
    return len(data)


def _is_same_disk(source: AbstractLeftovers, *, spool: Path) -> bool:
    """Returns whether the other node sees files that this process writes, so that nothing needs to be copied."""
    marker = spool / f"{MARKER}{uuid.uuid4().hex}"
    spool.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        marker.touch(mode=0o600)
        return source.has_file(str(marker))
    finally:
        marker.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty
            spool.rmdir()
            spool.parent.rmdir()


def has_leftovers(orders: Iterable[ReplicaOrder]) -> bool:
    """Returns whether this node's disk has a segment of one of these replicas; False if it cannot be read."""
    try:
        return any(segments_of(Path(order.spool)) for order in orders)
    except OSError as error:  # a gang's end must be reported even if the disk fails
        LOGGER.warning("leftover segments cannot be listed: %s", error)
        return False
