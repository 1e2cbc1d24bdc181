"""Heartbeats: what is sent, what is read, and that sending never waits and never fails."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep
from lockstep.heartbeat import HEARTBEAT_VARIABLE, MAX_METRICS, SEND_INTERVAL_S, Beat, HeartbeatSender
from lockstep.heartbeat import beats as heartbeat
from lockstep.local_sockets import MAX_ADDRESS_BYTES, short_address


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / ("long" * 30)  # longer than an address may be
    folder.mkdir()
    assert len(os.fsencode(folder)) > MAX_ADDRESS_BYTES
    return folder / "heartbeat"


@pytest.fixture
def listener(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made, short_address(path) as address:
        made.bind(address)
        made.setblocking(False)
        yield made


def _heard(listener: socket.socket) -> list[Beat | None]:
    beats = []
    try:
        while True:
            beats.append(Beat.from_bytes(listener.recv(65536)))
    except BlockingIOError:
        return beats


def test_a_beat_is_read_as_it_was_written() -> None:
    beat = Beat(step=1200, epoch=3, num_examples=76800, metrics={"loss": 0.31, "accuracy": 1})
    assert Beat.from_bytes(beat.to_bytes()) == beat
    odd = Beat.from_bytes(Beat(metrics={"loss": math.nan, "best": math.inf}).to_bytes())
    assert odd is not None
    assert math.isnan(odd.metrics["loss"])
    assert math.isinf(odd.metrics["best"])


@pytest.mark.parametrize(
    ("data", "beat"),
    [
        (b"", None),
        (b"\xff\xfe", None),
        (b"[1]", None),
        (b"[" * 100_000, None),
        (b'{"step": -1, "epoch": 1.5, "numExamples": true, "metrics": [1]}', Beat()),
        (b'{"step": 1e400, "metrics": {"a": "1", "b": true, "": 1, "c": null, "d": 2}}', Beat(metrics={"d": 2.0})),
        (b'{"metrics": {"big": 1' + b"0" * 400 + b', "ok": 1.5}}', Beat(metrics={"ok": 1.5})),
        (b'{"step": 7, "unknown": 1}', Beat(step=7)),
    ],
    ids=["empty", "bytes", "list", "deep", "wrong-types", "wrong-metrics", "too-large", "unknown-key"],
)
def test_what_is_no_heartbeat_is_left_out(data: bytes, beat: Beat | None) -> None:
    assert Beat.from_bytes(data) == beat


def test_a_beat_has_so_many_metrics_at_the_most() -> None:
    many = Beat(metrics={f"m{number}": 1.0 for number in range(100)})
    assert len(many.to_bytes()) < heartbeat.MAX_BEAT_BYTES
    read = Beat.from_bytes(many.to_bytes())
    assert read is not None
    assert list(read.metrics) == [f"m{number}" for number in range(MAX_METRICS)]
    assert Beat.from_bytes(Beat(metrics={"x" * 65: 1.0}).to_bytes()) == Beat()


def test_a_beat_is_no_larger_than_what_a_listener_takes() -> None:
    many = Beat(step=3, metrics={chr(0x10400 + number) * 64: 1.0 for number in range(MAX_METRICS)})
    assert len(many.to_bytes()) <= heartbeat.MAX_BEAT_BYTES
    read = Beat.from_bytes(many.to_bytes())
    assert read is not None
    assert read.step == 3
    assert 0 < len(read.metrics) < MAX_METRICS


def test_beats_are_some_time_apart_and_the_last_one_is_not_lost(path: Path, listener: socket.socket) -> None:
    clock = Clock()
    sender = HeartbeatSender(path, clock=clock)
    for step in (1, 2, 3):
        sender.send(Beat(step=step))
    assert _heard(listener) == [Beat(step=1)]
    clock.now += SEND_INTERVAL_S
    sender.send(Beat(step=4))
    sender.send(Beat(step=5))
    sender.flush()
    sender.flush()
    assert _heard(listener) == [Beat(step=4), Beat(step=5)]


def test_a_listener_that_is_not_there_or_does_not_read_stops_nobody(path: Path) -> None:
    clock = Clock()
    sender = HeartbeatSender(path, clock=clock)
    sender.send(Beat(step=1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf, short_address(path) as address:
        deaf.bind(address)
        for step in range(10_000):  # far more than a socket holds
            clock.now += 1
            sender.send(Beat(step=step))
        deaf.setblocking(False)
        assert 0 < len(_heard(deaf)) < 10_000
    clock.now += 1
    sender.send(Beat(step=1))  # it is gone


def test_a_custom_loop_reports_itself(path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(path))
    lockstep.report_progress(step=1, num_examples=32, loss=0.5, name="not a number")  # type: ignore[arg-type]
    lockstep.report_progress(step=2, loss=0.4)
    sender = heartbeat.current_sender()
    assert sender is not None
    sender.flush()
    assert _heard(listener) == [
        Beat(step=1, num_examples=32, metrics={"loss": 0.5}),
        Beat(step=2, metrics={"loss": 0.4}),
    ]


class _Computing:
    """Acts as an array of JAX's that is still being computed."""

    num_reads = 0

    def __init__(self, *, is_ready: bool) -> None:
        self._is_ready = is_ready

    def is_ready(self) -> bool:
        return self._is_ready

    def __float__(self) -> float:
        self.num_reads += 1
        return 0.4


@pytest.mark.parametrize("is_ready", [True, False], ids=["computed", "never-computed"])
def test_the_last_step_is_sent_with_its_own_metrics_which_are_read_at_the_end(
    path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(path))
    monkeypatch.setattr(heartbeat, "EXIT_TIMEOUT_S", 0.05)
    lockstep.report_progress(step=1, loss=0.5)
    earlier, last = _Computing(is_ready=is_ready), _Computing(is_ready=is_ready)
    lockstep.report_progress(step=2, loss=earlier)  # type: ignore[arg-type]
    lockstep.report_progress(step=3, loss=last)  # type: ignore[arg-type]
    assert earlier.num_reads == last.num_reads == 0, "a call that sends nothing waits for no step"
    sender = heartbeat.current_sender()
    assert sender is not None
    sender.flush()
    assert _heard(listener)[1:] == [Beat(step=3, metrics={"loss": 0.4} if is_ready else {})]
    assert (earlier.num_reads, last.num_reads) == (0, int(is_ready))


class _Deleted:
    """Acts as an array of JAX's whose memory was given away."""

    def __float__(self) -> float:
        raise RuntimeError("Array has been deleted.")

    __int__ = __float__


def test_what_cannot_be_read_ends_no_loop(path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(path))
    lockstep.report_progress(step=_Deleted(), epoch=2, loss=_Deleted(), accuracy=0.5)  # type: ignore[arg-type]
    assert _heard(listener) == [Beat(epoch=2, metrics={"accuracy": 0.5})]


def test_without_the_variable_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HEARTBEAT_VARIABLE, raising=False)
    assert heartbeat.current_sender() is None
    lockstep.report_progress(step=1)


def test_the_end_of_a_program_sends_what_was_kept(path: Path, listener: socket.socket) -> None:
    script = "import lockstep\nfor step in range(100): lockstep.report_progress(step=step)"
    env = {**os.environ, HEARTBEAT_VARIABLE: str(path)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=60)
    assert _heard(listener)[-1] == Beat(step=99)
