"""Clients of a service that read, each every five seconds: ``python -m workloads.readers ORDER`` (JSON).

Prints the seconds that each request took, by what was requested, as JSON. The clients begin once all of them have
connected; it prints that time, too.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from harness.protocol import read_order, say

from lockstep.client import Client, find_service
from lockstep.home import Home

INTERVAL_S: Final = 5.0
OPENING_S: Final = 120.0
PAGE_SIZE: Final = 20


def requests_of(client: Client, *, choose: random.Random, num_queued: int) -> dict[str, Callable[[], Any]]:
    """Returns what a client requests, by its name."""

    def of_state(state: str) -> str:
        found = client.job_page(filter_text=f"state:{state}", size=PAGE_SIZE)["jobs"]
        return choose.choice(found)["jobId"]

    running = of_state("RUNNING")
    return {
        "the first page of jobs (20)": client.job_page,
        "20 jobs with the filter `state:RUNNING`": lambda: client.job_page(filter_text="state:RUNNING", size=PAGE_SIZE),
        "20 jobs with the filter `labels.owner=user_07`": lambda: client.job_page(
            filter_text="labels.owner=user_07", size=PAGE_SIZE
        ),
        "a running job, with its replicas": lambda: client.job(running),
        "a queued job, with what it waits for": lambda: client.job(f"waits_{choose.randrange(num_queued):05d}"),
        "the events of a job": lambda: client.job_events(running),
        "the state of the service": client.service,
    }


def main() -> None:
    """Runs the clients until the time is over."""
    order = read_order()
    found = find_service(Home(path=Path(order["home"])))
    assert found is not None
    seconds: dict[str, list[float]] = defaultdict(list)
    errors: list[str] = []
    began_time_s: list[float] = []
    lock = threading.Lock()
    opened = threading.Barrier(order["clients"], action=lambda: began_time_s.append(time.time()))

    def read(number: int) -> None:
        choose = random.Random(number)  # noqa: S311
        with Client(found.address) as client:
            try:
                requests = list(requests_of(client, choose=choose, num_queued=order["queued"]).items())
            except Exception:
                opened.abort()
                raise
            opened.wait(OPENING_S)  # a hundred clients take a processor for seconds to begin
            time.sleep(INTERVAL_S * number / order["clients"])
            end = time.monotonic() + order["seconds"]
            while time.monotonic() < end:
                name, request = choose.choice(requests)
                started = time.perf_counter()
                try:
                    request()
                except Exception as error:
                    with lock:
                        errors.append(f"{name}: {type(error).__name__}: {error}")
                took_s = time.perf_counter() - started
                with lock:
                    seconds[name].append(took_s)
                time.sleep(max(0.0, INTERVAL_S - took_s))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(order["clients"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if opened.broken:
        raise SystemExit("a client could not begin")
    say({"seconds": seconds, "errors": errors, "began_time_s": began_time_s[0]})


if __name__ == "__main__":
    main()
