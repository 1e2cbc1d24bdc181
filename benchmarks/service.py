"""What the service adds between a submission and a program's first line, on this machine.

Three ways to start the same program, one that prints a line, taking turns so that a busy moment hits all of them:

- by `subprocess`, with nothing around it: the floor;
- by a bare detached Ray actor on the same engine, which starts the program and hands its first line back: what one
  would write by hand in ten lines, without queue, records, log, usage or stop;
- as a job of the service: from the request to the moment when its first line can be read over HTTP, and to the moment
  when the job is SUCCEEDED.

Run by `make bench`, on Linux; it takes half a minute, in a home of its own in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import psutil
from rich.console import Console
from rich.table import Table

from lockstep.cli.package import stage_folder
from lockstep.client import Client, RunningService
from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.home import Home
from lockstep.service.lifecycle import down, up
from lockstep.service.settings import Settings

PROGRAM = "print('first', flush=True)\n"
POLL_S = 0.01
TIMEOUT_S = 60.0

console = Console(highlight=False, soft_wrap=True)


@final
@dataclass(kw_only=True)
class Row:
    """One way, and the seconds that it took each time."""

    name: str
    seconds: list[float] = field(default_factory=list)


def wait(condition: Callable[[], bool]) -> None:
    """Returns when a condition holds; fails after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened for {TIMEOUT_S:.0f} s")
        time.sleep(POLL_S)


def run_alone(program: Path) -> float:
    """Starts the program by itself; returns the seconds to its first line."""
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return time.perf_counter() - started


@final
class Starter:
    """The bare actor: starts a program and returns its first line."""

    def first_line(self, program: str) -> str:
        with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            return process.stdout.readline()


def run_in_actor(ray: Any, program: Path, *, name: str) -> float:
    """Makes a detached actor that starts the program; returns the seconds to its first line."""
    started = time.perf_counter()
    actor = ray.remote(Starter).options(name=name, lifetime="detached", num_cpus=0).remote()
    ray.get(actor.first_line.remote(str(program)), timeout=TIMEOUT_S)
    seconds = time.perf_counter() - started
    ray.kill(actor)
    return seconds


def run_as_job(client: Client, package: str, *, name: str) -> tuple[float, float]:
    """Submits the program; returns the seconds to its first line, and to the job's end."""
    body = {"jobId": name, "trainingInput": {"scaleTier": "BASIC", "pythonModule": "first", "packageUris": [package]}}
    started = time.perf_counter()
    client.create_job(body)
    wait(lambda: bool(client.log_page(name)["entries"]))
    to_line = time.perf_counter() - started
    wait(lambda: client.job(name)["state"] in ("SUCCEEDED", "FAILED", "CANCELLED"))
    return to_line, time.perf_counter() - started


def connect_to_engine(home: Home) -> tuple[Any, int]:
    """Connects this process to the home's engine as well; returns Ray and the pid of its head."""
    head = EmbeddedHead(home)
    os.environ.update(head.environment())
    record = head.find()
    assert record is not None
    import ray  # reads its variables when it is imported

    ray.init(address=record.address, namespace="benchmark", log_to_driver=False, configure_logging=False)
    return ray, record.pid


def memory_bytes(processes: list[psutil.Process]) -> int:
    """Returns the memory of processes, what several of them share counted once (PSS)."""
    return sum(process.memory_full_info().pss for process in processes)


def measure(service: RunningService, home: Home, *, num_runs: int) -> list[Row]:
    """Runs all ways in turn, once unmeasured and then `num_runs` times."""
    folder = home.path.parent / "first"
    folder.mkdir()
    program = folder / "first.py"
    program.write_text(PROGRAM)
    ray, head_pid = connect_to_engine(home)
    head = psutil.Process(head_pid)  # a child of the service that started it
    service_bytes = memory_bytes([psutil.Process(service.pid)])
    engine_bytes = memory_bytes([head, *head.children(recursive=True)])
    alone, actor = Row(name="subprocess: first line"), Row(name="bare detached actor: first line")
    line, end = Row(name="job: first line over HTTP"), Row(name="job: SUCCEEDED")
    with Client(service.address) as client:
        package = stage_folder(folder, staging=client.service()["bucket"])
        for number in range(-1, num_runs):
            taken = (
                run_alone(program),
                run_in_actor(ray, program, name=f"bare_{number}"),
                *run_as_job(client, package, name=f"job_{number + 1}"),
            )
            if number >= 0:
                for row, seconds in zip((alone, actor, line, end), taken, strict=True):
                    row.seconds.append(seconds)
    ray.shutdown()
    console.print(f"idle memory: service {service_bytes / 2**20:.0f} MiB, engine {engine_bytes / 2**20:.0f} MiB (PSS)")
    return [alone, actor, line, end]


def show(rows: list[Row]) -> None:
    """Prints the medians and ranges."""
    table = Table("seconds", "median", "least", "most", box=None, pad_edge=False)
    for row in rows:
        values = statistics.median(row.seconds), min(row.seconds), max(row.seconds)
        table.add_row(row.name, *(f"{value:.2f}" for value in values))
    console.print(table)


def hardware() -> str:
    """Says what the figures were measured on."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description="Measure the service on this machine.")
    parser.add_argument("--runs", type=int, default=7, help="how many times each way")
    num_runs = parser.parse_args().runs
    console.print(f"{hardware()}; {num_runs} runs of each, in turn")
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        home = Home(path=Path(folder) / "home")
        settings = Settings(home=home, bucket=str(home.bucket))
        try:
            started = time.perf_counter()
            running = up(settings)
            console.print(f"lockstep up: {time.perf_counter() - started:.2f} s")
            show(measure(running, home, num_runs=num_runs))
        finally:
            started = time.perf_counter()
            down(settings, cancel=True, progress=lambda _text: None)
        console.print(f"lockstep down: {time.perf_counter() - started:.2f} s")


if __name__ == "__main__":
    main()
