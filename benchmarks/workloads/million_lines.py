"""A job that prints a million numbered lines, and one whose four replicas print a quarter of a million each.

Read over HTTP while it runs, as `lockstep logs -f` reads; every line has to come once, in its replica's order. Beside
it the same program's output into a pipe that is read and dropped, and into a file.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from harness import columns
from harness.machine import peak_mib, processor_s
from harness.results import Result, figure_results, timing_results

from lockstep.cli.stream import followed
from workloads.probes import probing
from workloads.surroundings import Surroundings, runners_of, running_service

READ_BYTES: Final = 64 * 1024
PROGRAM: Final = """\
import sys

for number in range(int(sys.argv[1])):
    print(f"{number:07d} of many lines, each about as long as a line of a training log: loss 0.1234")
"""
NUM_REPLICAS: Final = 4


def into_pipe(command: list[str], environment: dict[str, str]) -> float:
    """Returns the seconds of the program while somebody reads its output and drops it."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, bufsize=0) as process:
        assert process.stdout is not None
        while process.stdout.read(READ_BYTES):
            pass
    return time.perf_counter() - started


def into_file(command: list[str], environment: dict[str, str], path: Path) -> float:
    """Returns the seconds of the program that writes into a file."""
    started = time.perf_counter()
    with path.open("wb") as file:
        subprocess.run(command, stdout=file, env=environment, check=True)
    return time.perf_counter() - started


def request(name: str, package: str, *, num_replicas: int, num_lines: int) -> dict[str, Any]:
    """Returns the job."""
    workers = {"workerType": "n1-standard-4", "workerCount": str(num_replicas - 1)} if num_replicas > 1 else {}
    return {
        "jobId": name,
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-4",
            **workers,
            "pythonModule": "talks",
            "packageUris": [package],
            "args": [str(num_lines // num_replicas)],
        },
    }


def check(entries: list[dict[str, Any]], counts: Counter[str]) -> None:
    """Counts a page's lines, each of which has to be the next one of its replica."""
    for entry in entries:
        replica = entry["resource"]["labels"]["task_name"]
        number = int(entry["textPayload"][:7])
        assert number == counts[replica], (replica, number, counts[replica])
        counts[replica] += 1


def run(service: Surroundings, package: str, *, num_replicas: int, num_lines: int) -> list[Result]:
    """Runs and reads one job, and shows what it took."""
    name = f"talks_{num_replicas}"
    counts: Counter[str] = Counter()
    peaks: dict[int, float] = {}
    service_before_s = processor_s(service.pid)
    with service.client() as client, probing(service.home, "talks_before", logs=service.folder) as timings:
        client.create_job(request(name, package, num_replicas=num_replicas, num_lines=num_lines))
        job: dict[str, Any] = {}
        for page, job in followed(client, name):
            check(page["entries"], counts)
            for pid in runners_of(job) if job["state"] == "RUNNING" else ():
                peaks[pid] = max(peak_mib(pid), peaks.get(pid, 0.0))
        read_time_s = time.time()
    assert job["state"] == "SUCCEEDED", job
    assert list(counts.values()) == [num_lines // num_replicas] * num_replicas, counts
    replicas = job["lockstep"]["replicas"]
    started_s = min(replica["startedTime"] for replica in replicas)
    ended_s = max(replica["endedTime"] for replica in replicas)
    case = f"{num_replicas} x {num_lines // num_replicas:,} lines"
    others = timing_results(f"others meanwhile, {case}", timings)
    columns.show_timings(others)
    figures = {
        "of the programs": ("s", ended_s - started_s),
        "until the last line was read over HTTP": ("s", read_time_s - started_s),
        "lines a second, printed": ("", num_lines / (ended_s - started_s)),
        "lines a second, read over HTTP": ("", num_lines / (read_time_s - started_s)),
        "processor time of the service": ("s", processor_s(service.pid) - service_before_s),
        "peak memory of the service": ("MiB", peak_mib(service.pid)),
        **({"peak memory of a runner": ("MiB", max(peaks.values()))} if peaks else {}),
    }
    results = figure_results(case, figures)
    columns.show_figures(results)
    return [*others, *results]


def measure(*, num_lines: int) -> list[Result]:
    """Runs both jobs and the program by itself, and shows what they took."""
    with running_service() as service:
        package = service.stage("talks", PROGRAM)
        program = service.folder / "talks" / "talks.py"
        command = [sys.executable, str(program), str(num_lines)]
        environment = {"PYTHONUNBUFFERED": "1"}  # as a job's program has it
        alone = {
            "the same program into a pipe that is read and dropped": ("s", into_pipe(command, environment)),
            "the same program into a file": ("s", into_file(command, environment, service.folder / "lines")),
        }
        results = figure_results(f"{num_lines:,} lines", alone)
        columns.show_figures(results)
        with service.client() as client:
            first = request("talks_before", package, num_replicas=1, num_lines=1)
            client.create_job(first)
            for _ in followed(client, "talks_before"):
                pass
        for num_replicas in (1, NUM_REPLICAS):
            results += run(service, package, num_replicas=num_replicas, num_lines=num_lines)
    return results
