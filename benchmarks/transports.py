"""Compares transports on the traffic of a parameter server: gRPC, Arrow Flight, ZeroMQ, and shared memory.

``python benchmarks/transports.py [--rounds N] [--seconds S] [--clients 1,2]``. All rivals in turn in each round, each
with a server process and client processes of its own, on this machine. Prints a table as Markdown: medians over rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from transports.traffic import HEADER, KINDS  # noqa: E402 - it lies beside this file

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
PORT: Final = 28_871
PAGE_BYTES: Final = 4096


def touch(parts: list[Any]) -> int:
    """Looks at each page of what came: what was only mapped did not travel."""
    return sum(int(np.frombuffer(part, np.uint8)[::PAGE_BYTES].sum()) for part in parts)


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(rival: str, address: str, kind: int) -> None:
    answer = KINDS[kind].answer()
    expected = [part.nbytes for part in KINDS[kind].request()]

    def answered(header: bytes, parts: list[memoryview]) -> tuple[bytes, list[np.ndarray]]:
        if header == b"processor":
            return repr(processor_s()).encode(), []
        assert header == HEADER
        assert [part.nbytes for part in parts] == expected
        touch(parts)
        return header, answer

    importlib.import_module(f"transports.{RIVALS[rival][0]}").serve(address, answered)


def drive(rival: str, address: str, kind: int, seconds: float) -> None:
    module, name, _ = RIVALS[rival]
    client = getattr(importlib.import_module(f"transports.{module}"), name)(address)
    request, sizes = KINDS[kind].request(), [part.nbytes for part in KINDS[kind].answer()]
    times: list[float] = []

    def go(until: float) -> None:
        while (start := time.perf_counter()) < until:
            header, parts = client.exchange(HEADER, request)
            assert header == HEADER
            assert [part.nbytes for part in parts] == sizes
            touch(parts)
            times.append(time.perf_counter() - start)
            del parts

    go(time.perf_counter() + 0.3)  # to warm up
    times.clear()
    server_before, own_before = float(client.exchange(b"processor", [])[0]), processor_s()
    go(time.perf_counter() + seconds)
    result = {
        "median_s": median(times),
        "p99_s": sorted(times)[int(len(times) * 0.99)],
        "per_second": len(times) / sum(times),
        "client_s": (processor_s() - own_before) / len(times),
        "server_s": float(client.exchange(b"processor", [])[0]) - server_before,
        "num": len(times),
    }
    print(json.dumps(result), flush=True)
    client.close()


def measure(rival: str, kind: int, num_clients: int, seconds: float, port: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        address = RIVALS[rival][2].format(port=port, folder=folder)
        # Python's own account of shared memory takes what both sides have for a leak.
        python = [sys.executable, "-W", "ignore:resource_tracker"]
        this = [*python, __file__, "--rival", rival, "--address", address, "--kind", str(kind)]
        server = subprocess.Popen([*this, "--serve"], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "up\n"
            drivers = [
                subprocess.Popen([*this, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)
                for _ in range(num_clients)
            ]
            found = [json.loads(driver.communicate(timeout=120)[0].splitlines()[-1]) for driver in drivers]
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
    return {
        "median_s": median(one["median_s"] for one in found),
        "p99_s": max(one["p99_s"] for one in found),
        "per_second": sum(one["per_second"] for one in found),
        "client_s": median(one["client_s"] for one in found),
        "server_s": max(one["server_s"] for one in found) / sum(one["num"] for one in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--clients", default="1,2")
    parser.add_argument("--kinds", default=",".join(map(str, range(len(KINDS)))))
    parser.add_argument("--rival", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--kind", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.rival, options.address, options.kind)
        return
    if options.rival:
        drive(options.rival, options.address, options.kind, options.seconds)
        return
    results: dict[tuple[int, int, str], list[dict[str, float]]] = {}
    port = PORT
    for _ in range(options.rounds):  # all in turn, so that what else the machine does meets all alike
        for kind in map(int, options.kinds.split(",")):
            for num_clients in map(int, options.clients.split(",")):
                for rival in RIVALS:
                    port += 1
                    found = measure(rival, kind, num_clients, options.seconds, port)
                    results.setdefault((kind, num_clients, rival), []).append(found)
                    print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(
        "| traffic | clients | transport | exchange, median µs | p99 µs | exchanges a second "
        "| processor µs, client | server |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for (kind, num_clients, rival), rounds in results.items():
        row = {name: median(one[name] for one in rounds) for name in rounds[0]}
        print(
            f"| {KINDS[kind].name} | {num_clients} | {rival} | {row['median_s'] * 1e6:,.0f} "
            f"| {row['p99_s'] * 1e6:,.0f} | {row['per_second']:,.0f} "
            f"| {row['client_s'] * 1e6:,.0f} | {row['server_s'] * 1e6:,.0f} |"
        )


if __name__ == "__main__":
    main()
