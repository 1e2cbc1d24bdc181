"""A network for the processes of a side: each has a namespace with an address of its own, and a link of a given rate.

It needs root, iproute2 and the kernel's token bucket filter. The links meet at a bridge of this machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import final

BURST = "128kb"
QUEUE = "50ms"


@final
@dataclass(frozen=True, kw_only=True)
class Host:
    """What one process has.

    Attributes:
        namespace: its network namespace.
        address: its address.
        interface: the interface of its link.
    """

    namespace: str
    address: str
    interface: str

    @property
    def command(self) -> tuple[str, ...]:
        """What comes before a command that runs there."""
        return ("ip", "netns", "exec", self.namespace)


def run(*command: str) -> None:
    """Runs a command.

    Raises:
        OSError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def undo(*command: str) -> None:
    """Runs a command that removes something, which may be gone."""
    subprocess.run(command, capture_output=True, check=False)


@contextmanager
def shaped_links(count: int, *, mbit: int) -> Iterator[list[Host]]:
    """Makes as many hosts, each of which sends and receives at most so many megabits a second.

    Args:
        count: the number of hosts.
        mbit: the rate of each link in each direction, in Mbit/s.

    Raises:
        OSError: they cannot be made here.
    """
    mark = f"lb{os.getpid() % 100_000}"
    bridge = f"{mark}b"
    shape = ("root", "tbf", "rate", f"{mbit}mbit", "burst", BURST, "latency", QUEUE)
    hosts = [
        Host(namespace=f"{mark}-{number}", address=f"10.78.0.{number + 1}", interface=f"{mark}i{number}")
        for number in range(count)
    ]
    with ExitStack() as made:
        run("ip", "link", "add", bridge, "type", "bridge")
        made.callback(undo, "ip", "link", "delete", bridge)
        run("ip", "link", "set", bridge, "up")
        for number, host in enumerate(hosts):
            outer = f"{mark}v{number}"
            run("ip", "netns", "add", host.namespace)
            made.callback(undo, "ip", "netns", "delete", host.namespace)
            peer = ("peer", "name", host.interface, "netns", host.namespace)
            run("ip", "link", "add", outer, "type", "veth", *peer)
            made.callback(undo, "ip", "link", "delete", outer)
            run("ip", "link", "set", outer, "master", bridge, "up")
            run("tc", "qdisc", "add", "dev", outer, *shape)
            inside = ("-n", host.namespace)
            run("tc", *inside, "qdisc", "add", "dev", host.interface, *shape)
            run("ip", *inside, "address", "add", f"{host.address}/24", "dev", host.interface)
            run("ip", *inside, "link", "set", host.interface, "up")
            run("ip", *inside, "link", "set", "lo", "up")
        yield hosts
