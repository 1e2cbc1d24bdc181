"""Signs of life of a training program: small datagrams to a socket that its environment names.

Whoever runs the program listens there; the program knows nothing of who that is, and without the variable nothing is
sent. Sending never waits and never fails: a datagram that finds no room, or nobody, is dropped.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, cast, final

from lockstep.local_sockets import short_address

HEARTBEAT_VARIABLE: Final = "LOCKSTEP_HEARTBEAT"
"""Names the Unix datagram socket that a program's heartbeats go to."""

MAX_BEAT_BYTES: Final = 4096
MAX_METRICS: Final = 16
MAX_NAME_LENGTH: Final = 64
SEND_INTERVAL_S: Final = 0.5
"""Between two heartbeats of one program, at least; the last one before a pause follows when the program ends."""

_MAX_COUNT: Final = 2**53


@final
@dataclass(frozen=True, kw_only=True)
class Beat:
    """How far a program says it is.

    Attributes:
        step: steps taken, counted over all epochs.
        epoch: the epoch that it is in, from 1.
        num_examples: examples seen so far; all of the job's, where it trains on one global batch.
        metrics: the latest loss and metrics by name.
    """

    step: int | None = None
    epoch: int | None = None
    num_examples: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])

    def to_bytes(self) -> bytes:
        """Returns it as a datagram, with as many metrics as may be in one."""
        named = [(name, value) for name, value in self.metrics.items() if 0 < len(name) <= MAX_NAME_LENGTH]
        count = min(len(named), MAX_METRICS)
        while len(data := self._encode(dict(named[:count]))) > MAX_BEAT_BYTES:
            count -= 1
        return data

    def _encode(self, metrics: Mapping[str, float]) -> bytes:
        document = {"step": self.step, "epoch": self.epoch, "numExamples": self.num_examples, "metrics": metrics}
        return json.dumps(document).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads a datagram; None for one that is no heartbeat: anybody in the program may write to the socket."""
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
        path: the socket.
        clock: seconds, growing.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._sent = -math.inf
        self._waiting: Beat | None = None
        self._num_steps = self._num_examples = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        atexit.register(self.flush)

    @property
    def num_steps(self) -> int:
        """Steps that the program has said it has taken: what trains next in it counts on from there."""
        return self._num_steps

    @property
    def num_examples(self) -> int:
        """Examples that it has said it has seen."""
        return self._num_examples

    @property
    def is_due(self) -> bool:
        """Whether a heartbeat would be sent now, rather than kept for later."""
        return self._clock() - self._sent >= SEND_INTERVAL_S

    def send(self, beat: Beat) -> None:
        """Sends a heartbeat, or keeps it until the next one or `flush` where the last one is not long ago."""
        with self._lock:
            self._waiting = beat
            self._num_steps = self._num_steps if beat.step is None else beat.step
            self._num_examples = self._num_examples if beat.num_examples is None else beat.num_examples
            if self.is_due:
                self._send()

    def flush(self) -> None:
        """Sends what was kept."""
        with self._lock:
            if self._waiting is not None:
                self._send()

    def _send(self) -> None:
        assert self._waiting is not None
        # Nobody listens, or not fast enough, or this system has no such socket: training goes on.
        with contextlib.suppress(OSError), short_address(self._path) as address:
            self._socket.sendto(self._waiting.to_bytes(), address)
        self._waiting = None
        self._sent = self._clock()


_lock = threading.Lock()
_senders: dict[str, HeartbeatSender] = {}


def current_sender() -> HeartbeatSender | None:
    """Returns what sends this process's heartbeats; None where nobody asked for them."""
    path = os.environ.get(HEARTBEAT_VARIABLE)
    if not path:
        return None
    with _lock:
        if path not in _senders:
            _senders[path] = HeartbeatSender(Path(path))
        return _senders[path]


def report_progress(
    *, step: int | None = None, epoch: int | None = None, num_examples: int | None = None, **metrics: float
) -> None:
    """Says how far a custom training loop is; ``fit`` under a strategy says it by itself.

    In a managed job it is what ``lockstep describe`` shows, and a sign that the program is not stuck. Elsewhere it does
    nothing. It never waits for whoever listens and never fails; twice a second at the most it looks at the metrics.

    Args:
        step: steps taken so far.
        epoch: the epoch, from 1.
        num_examples: examples seen so far; examples a second are made of it.
        metrics: loss and metrics; numbers, or arrays of one number.
    """
    sender = current_sender()
    if sender is None:
        return
    values: dict[str, float] = {}
    for name, value in metrics.items() if sender.is_due else ():  # to read an array is to wait for the step
        with contextlib.suppress(
            Exception
        ):  # an array of several numbers, or a deleted one: each has errors of its own
            values[name] = float(value)
    sender.send(Beat(step=_whole(step), epoch=_whole(epoch), num_examples=_whole(num_examples), metrics=values))


def _whole(value: Any) -> int | None:
    with contextlib.suppress(Exception):  # as above
        return _count(int(value))
    return None
