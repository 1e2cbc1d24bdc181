"""Hearing heartbeats."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

from lockstep.heartbeat import Beat, HeartbeatSender
from lockstep.local_sockets import short_address
from lockstep.runner.heartbeat import BEATS_AT_ONCE, HeartbeatListener
from lockstep.runner.silence import Silence


def test_heartbeats_are_folded_and_the_socket_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    path.write_text("left by another")
    listener = HeartbeatListener(path, clock=lambda: 7.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not listener.read()
    HeartbeatSender(path).send(Beat(step=3))
    assert listener.read()
    assert listener.progress is not None
    assert (listener.progress.step, listener.progress.time_s) == (3, 7.0)
    listener.close()
    assert not path.exists()


def test_what_is_no_heartbeat_is_no_sign(tmp_path: Path) -> None:
    listener = HeartbeatListener(tmp_path / "heartbeat")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, short_address(tmp_path / "heartbeat") as address:
        sender.sendto(b"noise", address)
    assert not listener.read()
    assert listener.progress is None
    listener.close()


def test_a_place_where_no_socket_can_be_is_no_end(tmp_path: Path) -> None:
    listener = HeartbeatListener(tmp_path / "absent" / "heartbeat")
    assert not listener.read()
    listener.close()


def test_a_flood_does_not_keep_the_reader(tmp_path: Path) -> None:
    class Flood:
        num_read = 0

        def recv(self, _: int) -> bytes:
            self.num_read += 1
            return Beat(step=self.num_read).to_bytes()

        def close(self) -> None: ...

    listener = HeartbeatListener(tmp_path / "heartbeat")
    listener._socket.close()
    listener._socket = flood = Flood()  # type: ignore[assignment]
    assert listener.read()
    assert flood.num_read == BEATS_AT_ONCE
    listener.close()


def test_silence_is_too_long_after_its_limit() -> None:
    silence = Silence(limit_s=600.0, now=100.0)
    assert not silence.is_too_long(700.0)
    assert silence.is_too_long(700.1)
    assert silence.describe(700.1) == "600 s without a heartbeat or a line"
    silence.record_sign(500.0)
    assert not silence.is_too_long(1100.0)
    assert not Silence(limit_s=None, now=0.0).is_too_long(1e9)
