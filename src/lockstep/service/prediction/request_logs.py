"""Writes a sample of the requests for predictions, with their responses, to a bucket as JSON lines.

Predictions never wait for it. What it holds in memory is bounded: what does not fit is left out, and counted.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, final

import orjson

from lockstep.errors import LockstepError, counted
from lockstep.service.prediction.metrics import OK, VersionName
from lockstep.service.security.job_folders import JobFolders
from lockstep.service.store import DATABASE_FAULTS, ModelStore, RequestLogging
from lockstep.storage import QUICK_POLICY, AbstractBucket, may_succeed_later, open_bucket

LOGGER: Final = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
"""How often it looks what is to be written, and which versions are logged, in seconds."""
PART_S: Final = 10.0
"""After this time, the requests of a version are written, in seconds. A bucket that fails is tried again as late."""
PART_BYTES: Final = 4 * 2**20
"""From this size on, the requests of a version are written at the next look, in bytes."""
MAX_VERSION_BYTES: Final = 16 * 2**20
"""The maximum size of the requests and responses of one version that wait to be written, in bytes."""
MAX_BYTES: Final = 64 * 2**20
"""The maximum size of those of all versions, in bytes."""
ENTRY_BYTES: Final = 512
"""The approximate size of what an entry has beside the request and the response, in bytes."""
MAX_PARSED_BYTES: Final = 2**20


def _open(url: str) -> AbstractBucket:
    return open_bucket(url, policy=QUICK_POLICY)


@final
@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request that a prediction server has answered.

    Attributes:
        time_s: when it was answered, in seconds since 1970 UTC.
        status: the HTTP status of the response.
        latency_s: how long it took at the service, in seconds.
        request: the body of the request.
        response: the body of the response.
    """

    time_s: float
    status: int
    latency_s: float
    request: bytes = field(repr=False)
    response: bytes = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """The approximate size of its line, in bytes."""
        return len(self.request) + len(self.response) + ENTRY_BYTES

    def line(self, name: VersionName) -> bytes:
        """Returns it as a line of JSON.

        Args:
            name: the version that answered it.
        """
        time_text = datetime.fromtimestamp(self.time_s, tz=UTC).isoformat(timespec="milliseconds")
        head = {
            "time": time_text,
            "model": name.model,
            "version": name.version,
            "status": self.status,
            "latency_s": round(self.latency_s, 6),
        }
        is_json = self.status == OK  # the server has read the one, and written the other
        request, response = (_value(body, is_json=is_json) for body in (self.request, self.response))
        return b'%b,"request":%b,"response":%b}\n' % (orjson.dumps(head)[:-1], request, response)


@final
@dataclass(kw_only=True)
class _Pending:
    """What waits to be written of one version, to one folder."""

    name: VersionName
    since_s: float
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    size_bytes: int = 0
    next_try_s: float = 0.0


@final
class RequestLogs:
    """Samples requests, and writes them in the background. Thread-safe. Every service has its own.

    Args:
        models: the store of versions, which says what is logged.
        folders: closes folders to programs with user ids of their own; None if programs have none.
        open_folder: opens the folder that a URL names.
        clock: the clock, in seconds since 1970 UTC.
        timer: a monotonic clock, in seconds.
        chance: returns a random number from 0 to 1.
    """

    def __init__(
        self,
        *,
        models: ModelStore,
        folders: JobFolders | None = None,
        open_folder: Callable[[str], AbstractBucket] = _open,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._models = models
        self._folders = folders
        self._open_folder = open_folder
        self._clock = clock
        self._timer = timer
        self._chance = chance
        self._service = uuid.uuid4().hex[:12]
        self._num_parts = 0
        self._lock = threading.Lock()
        self._loggings: Mapping[str, RequestLogging] = {}
        self._pending: dict[tuple[str, str], _Pending] = {}
        self._size_bytes = 0
        self._written: Counter[VersionName] = Counter()
        self._dropped: Counter[VersionName] = Counter()
        self._num_reported = 0

    def sample(self, version_uid: str) -> RequestLogging | None:
        """Decides whether a request is logged.

        Args:
            version_uid: the uid of the version that answered it.

        Returns:
            Where it is logged; None if it is not.
        """
        asked = self._loggings.get(version_uid)
        return asked if asked is not None and self._chance() < asked.sampling else None

    def add(
        self,
        asked: RequestLogging,
        *,
        name: VersionName,
        status: int,
        latency_s: float,
        request: bytes,
        response: bytes,
    ) -> None:
        """Adds a request and its response. If there is no room, they are left out, and counted.

        Args:
            asked: what `sample` returned.
            name: the version that answered.
            status: the HTTP status of the response.
            latency_s: how long it took, in seconds.
            request: the body of the request.
            response: the body of the response.
        """
        exchange = Exchange(
            time_s=self._clock(), status=status, latency_s=latency_s, request=request, response=response
        )
        size_bytes = exchange.size_bytes
        with self._lock:
            key = (f"{name.project}/{name.model}/{name.version}", asked.url)
            pending = self._pending.get(key)
            own_bytes = 0 if pending is None else pending.size_bytes
            if self._size_bytes + size_bytes > MAX_BYTES or own_bytes + size_bytes > MAX_VERSION_BYTES:
                self._dropped[name] += 1
                return
            if pending is None:
                pending = self._pending[key] = _Pending(name=name, since_s=self._timer())
            pending.exchanges.append(exchange)
            pending.size_bytes += size_bytes
            self._size_bytes += size_bytes

    def counts(self) -> dict[VersionName, tuple[int, int]]:
        """Returns the numbers of requests that were written, and that were left out, by version."""
        with self._lock:
            names = self._written.keys() | self._dropped.keys()
            return {name: (self._written[name], self._dropped[name]) for name in names}

    def run(self, stop: threading.Event) -> None:
        """Writes until `stop` is set, and then what is left."""
        while not stop.wait(LOOK_INTERVAL_S):
            self._try(ends=False)
        self._try(ends=True)
        with self._lock:
            num_left = sum(len(pending.exchanges) for pending in self._pending.values())
        if num_left:
            LOGGER.warning("%s for predictions not written before the end", counted(num_left, "sampled request"))

    def step(self, *, ends: bool = False) -> None:
        """Reads which versions are logged, and writes what is due. Blocks while the bucket is written.

        Args:
            ends: whether everything is due, because the service ends.

        Raises:
            DATABASE_FAULTS: If the database cannot be read.
        """
        for (_, url), pending in self._take_due(ends=ends):
            self._write(url, pending)
        self._report_dropped()
        self._loggings = self._models.request_loggings()

    def _try(self, *, ends: bool) -> None:
        try:
            self.step(ends=ends)
        except DATABASE_FAULTS:  # the controller reports it
            pass
        except Exception:  # a bug, which must not end the loop
            LOGGER.exception("requests for predictions were not written")

    def _take_due(self, *, ends: bool) -> list[tuple[tuple[str, str], _Pending]]:
        now_s = self._timer()
        with self._lock:
            due = [
                (key, pending)
                for key, pending in self._pending.items()
                if ends
                or (
                    now_s >= pending.next_try_s
                    and (pending.size_bytes >= PART_BYTES or now_s - pending.since_s >= PART_S)
                )
            ]
            for key, _ in due:
                del self._pending[key]
            return due

    def _write(self, url: str, pending: _Pending) -> None:
        name = pending.name
        day, clock = datetime.fromtimestamp(pending.exchanges[0].time_s, tz=UTC).strftime("%Y-%m-%d %H%M%S").split()
        key = f"{name.model}/{name.version}/{day}/{clock}-{self._service}-{self._num_parts:06d}.jsonl"
        self._num_parts += 1
        try:
            if self._folders is not None:
                self._folders.close_request_logs(name.project)
            self._open_folder(url).write(key, b"".join(exchange.line(name) for exchange in pending.exchanges))
        except (LockstepError, OSError) as error:
            LOGGER.warning("requests of %s/%s are not written to %s: %s", name.model, name.version, url, error)
            if isinstance(error, LockstepError) and not may_succeed_later(error):
                self._forget(pending, into=self._dropped)
            else:
                self._put_back(url, pending)
        else:
            self._forget(pending, into=self._written)

    def _forget(self, pending: _Pending, *, into: Counter[VersionName]) -> None:
        with self._lock:
            into[pending.name] += len(pending.exchanges)
            self._size_bytes -= pending.size_bytes

    def _put_back(self, url: str, pending: _Pending) -> None:
        """Keeps what could not be written for a later try, before what was added meanwhile."""
        name = pending.name
        pending.next_try_s = self._timer() + PART_S
        with self._lock:
            key = (f"{name.project}/{name.model}/{name.version}", url)
            added = self._pending.get(key)
            if added is not None:
                pending.exchanges += added.exchanges
                pending.size_bytes += added.size_bytes
            self._pending[key] = pending

    def _report_dropped(self) -> None:
        with self._lock:
            num_dropped = self._dropped.total()
        if num_dropped > self._num_reported:
            left_out = counted(num_dropped - self._num_reported, "sampled request")
            LOGGER.warning("%s for predictions not written: there was no room, or no permission", left_out)
            self._num_reported = num_dropped


def _value(body: bytes, *, is_json: bool) -> bytes:
    """Returns a body as a JSON value in one line: what it is if it is JSON, and a string otherwise."""
    if not is_json and len(body) <= MAX_PARSED_BYTES:
        try:
            return orjson.dumps(orjson.loads(body))
        except (ValueError, TypeError):  # no JSON, or nested more deeply than orjson writes
            pass
    if not is_json:
        return orjson.dumps(body.decode(errors="replace"))
    # In valid JSON, these are only between values.
    return body.replace(b"\n", b" ").replace(b"\r", b" ")
