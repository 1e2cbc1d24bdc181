"""Addresses of sockets whose paths are long."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lockstep.heartbeat import Beat, HeartbeatSender
from lockstep.local_sockets import MAX_ADDRESS_BYTES, short_address
from lockstep.runner.heartbeat import HeartbeatListener


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    assert len(os.fsencode(folder)) > MAX_ADDRESS_BYTES
    return folder / "socket"


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="this system has no other way to name a folder")
def test_a_long_path_has_a_short_address_within_the_block(path: Path) -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours, short_address(path) as address:
        assert len(os.fsencode(address)) <= MAX_ADDRESS_BYTES
        ours.bind(address)
    assert path.is_socket()
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_where_there_is_none_heartbeats_are_left_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_PATH", raising=False)
    with pytest.raises(OSError, match="too long"), short_address(path):
        pass
    listener = HeartbeatListener(path)
    HeartbeatSender(path).send(Beat(step=1))
    assert not listener.read()
    listener.close()
