"""Addresses that are kept for programs that do not listen yet."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockstep.errors import EngineError
from lockstep.processes.ports import reserve_address, reserve_again

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ports are kept by Linux's abstract sockets")

HOST = "127.0.0.1"


def port_of(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


def test_nobody_is_given_a_port_that_is_held() -> None:
    first = reserve_address(HOST)
    port = port_of(first.address)
    with pytest.raises(EngineError, match=rf"no port of 127.0.0.1 is free between {port} and {port}"):
        reserve_address(HOST, ports=range(port, port + 1))
    first.close()
    reserve_address(HOST, ports=range(port, port + 1)).close()


def test_a_program_that_sets_no_option_can_listen_at_it() -> None:
    held = reserve_address(HOST)
    with socket.socket() as listener:
        listener.bind((HOST, port_of(held.address)))
        listener.listen()
    held.close()


@pytest.mark.parametrize("address", [HOST, ""], ids=["this address", "all addresses"])
def test_a_port_where_somebody_listens_is_not_given(address: str) -> None:
    with socket.socket() as listener:
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(EngineError):
            reserve_address(HOST, ports=range(port, port + 1))


def test_the_kernel_does_not_give_it_out_by_itself() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    held = [reserve_address(HOST) for _ in range(50)]
    assert len({each.address for each in held}) == 50
    assert all(port_of(each.address) < lowest for each in held)
    for each in held:
        each.close()


def test_a_port_is_free_again_when_its_holder_is_killed() -> None:
    script = (
        "from lockstep.processes.ports import reserve_address; "
        "a = reserve_address('127.0.0.1'); print(a.address); input()"
    )
    holder = subprocess.Popen([sys.executable, "-uc", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    port = port_of(holder.stdout.readline().strip())
    with pytest.raises(EngineError):
        reserve_address(HOST, ports=range(port, port + 1))
    holder.kill()
    holder.communicate()
    reserve_address(HOST, ports=range(port, port + 1)).close()


def test_an_address_is_taken_again_once_its_holder_has_ended() -> None:
    first = reserve_address(HOST)
    with pytest.raises(EngineError, match=f"{first.address} was given to another replica"):
        reserve_again(first.address, timeout_s=0.05)
    with socket.create_server((HOST, port_of(first.address))) as listener:
        peer = socket.create_connection((HOST, port_of(first.address)))
        served, _ = listener.accept()
        served.close()  # which leaves the port taken for a while, for who sets no socket option
        peer.close()
    threading.Timer(0.1, first.close).start()
    again = reserve_again(first.address, timeout_s=30)
    assert again.address == first.address
    with pytest.raises(EngineError):
        reserve_address(HOST, ports=range(port_of(first.address), port_of(first.address) + 1))
    again.close()


def test_reserving_an_address_leaves_the_programs_random_numbers_alone() -> None:
    random.seed(3)
    before = random.getstate()
    reserve_address("127.0.0.1").close()
    assert random.getstate() == before
