"""What others see of the API meanwhile: ``python -m workloads.probes ORDER`` asks for a job and the list of jobs.

A process of its own, so that no other part of the benchmark delays what it measures. It asks until a line of standard
input comes, and then says the seconds of each request.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from harness.protocol import read_order, say
from harness.sides import SideSpec, running

from lockstep.client import Client
from lockstep.home import Home

PAUSE_S: Final = 0.05


@contextmanager
def probing(home: Home, job: str, *, logs: Path) -> Iterator[dict[str, list[float]]]:
    """Asks for as long as the context lasts; then what it gave holds what the requests took."""
    timings: dict[str, list[float]] = {}
    order = {"home": str(home.path), "job": job}
    with running(SideSpec(title="probes", module="workloads.probes", order=order), log=logs / "probes.log") as side:
        try:
            yield timings
        finally:
            timings |= side.answer()


def main() -> None:
    order = read_order()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    taken: dict[str, list[float]] = {"GET of the job": [], "GET of the list of jobs": []}
    with Client.from_home(Home(path=Path(order["home"]))) as client:
        requests = (lambda: client.job(order["job"]), client.job_page)
        while not ended.wait(PAUSE_S):
            for seconds, request in zip(taken.values(), requests, strict=True):
                started = time.perf_counter()
                request()
                seconds.append(time.perf_counter() - started)
    say(taken)


if __name__ == "__main__":
    main()
