"""What the service adds between a submission and a program's first line.

Four ways to start the same program, one that prints a line, taking turns so that a busy moment hits all of them:

- by `subprocess`, with nothing around it: the floor;
- by a bare detached Ray actor on a Ray of its own, as Ray starts one, which starts the program and hands its first line
  back: what one would write by hand in ten lines, without queue, records, log, usage or stop;
- as a job of a service where nothing happened for some seconds: from the request to the moment when its first line can
  be read over HTTP, and to the moment when the job is SUCCEEDED;
- as another job, right after that one: what the engine keeps ready for a job is then not ready again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, final

import psutil
from harness import columns
from harness.machine import pss_mib
from harness.results import Result, figure_results

from lockstep.client import Client
from lockstep.clusters.ray.head import EmbeddedHead
from workloads.surroundings import OVER, TIMEOUT_S, running_service, wait

PAUSE_S: Final = 6.0
"""Between two rounds: longer than the engine takes to have processes ready again."""
PROGRAM: Final = "print('first', flush=True)\n"


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
    wait(lambda: client.job(name)["state"] in OVER)
    return to_line, time.perf_counter() - started


def start_ray(folder: Path) -> Any:
    """Starts a Ray of this process's own, with Ray's own settings; returns the module."""
    import ray

    ray.init(
        namespace="benchmark",
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=str(folder),
    )
    return ray


def measure(*, num_rounds: int) -> list[Result]:
    """Runs all ways in turn, once unmeasured and then `num_rounds` times, and shows what each took."""
    with running_service() as service:
        package = service.stage("first", PROGRAM)
        program = service.folder / "first" / "first.py"
        record = EmbeddedHead(service.home).find()
        assert record is not None
        head = psutil.Process(record.pid)
        memory_mib = {
            "service": ("MiB (PSS)", pss_mib([service.pid])),
            "engine": ("MiB (PSS)", pss_mib([head.pid, *(one.pid for one in head.children(recursive=True))])),
        }
        names = ("subprocess: first line", "bare detached actor: first line")
        names += ("job: first line over HTTP", "job: SUCCEEDED")
        names += ("job right after another: first line over HTTP", "job right after another: SUCCEEDED")
        found: dict[str, list[float]] = {name: [] for name in names}
        with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder, service.client() as client:
            ray = start_ray(Path(folder))
            for number in range(-1, num_rounds):
                time.sleep(PAUSE_S)
                taken = (
                    run_alone(program),
                    run_in_actor(ray, program, name=f"bare_{number}"),
                    *run_as_job(client, package, name=f"job_{number + 1}"),
                    *run_as_job(client, package, name=f"next_{number + 1}"),
                )
                if number >= 0:
                    for name, seconds in zip(names, taken, strict=True):
                        found[name].append(seconds)
            ray.shutdown()
    memory = figure_results("idle memory", memory_mib)
    columns.show_figures(memory)
    results = [Result(case="first line", side=name, unit="seconds", values=values) for name, values in found.items()]
    columns.show_results(results, {"seconds": columns.side, "median (least to most)": columns.values()})
    return [*memory, *results]
