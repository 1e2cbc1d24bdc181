"""Compares transports on the traffic of a parameter server: gRPC, Arrow Flight, ZeroMQ, and shared memory.

``python benchmarks/transports.py [--rounds N] [--seconds S] [--clients 1,2]``. All rivals in turn in each round, each
with a server process and client processes of its own, on this machine. Prints a table as Markdown, medians over rounds,
and writes JSON.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

from harness import columns
from harness.addresses import free_ports
from harness.environments import own_versions
from harness.options import counts
from harness.program import Program
from harness.results import measure_in_turn
from harness.sides import Side, SideSpec, running
from transports.traffic import KINDS

RIVALS: Final = {
    "ZeroMQ, TCP": ("zeromq", "ZeroMqClient", "tcp://127.0.0.1:{port}"),
    "ZeroMQ, TCP, encrypted (CURVE)": ("zeromq", "ZeroMqClient", "tcp://127.0.0.1:{port}#curve"),
    "ZeroMQ, Unix socket": ("zeromq", "ZeroMqClient", "ipc://{folder}/zmq"),
    "gRPC, TCP": ("grpc_stream", "GrpcClient", "127.0.0.1:{port}"),
    "gRPC, Unix socket": ("grpc_stream", "GrpcClient", "unix:{folder}/grpc"),
    "Arrow Flight, TCP": ("flight", "FlightClient", "grpc://127.0.0.1:{port}"),
    "Arrow Flight, Unix socket": ("flight", "FlightClient", "grpc+unix://{folder}/flight"),
    "shared memory, ZeroMQ beside it": ("shared_memory", "SharedMemoryClient", "ipc://{folder}/shm"),
}
# Python's own account of shared memory takes what both sides have for a leak.
VARIABLES: Final = {"PYTHONWARNINGS": "ignore:resource_tracker"}
SHOWN: Final = {
    "traffic": columns.case,
    "transport": columns.side,
    "exchange, median µs": columns.values(0),
    "p99 µs": columns.more("p99_us", 0),
    "exchanges a second": columns.more("per_second", 0),
    "processor µs, client": columns.more("client_us", 0),
    "server": columns.more("server_us", 0),
}


def measure(rival: str, kind: int, num_clients: int, *, seconds: float, logs: Path) -> dict[str, float]:
    """Starts a server and its clients, which exchange buffers at the same time."""
    module, client, address = RIVALS[rival]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        order = {"module": module, "client": client, "kind": kind, "seconds": seconds}
        order["address"] = address.format(port=free_ports(1)[0], folder=folder)

        def start(name: str, *, serves: bool) -> Side:
            spec = SideSpec(
                title=rival, module="transports.side", order={**order, "serves": serves}, variables=VARIABLES
            )
            return stack.enter_context(running(spec, log=logs / f"{name}.log"))

        server = start("server", serves=True)
        stack.callback(server.kill)
        server.hear()
        clients = [start(f"client-{number}", serves=False) for number in range(num_clients)]
        for one in clients:
            one.hear()
        for one in clients:
            one.ask()
        found = [one.hear() for one in clients]
    return {
        "median_us": median(one["median_us"] for one in found),
        "p99_us": max(one["p99_us"] for one in found),
        "per_second": sum(one["per_second"] for one in found),
        "client_us": median(one["client_us"] for one in found),
        "server_us": max(one["server_us"] for one in found) / sum(one["num"] for one in found),
    }


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="transports", num_rounds=5)
    program.add("--seconds", type=float, default=1.0, help="how long clients exchange (default: %(default)s)")
    program.add("--clients", type=counts, default=[1, 2], help="default: 1,2")
    program.add_choice("--kinds", [str(number) for number in range(len(KINDS))])
    options = program.parse(small={"rounds": 1, "seconds": 0.2, "clients": [1], "kinds": ["1"]})
    cases = {
        f"{KINDS[int(kind)].name}; clients: {number}": (int(kind), number)
        for kind, number in product(options.kinds, options.clients)
    }
    results = measure_in_turn(
        product(cases, RIVALS),
        lambda case, rival: measure(rival, *cases[case], seconds=options.seconds, logs=program.logs(*cases[case])),
        num_rounds=options.rounds,
        value="median_us",
        unit="microseconds an exchange",
    )
    program.finish(results, SHOWN, packages={"all": own_versions("pyzmq", "grpcio", "pyarrow")})


if __name__ == "__main__":
    main()
