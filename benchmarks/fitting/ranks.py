"""Starts the processes of a side that trains in several: ``python -m fitting.ranks ORDER``.

Lines of standard input go to all processes. What the first process says is passed on; the others' answers are not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from harness.addresses import LOOPBACK, free_ports
from harness.protocol import INTERFACE, read_order

from fitting.links import Host, shaped_links

END_S = 20.0
"""How long the processes have after the last round, in seconds. The harness waits for 30."""


def start(order: dict[str, Any], hosts: Sequence[Host]) -> list[subprocess.Popen[bytes]]:
    """Starts the processes: each on a host of its own, or all on this machine's loopback interface if there is none."""
    count = order["num_processes"]
    *ports, meeting = free_ports(count + 1)
    addresses = [host.address for host in hosts] or [LOOPBACK] * count
    cluster = {"worker": [f"{address}:{port}" for address, port in zip(addresses, ports, strict=True)]}
    processes: list[subprocess.Popen[bytes]] = []
    for rank in range(count):
        host = hosts[rank] if hosts else None
        known = {
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}),
            # PyTorch's names, as torchrun sets them.
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": str(meeting),
        }
        if host is not None:
            known |= {"GLOO_SOCKET_IFNAME": host.interface, INTERFACE: host.interface}
        processes.append(
            subprocess.Popen(
                [*(() if host is None else host.command), sys.executable, "-m", order["module"], json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=None if rank == 0 else subprocess.DEVNULL,
                bufsize=0,
                env={**os.environ, **known},
            )
        )
    return processes


def main() -> int:
    """Returns the exit status of a process that failed; 0 if none did."""
    order = read_order()
    with ExitStack() as stack:
        mbit = order.get("link_mbit")
        hosts = stack.enter_context(shaped_links(order["num_processes"], mbit=mbit)) if mbit else []
        return attend(start(order, hosts))


def attend(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Passes the orders for rounds on; returns the exit status of a process that failed, or 0 if none did."""
    try:
        for line in sys.stdin:
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(line.encode())
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        return next((status for status in [process.wait(END_S) for process in processes] if status), 0)
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
