"""A service with 10,000 queued jobs, 1,000 running replicas, 100 clients that read, and a webhook for each job.

The engine is simulated (`workloads.simulated_engine`); the service is the real one, in a process of its own. Jobs end
and others start all the time, and a new one is submitted for each that starts, over HTTP. Each client requests
something every five seconds, as an open page of the console does. Four of the operator's webhooks are notified of all
changes of state, and each job has a webhook of its own.

Before that, as many jobs as have left the queue are submitted in a row, while the first messages are delivered.

The targets: a pass of the controller below a second, the 99th percentile of reads below 100 ms, and memory that does
not grow while as many jobs start and end as in an hour of jobs of ten minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, final

import psutil
from harness import columns
from harness.machine import processor_s
from harness.protocol import MARK
from harness.results import Result, figure_results, timing_results
from harness.tables import console, percentile
from sqlalchemy import Engine, text

from lockstep.client import Client, RunningService, find_service
from lockstep.clusters import EngineChoice, write_choice
from lockstep.home import Home
from lockstep.jobs.input.documents import parse_job
from lockstep.jobs.running.states import JobState
from lockstep.service.control.job_urls import output_urls
from lockstep.service.lifecycle import service_command
from lockstep.service.notifications.webhooks import seal_webhooks
from lockstep.service.security.vault import Vault
from lockstep.service.settings import Settings
from lockstep.service.store import JobStore, SecretStore
from lockstep.submission.packing import stage_folder
from workloads.history import connect_fast
from workloads.simulated_engine import MACHINE_TYPE, NODES_VARIABLE, PASSES, SIMULATED
from workloads.surroundings import wait

CASE: Final = "at scale"
PROJECT: Final = "local"
MAX_REPLICAS: Final = 8
NUM_HOOKS_OF_ALL: Final = 4
"""Webhooks of the operator that are notified of all jobs. The others are those of other projects."""
OWNERS: Final = 20
SPREAD: Final = (5**0.5 - 1) / 2
"""Multiples of the golden ratio are spread evenly, so jobs that start together end one after the other."""
SUBMIT_POLL_S: Final = 0.5
SETTLED_S: Final = 3.0
"""How late messages to webhooks are when those of the first starts are over."""
NUM_SAMPLES: Final = 80
ENDING_S: Final = 30.0


@final
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured.

    Attributes:
        num_queued: jobs that wait, at any time.
        num_nodes: machines, each for one replica.
        num_clients: clients that read.
        num_hooks: webhooks of the operator.
        run_s: how long a job runs, in seconds: from this to twice as long.
        seconds: how long is measured, after all machines are in use.
    """

    num_queued: int
    num_nodes: int
    num_clients: int
    num_hooks: int
    run_s: float
    seconds: float


WHOLE: Final = Sizes(num_queued=10_000, num_nodes=1_000, num_clients=100, num_hooks=32, run_s=100.0, seconds=900.0)
SMALL: Final = Sizes(num_queued=200, num_nodes=40, num_clients=10, num_hooks=2, run_s=3.0, seconds=10.0)


@final
@dataclass(kw_only=True)
class Receiver:
    """Counts the messages that webhooks receive.

    Attributes:
        counts: the messages, by the path of the webhook.
        late: for how many seconds each message's event was not delivered.
    """

    counts: Counter[str] = field(default_factory=Counter[str])
    late: list[float] = field(default_factory=list)
    url: str = ""

    def clear(self) -> None:
        """Begins to count anew."""
        self.counts.clear()
        self.late.clear()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receives messages within the block."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["content-length"])))
                sent_s = time.mktime(time.strptime(message["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
                receiver.late.append(time.time() - sent_s)
                receiver.counts[self.path] += 1
                self.send_response(204)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def document(number: int, *, run_s: float, hook: str, package: str) -> dict[str, Any]:
    """Returns one job's request: of 1 to 8 replicas, with a webhook of its own."""
    num_workers = number % MAX_REPLICAS
    workers: dict[str, Any] = {"workerType": MACHINE_TYPE, "workerCount": str(num_workers)} if num_workers else {}
    return {
        "jobId": f"waits_{number:05d}",
        "labels": {"owner": f"user_{number % OWNERS:02d}", "run": f"run_{number}"},
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": MACHINE_TYPE,
            **workers,
            "pythonModule": "trainer.task",
            "packageUris": [package],
            "args": ["--epochs=10", "--batch-size=128", "--seconds", f"{run_s * (1 + number * SPREAD % 1):.1f}"],
            "scheduling": {"maxRunningTime": "86400s"},
            "lockstep": {"webhooks": [{"url": f"{hook}/job"}]},
        },
    }


def write_queue(settings: Settings, sizes: Sizes, *, hook: str, package: str, database: Engine) -> None:
    """Writes the queued jobs into the service's database, before it starts."""
    store = JobStore(database)
    vault = Vault(store=SecretStore(database), key_path=settings.home.secret_key)
    for number in range(sizes.num_queued):
        asked = document(number, run_s=sizes.run_s, hook=hook, package=package)
        request = parse_job(asked, source="the queue")
        store.create(
            project=PROJECT,
            job_id=request.job_id,
            training_input=request.training_input.redacted().to_json(),
            labels=request.labels,
            simulated=False,
            outputs=output_urls(request, bucket=settings.bucket, project=PROJECT),
            webhooks=seal_webhooks(request.training_input.lockstep.webhooks, project=PROJECT, vault=vault),
        )
    with database.begin() as connection:  # they were notified that the jobs are queued
        connection.execute(text("UPDATE webhooks SET seq = event_seq"))


@contextmanager
def simulated_service(settings: Settings, *, num_nodes: int) -> Iterator[RunningService]:
    """Runs a service on the simulated engine within the block."""
    arguments = service_command(settings)[4:]  # without the interpreter and the module
    environment = {
        **os.environ,
        NODES_VARIABLE: str(num_nodes),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
    }
    with settings.home.service_log.open("ab") as log:
        command = [sys.executable, "-m", "workloads.simulated_engine", *arguments]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait(lambda: process.poll() is not None or find_service(settings.home) is not None)
        running = find_service(settings.home)
        if running is None:
            raise RuntimeError(settings.home.service_log.read_text()[-2000:])
        yield running
    finally:
        process.terminate()
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@final
class Submitter:
    """Submits a job for each that has left the queue.

    Args:
        client: the service's client.
        jobs: the service's jobs.
        sizes: how many are to wait.
        hook: the URL of the jobs' webhooks.
        package: the URL of their code.
    """

    def __init__(self, client: Client, jobs: JobStore, sizes: Sizes, *, hook: str, package: str) -> None:
        self._client, self._jobs, self._sizes, self._hook, self._package = client, jobs, sizes, hook, package
        self.seconds: list[float] = []
        self.number = sizes.num_queued

    def run(self, stop: threading.Event) -> None:
        """Submits jobs until `stop` is set."""
        while not stop.wait(SUBMIT_POLL_S):
            self.fill()

    def fill(self) -> None:
        """Submits as many jobs as have left the queue."""
        for _ in range(self._sizes.num_queued - number_of(self._jobs, JobState.QUEUED)):
            asked = document(self.number, run_s=self._sizes.run_s, hook=self._hook, package=self._package)
            started = time.perf_counter()
            self._client.create_job(asked)
            self.seconds.append(time.perf_counter() - started)
            self.number += 1


def number_of(jobs: JobStore, state: JobState) -> int:
    """Returns how many jobs are in a state."""
    return jobs.count_by_state().get((PROJECT, state), 0)


def num_running_replicas(jobs: JobStore) -> int:
    """Returns how many replicas run."""
    return sum(len(job.replicas) for job in jobs.running())


def run_readers(home: Home, sizes: Sizes) -> dict[str, Any]:
    """Runs the clients in a process of their own; returns what they say."""
    order = {
        "home": str(home.path),
        "clients": sizes.num_clients,
        "seconds": sizes.seconds,
        "queued": sizes.num_queued,
    }
    command = [sys.executable, "-m", "workloads.readers", json.dumps(order)]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=sizes.seconds + 120,
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(MARK))
    return json.loads(line.removeprefix(MARK))


def measure(sizes: Sizes) -> list[Result]:
    """Measures, and shows the figures."""
    receiver = Receiver()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder, receiver.listening():
        home = Home(path=Path(folder) / "home")
        home.create()
        hooks = {
            f"hook_{number}": {
                "url": f"{receiver.url}/{number}",
                **({} if number < NUM_HOOKS_OF_ALL else {"projects": [f"team_{number}"]}),
            }
            for number in range(sizes.num_hooks)
        }
        path = Path(folder) / "webhooks.yaml"
        path.write_text(json.dumps({"webhooks": hooks}))
        settings = Settings(
            home=home,
            bucket=str(home.bucket),
            webhooks=path,
            allow_webhooks_to=("127.0.0.1",),
            engine=EngineChoice(name=SIMULATED),
        )
        write_choice(home, settings.engine)
        code = Path(folder) / "code"
        code.mkdir()
        (code / "trainer.py").write_text("print('trained')\n")
        package = stage_folder(code, staging=settings.bucket)
        started = time.perf_counter()
        engine = connect_fast(settings)
        write_queue(settings, sizes, hook=receiver.url, package=package, database=engine)
        console.print(f"{sizes.num_queued:,} queued jobs written in {time.perf_counter() - started:.1f} s")
        with simulated_service(settings, num_nodes=sizes.num_nodes) as running, Client(running.address) as client:
            submitter = Submitter(client, JobStore(engine), sizes, hook=receiver.url, package=package)
            results = measure_running(running, submitter, sizes, home=home, database=engine, receiver=receiver)
        engine.dispose()
    return results


def measure_running(
    running: RunningService, submitter: Submitter, sizes: Sizes, *, home: Home, database: Engine, receiver: Receiver
) -> list[Result]:
    """Waits until all machines are in use, measures, and shows the figures."""
    jobs, started = JobStore(database), time.perf_counter()
    wait(lambda: num_running_replicas(jobs) > sizes.num_nodes - MAX_REPLICAS, timeout_s=300, poll_s=0.5)
    console.print(f"all machines in use after {time.perf_counter() - started:.1f} s")
    started_time_s = time.time()
    submitter.fill()
    at_once, submitter.seconds = submitter.seconds, []
    passes_at_once = passes_of(home, since_s=started_time_s)
    wait(lambda: bool(receiver.late) and receiver.late[-1] < SETTLED_S, timeout_s=300)
    console.print(f"all webhooks notified of it after {time.perf_counter() - started:.1f} s")
    receiver.clear()
    stop = threading.Event()
    samples: list[float] = []

    def sample() -> None:
        while not stop.wait(sizes.seconds / NUM_SAMPLES):
            samples.append(psutil.Process(running.pid).memory_info().rss / 2**20)

    threads = [threading.Thread(target=submitter.run, args=(stop,)), threading.Thread(target=sample)]
    processor_before_s = processor_s(running.pid)
    ended_before = number_of(jobs, JobState.SUCCEEDED)
    for thread in threads:
        thread.start()
    try:
        read = run_readers(home, sizes)
        passes = passes_of(home, since_s=read["began_time_s"])
        cores = (processor_s(running.pid) - processor_before_s) / sizes.seconds
        num_ended = number_of(jobs, JobState.SUCCEEDED) - ended_before
        replicas = num_running_replicas(jobs)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    reads: dict[str, list[float]] = dict(sorted(read["seconds"].items()))
    every = [took_s for taken in reads.values() for took_s in taken]
    timings = {
        **reads,
        "all reads": every,
        "a submission": submitter.seconds,
        "a pass of the controller": passes,
        "before: a submission of many in a row": at_once,
        "before: a pass meanwhile": passes_at_once,
    }
    taken = timing_results(CASE, {name: seconds for name, seconds in timings.items() if seconds})
    columns.show_timings(taken)
    quarter = max(1, len(samples) // 4)
    figures = figure_results(
        CASE,
        {
            "jobs that ended": ("jobs", num_ended),
            "replicas running at the end": ("replicas", replicas),
            "processors of the service": ("cores", cores),
            "memory (RSS) in the first quarter, median": ("MiB", percentile(samples[:quarter], 0.5)),
            "memory (RSS) in the last quarter, median": ("MiB", percentile(samples[-quarter:], 0.5)),
            "failed reads": ("reads", len(read["errors"])),
            "messages to webhooks": ("messages", receiver.counts.total()),
            "from the event's second to the message, p50": ("s", percentile(receiver.late, 0.5)),
            "from the event's second to the message, p99": ("s", percentile(receiver.late, 0.99)),
        },
    )
    columns.show_figures(figures)
    for error in read["errors"][:5]:
        console.print(error)
    return [*taken, *figures]


def passes_of(home: Home, *, since_s: float) -> list[float]:
    """Returns the duration of each pass that began after a time, in seconds."""
    passes = [tuple(map(float, line.split())) for line in (home.path / PASSES).read_text().splitlines()]
    return [took_s for ended_s, took_s in passes if ended_s - took_s >= since_s]
