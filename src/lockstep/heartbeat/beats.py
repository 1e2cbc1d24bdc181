"""Heartbeats of a training program: small datagrams to a socket that an environment variable names.

The runner of the program listens on the socket. The program does not know who listens, and sends nothing if the
variable is not set. Sending never blocks and never fails: a datagram is dropped if the socket's buffer is full or
nobody listens.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self, cast, final

from lockstep.heartbeat.profiles import ProfileReport, ProfileRequests
from lockstep.local_sockets import short_address
from lockstep.spools import PROFILE_REQUEST

HEARTBEAT_VARIABLE: Final = "LOCKSTEP_HEARTBEAT"
"""The environment variable with the path of the Unix datagram socket to send heartbeats to."""

MAX_BEAT_BYTES: Final = 4096
MAX_METRICS: Final = 16
MAX_NAME_LENGTH: Final = 64
SEND_INTERVAL_S: Final = 0.5
"""The shortest time between two heartbeats of one program, in seconds.

A heartbeat that comes earlier is kept, and is sent with the next one or when the program ends.
"""

EXIT_TIMEOUT_S: Final = 5.0
"""How long the end of a program waits for the metrics of its last step to be computed, in seconds."""

_MAX_COUNT: Final = 2**53
_POLL_S: Final = 0.01


@final
@dataclass(frozen=True, kw_only=True)
class Beat:
    """One heartbeat: a program's progress as the program itself reports it.

    Attributes:
        step: the number of steps so far, over all epochs.
        epoch: the current epoch, from 1.
        num_examples: the number of examples so far; those of the whole job if it trains on one global batch.
        metrics: the latest loss and metrics by name.
        profile: the report about the profile that was requested last; None if none was.
    """

    step: int | None = None
    epoch: int | None = None
    num_examples: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    profile: ProfileReport | None = None

    def to_bytes(self) -> bytes:
        """Returns the heartbeat as a datagram of at most 4096 bytes, with as many of the metrics as fit."""
        named = [(name, value) for name, value in self.metrics.items() if 0 < len(name) <= MAX_NAME_LENGTH]
        count = min(len(named), MAX_METRICS)
        while len(data := self._encode(dict(named[:count]))) > MAX_BEAT_BYTES and count:
            count -= 1
        return data

    def _encode(self, metrics: Mapping[str, float]) -> bytes:
        document = {"step": self.step, "epoch": self.epoch, "numExamples": self.num_examples, "metrics": metrics}
        if self.profile is not None:
            document["profile"] = self.profile.to_document()
        return json.dumps(document).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Parses a datagram; None if it is not a heartbeat, because any code of the program may write to the socket."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict):
            return None
        fields = cast("dict[str, Any]", document)
        metrics = fields.get("metrics")
        return cls(
            step=_count(fields.get("step")),
            epoch=_count(fields.get("epoch")),
            num_examples=_count(fields.get("numExamples")),
            metrics=_metrics(cast("dict[str, Any]", metrics)) if isinstance(metrics, dict) else {},
            profile=ProfileReport.from_document(fields.get("profile")),
        )


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_COUNT else None


def _metrics(values: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in list(values.items())[:MAX_METRICS]
        if 0 < len(name) <= MAX_NAME_LENGTH and _is_number(value)
    }


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return True
    return type(value) is int and abs(value) <= _MAX_COUNT


@final
class HeartbeatSender:
    """Sends a program's heartbeats. Thread-safe; never blocks, never raises.

    Args:
        path: the path of the socket.
        clock: a monotonic clock, in seconds.

    Attributes:
        profile_requests: the requests for profiles of this program.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._sent = -math.inf
        self._waiting: Beat | None = None
        self._unread: Mapping[str, Any] = {}
        self._num_steps = self._num_examples = 0
        self._profile: ProfileReport | None = None
        self.profile_requests = ProfileRequests(path.with_name(PROFILE_REQUEST))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        atexit.register(self.flush)

    @property
    def num_steps(self) -> int:
        """The number of steps that the program has reported; its next training loop continues counting from here."""
        return self._num_steps

    @property
    def num_examples(self) -> int:
        """The number of examples that the program has reported."""
        return self._num_examples

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat would be sent at once, rather than kept for later."""
        return self._clock() - self._sent >= SEND_INTERVAL_S

    def send(self, beat: Beat, *, unread: Mapping[str, Any] | None = None) -> None:
        """Sends a heartbeat, or keeps it until the next one or `flush` if the last one was sent a moment ago.

        Args:
            beat: the heartbeat.
            unread: further metrics of the heartbeat, which may still be being computed. `flush` waits for them, so
                keeping a heartbeat does not wait.
        """
        with self._lock:
            self._waiting, self._unread = beat, unread or {}
            self._num_steps = self._num_steps if beat.step is None else beat.step
            self._num_examples = self._num_examples if beat.num_examples is None else beat.num_examples
            if self.is_due:
                self._send(timeout_s=0.0)

    def report_profile(self, report: ProfileReport) -> None:
        """Sends a report about a profile at once, and again with each later heartbeat, because one may be lost."""
        with self._lock:
            self._profile = report
            self._waiting = self._waiting or Beat()
            self._send(timeout_s=0.0)

    def flush(self) -> None:
        """Sends the heartbeat that was kept, if there is one. Waits for its metrics for at most `EXIT_TIMEOUT_S`."""
        with self._lock:
            if self._waiting is not None:
                self._send(timeout_s=EXIT_TIMEOUT_S)

    def _send(self, *, timeout_s: float) -> None:
        assert self._waiting is not None
        metrics = {**self._waiting.metrics, **_read_metrics(self._unread, timeout_s=timeout_s)}
        data = replace(self._waiting, metrics=metrics, profile=self._profile).to_bytes()
        self._waiting, self._unread = None, {}
        # Training continues if nobody listens, if the listener is too slow, or if the system has no such sockets.
        with contextlib.suppress(OSError), short_address(self._path) as address:
            self._socket.sendto(data, address)
        self._sent = self._clock()


_lock = threading.Lock()
_senders: dict[str, HeartbeatSender] = {}


def current_sender() -> HeartbeatSender | None:
    """Returns the sender of this process's heartbeats; None if no environment variable names a socket."""
    path = os.environ.get(HEARTBEAT_VARIABLE)
    if not path:
        return None
    with _lock:
        if path not in _senders:
            _senders[path] = HeartbeatSender(Path(path))
        return _senders[path]


_observers: list[Callable[[int, Mapping[str, Any]], None]] = []


def observe_progress(observer: Callable[[int, Mapping[str, Any]], None]) -> None:
    """Registers a function that is called with each step that a program reports with `report_progress`.

    Args:
        observer: a function of the number of steps so far and the metrics. It is called in the program's own thread.
    """
    _observers.append(observer)


def report_progress(
    *, step: int | None = None, epoch: int | None = None, num_examples: int | None = None, **metrics: float
) -> None:
    """Reports the progress of a custom training loop; under a strategy, ``fit`` reports its progress itself.

    In a managed job, ``lockstep describe`` shows the progress, and the report proves that the program is not stuck.
    Elsewhere, the function does nothing. It never waits for the listener and never fails. It reads the metrics at most
    twice a second, and those of the last call when the program ends.

    Args:
        step: the number of steps so far.
        epoch: the current epoch, from 1.
        num_examples: the number of examples so far; the examples per second are computed from it.
        metrics: the loss and the metrics: numbers, or arrays of one number.
    """
    sender = current_sender()
    if sender is None:
        return
    number = _whole(step)
    if number is not None:
        for observer in _observers:
            observer(number, metrics)
    is_due = sender.is_due
    values = _read_metrics(metrics) if is_due else {}  # reading an array waits for its step
    beat = Beat(step=number, epoch=_whole(epoch), num_examples=_whole(num_examples), metrics=values)
    sender.send(beat, unread=None if is_due else metrics)


def _read_metrics(metrics: Mapping[str, Any], *, timeout_s: float | None = None) -> dict[str, float]:
    """Returns the metrics that are numbers, or arrays of one number.

    Args:
        metrics: the metrics by name.
        timeout_s: how long to wait for arrays of JAX, in seconds; those that are not computed by then are left out.
            None waits for all of them.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    values: dict[str, float] = {}
    for name, value in metrics.items():
        with contextlib.suppress(Exception):  # arrays of several numbers and deleted arrays raise different errors
            if deadline is None or _is_computed(value, deadline=deadline):
                values[name] = float(value)
    return values


def _is_computed(value: Any, *, deadline: float) -> bool:
    """Waits until an array of JAX is computed; returns False if the time is up first."""
    is_ready = getattr(value, "is_ready", None)
    while is_ready is not None and not is_ready():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _whole(value: Any) -> int | None:
    with contextlib.suppress(Exception):  # as above
        return _count(int(value))
    return None
