"""Hearing heartbeats."""

from __future__ import annotations

import socket
import stat
from dataclasses import replace
from pathlib import Path

from lockstep.heartbeat import Beat, HeartbeatSender
from lockstep.jobs.running.order_parts import ServerOrder
from lockstep.jobs.running.orders import ReplicaOrder
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
    order = ReplicaOrder(name="r", role="master", index=0, job="j", command=("x",), spool="/s", log_url="/l")
    silence = Silence(replace(order, stuck_after_s=600.0), now=100.0)
    assert not silence.is_too_long(700.0)
    assert silence.is_too_long(700.1)
    assert silence.describe(700.1) == "600 s without a heartbeat or a line"
    silence.record_line(500.0)
    assert not silence.is_too_long(1100.0)
    assert not Silence(order, now=0.0).is_too_long(1e9)


def test_lines_of_a_server_are_no_sign_and_its_first_heartbeat_may_come_later_than_the_others() -> None:
    server = ServerOrder(ready_within_s=60.0, silent_within_s=3.0)
    order = ReplicaOrder(
        name="r", role="master", index=0, job="j", command=("x",), spool="/s", log_url="/l", server=server
    )
    silence = Silence(order, now=0.0)
    silence.record_start(100.0)
    silence.record_line(150.0)
    assert not silence.is_too_long(160.0)
    assert silence.is_too_long(160.1)
    assert silence.describe(160.1) == "it was not ready within 60 s"
    silence.record_heartbeat(155.0)
    silence.record_line(157.0)
    assert not silence.is_too_long(158.0)
    assert silence.is_too_long(158.1)
    assert silence.describe(159.0) == "it did not respond for 4 s"
