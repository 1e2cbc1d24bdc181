"""What others see of the API meanwhile: ``python -m workloads.probes HOME JOB`` asks for a job and the list of jobs.

A process of its own, so that no other part of the benchmark delays what it measures. It asks until its standard input
ends, and then prints the seconds of each request as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from harness.tables import Timings

from lockstep.client import Client
from lockstep.home import Home

HERE: Final = Path(__file__).resolve().parent.parent
PAUSE_S: Final = 0.05


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module of this package; `module_environment` belongs to it."""
    return [sys.executable, "-m", f"workloads.{module}", *arguments]


def module_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


@contextmanager
def probing(home: Home, job: str) -> Iterator[list[Timings]]:
    """Asks for as long as the context lasts; then the list that it gave holds what the requests took."""
    timings: list[Timings] = []
    command = module_command("probes", str(home.path), job)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=module_environment()
    ) as process:
        try:
            yield timings
        finally:
            said, _ = process.communicate(timeout=60)
    for name, seconds in json.loads(said).items():
        timings.append(Timings(name=name, seconds=seconds))


def main() -> None:
    folder, job = sys.argv[1:]
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    taken: dict[str, list[float]] = {"GET of the job": [], "GET of the list of jobs": []}
    with Client.from_home(Home(path=Path(folder))) as client:
        requests = (lambda: client.job(job), client.job_page)
        while not ended.wait(PAUSE_S):
            for seconds, request in zip(taken.values(), requests, strict=True):
                started = time.perf_counter()
                request()
                seconds.append(time.perf_counter() - started)
    json.dump(taken, sys.stdout)


if __name__ == "__main__":
    main()
