"""Fifty followers of one job that prints 50 lines a second for half a minute.

Each follows as `lockstep logs -f` does, by the same function. They are threads of a few processes, ``python -m
workloads.followers ORDER``, so that the clients are not what is measured. A line's delay is from the
time that its entry has, when its runner read it, to the moment when a follower has its page. The program begins when
every follower has asked once.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Barrier
from typing import Any, Final, final

from harness import columns
from harness.machine import processor_s
from harness.protocol import read_order, say
from harness.results import Result, figure_results, timing_results
from harness.sides import SideSpec, running

from lockstep.cli.stream import followed
from lockstep.client import Client
from lockstep.home import Home
from workloads.probes import probing
from workloads.surroundings import running_service, wait

PROGRAM: Final = """\
import os
import sys
import time

num_lines, rate, sign = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
while not os.path.exists(sign):
    time.sleep(0.05)
began = time.monotonic()
for number in range(num_lines):
    time.sleep(max(0.0, began + number / rate - time.monotonic()))
    print(number)
"""
RATE: Final = 50.0
FOLLOW_TIMEOUT_S: Final = 300.0


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    num_followers: int
    num_processes: int
    num_lines: int


WHOLE: Final = Sizes(num_followers=50, num_processes=5, num_lines=1500)
SMALL: Final = Sizes(num_followers=4, num_processes=2, num_lines=50)


def follow(home: Home, job: str, *, ready: Barrier) -> dict[str, list[float]]:
    """Follows a job to its end; returns the numbers of its lines, and their delays in seconds."""
    numbers: list[float] = []
    delays: list[float] = []
    with Client.from_home(home) as client:
        pages = followed(client, job)
        next(pages)
        ready.wait(FOLLOW_TIMEOUT_S)
        for page, _ in pages:
            now_s = time.time()
            for entry in page["entries"]:
                numbers.append(int(entry["textPayload"]))
                delays.append(now_s - datetime.fromisoformat(entry["timestamp"]).timestamp())
    return {"numbers": numbers, "delays": delays}


def main() -> None:
    order = read_order()
    home, num_followers = Home(path=Path(order["home"])), order["num_followers"]
    ready = Barrier(num_followers, action=lambda: say({}))
    with ThreadPoolExecutor(num_followers) as pool:
        found = pool.map(lambda _: follow(home, order["job"], ready=ready), range(num_followers))
        say({"seen": list(found)})


def measure(sizes: Sizes) -> list[Result]:
    """Runs the job with its followers, and shows what they saw."""
    name = "talks"
    with running_service() as service, service.client() as client, ExitStack() as stack:
        package = service.stage("ticks", PROGRAM)
        asked: dict[str, Any] = {"scaleTier": "BASIC", "pythonModule": "ticks", "packageUris": [package]}
        sign = service.folder / "begin"
        asked["args"] = [str(sizes.num_lines), str(RATE), str(sign)]
        client.create_job({"jobId": name, "trainingInput": asked})
        wait(lambda: client.job(name)["state"] == "RUNNING")
        order = {"home": str(service.home.path), "job": name}
        order |= {"num_followers": sizes.num_followers // sizes.num_processes}
        spec = SideSpec(title="followers", module="workloads.followers", order=order)
        sides = [
            stack.enter_context(running(spec, log=service.folder / f"followers-{number}.log"))
            for number in range(sizes.num_processes)
        ]
        for side in sides:
            side.hear()
        before_s, started = processor_s(service.pid), time.perf_counter()
        with probing(service.home, name, logs=service.folder) as timings:
            sign.touch()
            seen = [follower for side in sides for follower in side.hear()["seen"]]
            seconds = time.perf_counter() - started
        used_s = processor_s(service.pid) - before_s
        assert client.job(name)["state"] == "SUCCEEDED"
    assert len(seen) == sizes.num_followers
    for follower in seen:
        assert follower["numbers"] == list(range(sizes.num_lines)), follower["numbers"]
    delays = [delay for follower in seen for delay in follower["delays"]]
    taken = timing_results("followers", {f"a line's delay, {sizes.num_followers} followers": delays, **timings})
    columns.show_timings(taken)
    found = {
        "lines that each of them got, each once": ("", sizes.num_lines),
        "processor time of the service": ("s a second", used_s / seconds),
    }
    figures = figure_results("followers", found)
    columns.show_figures(figures)
    return [*taken, *figures]


if __name__ == "__main__":
    main()
