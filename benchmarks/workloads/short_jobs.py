"""Many short jobs through one service: 200 that print one line each, submitted at once by eight threads.

Each is checked: SUCCEEDED, its one line in its log once, started once (by its events, and by a file that each start of
its program leaves).
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import psutil
from harness import columns
from harness.machine import processor_s
from harness.results import Result, figure_results, timing_results
from harness.tables import console

from lockstep.client import Client
from workloads.surroundings import OVER, running_service, wait

NUM_THREADS: Final = 8
JOB_TIMEOUT_S: Final = 30.0
PROGRAM: Final = """\
import os
import sys

folder, job = sys.argv[1:]
open(os.path.join(folder, f"{job}.{os.getpid()}"), "x").close()
print(f"this is {job}")
"""


def check(client: Client, job: dict[str, Any], *, starts: Counter[str]) -> None:
    """Fails unless a job ran once, well, and printed its line."""
    name = job["jobId"]
    assert job["state"] == "SUCCEEDED", (name, job["state"], job.get("errorMessage"))
    lines = [entry["textPayload"] for entry in client.log_entries(name)]
    assert lines == [f"this is {name}"], (name, lines)
    assert starts[name] == 1, (name, starts[name])
    kinds = Counter(event["kind"] for event in client.job_events(name))
    assert kinds["started"] == kinds["preparing"] == kinds["succeeded"] == 1, (name, kinds)


def phases(events: Sequence[dict[str, Any]]) -> list[float]:
    """Returns the seconds between a job's events."""
    times = [datetime.fromisoformat(event["time"]).timestamp() for event in events]
    return [after - before for before, after in itertools.pairwise(times)]


def busy_s() -> float:
    """Returns the processor time that the whole machine has taken so far."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def measure(*, num_jobs: int) -> list[Result]:
    """Runs the jobs, checks each, and shows what they took."""
    with running_service() as service, service.client() as client:
        package = service.stage("once", PROGRAM)
        starts_folder = service.folder / "starts"
        starts_folder.mkdir()
        names = [f"short_{number:03d}" for number in range(num_jobs)]

        def submit(name: str) -> None:
            client.create_job(
                {
                    "jobId": name,
                    "trainingInput": {
                        "scaleTier": "BASIC",
                        "pythonModule": "once",
                        "packageUris": [package],
                        "args": [str(starts_folder), name],
                    },
                }
            )

        busy_before_s, own_before_s = busy_s(), processor_s(service.pid)
        started = time.perf_counter()
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            list(pool.map(submit, names))
        submitted_s = time.perf_counter() - started

        def is_over() -> bool:
            return not client.jobs(filter_text="NOT (" + " OR ".join(f"state={state}" for state in OVER) + ")", limit=1)

        wait(is_over, timeout_s=JOB_TIMEOUT_S * num_jobs, poll_s=0.25)
        seconds = time.perf_counter() - started
        machine_s, own_s = busy_s() - busy_before_s, processor_s(service.pid) - own_before_s
        starts = Counter(Path(path).stem for path in starts_folder.iterdir())
        jobs = client.jobs(limit=num_jobs)
        assert sorted(job["jobId"] for job in jobs) == names
        for job in jobs:
            check(client, job, starts=starts)
        taken = [phases(client.job_events(name)) for name in names]
    console.print(f"{num_jobs} jobs of one line by {NUM_THREADS} threads: none lost, none twice, each line once")
    figures = {
        "jobs": ("a minute", num_jobs / seconds * 60),
        "for all": ("s", seconds),
        "to accept all": ("s", submitted_s),
        "processor time a job, service": ("s", own_s / num_jobs),
        "processor time a job, everything": ("s", machine_s / num_jobs),
    }
    results = figure_results("short jobs", figures)
    columns.show_figures(results)
    named = zip(("placed to started", "started to recorded end"), list(zip(*taken, strict=True))[1:], strict=True)
    phase_results = timing_results("short jobs", dict(named))
    columns.show_timings(phase_results)
    return [*results, *phase_results]
