"""What the service needs refuses for a while: jobs go on, it says so, and all that waited is there afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from tests.service.postgres import PASSWORD, Server

from lockstep.home import Home
from lockstep.jobs.notifications.webhooks import Webhook
from lockstep.jobs.running.states import JobState
from lockstep.runner.run import LOG_CLOSE_S
from lockstep.service.control.leftovers import LeftoverUploader
from lockstep.service.problems import Part
from lockstep.service.settings import Settings
from lockstep.service.store import JobRecord, WebhookStore, database, open_database
from lockstep.service.store.bounded_connection import BoundedConnection
from lockstep.service.telemetry.logs import Cursor, read_log
from lockstep.testing.bench import Bench, open_bench
from lockstep.testing.served import Served

TIMEOUT_S = 30.0
Serve = Callable[..., Served]
JOBS = "/v1/projects/local/jobs"
BODY = {"jobId": "asked_for", "trainingInput": {"pythonModule": "train"}}
HOLD_THE_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def wait(condition: Callable[[], Any]) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def wait_for_the_program(bench: Bench, job: JobRecord) -> float:
    """Waits until a job's program has ended, whoever could hear of it; returns when it did."""
    gang = f"{job.uid}-0"
    wait(lambda: (found := bench.cluster.observe(gang)) is not None and found.end is not None)
    status = bench.cluster.observe(gang)
    assert status is not None
    ended_time_s = status.replicas[0].ended_time_s
    assert ended_time_s is not None
    return ended_time_s


def check_refused(served: Served) -> None:
    """A request that has to write is told so in Google's form, and that it may be tried again."""
    answer = served.http.post(JOBS, json=BODY, timeout=TIMEOUT_S)
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (503, "UNAVAILABLE")
    assert "try again" in error["message"]
    assert "INSERT" not in error["message"]


def texts(bench: Bench, job_id: str) -> list[str]:
    page = read_log(bench.job(job_id), cursor=Cursor({}), size=10_000, now_s=time.time())
    assert (page.complete, page.num_missing) == (True, 0)
    return [entry.stored.text for entry in page.entries]


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serves benches, until the test's end."""
    with contextlib.ExitStack() as stack:
        yield lambda bench, **options: stack.enter_context(contextlib.closing(Served(bench, **options)))


@pytest.fixture
def quick_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has SQLite wait for less long."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.2)


def test_a_database_that_somebody_holds(quick_busy: None, bench: Bench, serve: Serve) -> None:
    bench.restart()
    served = serve(bench)
    bench.create("job", "import time; time.sleep(0.5); print('done')")
    job = bench.step_until_state("job", JobState.RUNNING)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, str(bench.home.database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        check_refused(served)
        assert served.http.get(JOBS).status_code == 200, "readers wait for nobody"
        ended_s = wait_for_the_program(bench, job)
        for _ in range(3):
            bench.controller.step()
        assert bench.job("job").state is JobState.RUNNING, "nobody could record its end"
        (problem,) = served.http.get("/v1/service").json()["problems"]
        assert (problem["part"], problem["text"]) == ("database", "database is locked")
        since = problem["since"]
        bench.controller.step()
        assert served.http.get("/v1/service").json()["problems"][0]["since"] == since
    finally:
        holder.communicate()
    job = bench.step_until_over("job")
    assert (job.state, job.end_time_s) == (JobState.SUCCEEDED, ended_s)
    assert served.http.get("/v1/service").json()["problems"] == []
    assert served.http.post(JOBS, json=BODY).status_code == 200


class Proxy:
    """A way to a server that can be cut, blocked or slowed down."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self.is_cut = False
        self.delay_s = 0.0
        self.flows = threading.Event()
        self.flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends all connections and takes none."""
        self.is_cut = True
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Lets everything pass again."""
        self.is_cut = False
        self.delay_s = 0.0
        self.flows.set()

    def close(self) -> None:
        self.mend()
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_cut:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open |= {client, server}
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        with contextlib.suppress(OSError), client, server:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    self.flows.wait(TIMEOUT_S)
                    time.sleep(self.delay_s)
                    other[ready].sendall(data)


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    made = Proxy(postgres.port)
    yield made
    made.close()


@pytest.fixture
def remote(tmp_path: Path, postgres: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench whose database is behind the proxy."""
    monkeypatch.setattr(BoundedConnection, "answer_timeout_s", 1.0)
    home = Home(path=tmp_path)
    settings = Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)
    name = postgres.create_database()
    open_database(postgres.url(name), password=PASSWORD).dispose()
    engine = open_database(postgres.url(name, port=proxy.port), password=PASSWORD)
    with open_bench(settings, database=engine) as made:
        yield made


def engine_of(bench: Bench) -> Engine:
    return bench.store._engine


def disturb(proxy: Proxy, how: str) -> None:
    if how == "cut":
        proxy.cut()
    else:
        proxy.flows.clear()


@pytest.mark.parametrize("how", ["cut", pytest.param("silent", marks=pytest.mark.heavy)])
def test_a_database_that_is_gone_for_a_while(
    remote: Bench, proxy: Proxy, how: str, serve: Callable[..., Served]
) -> None:
    operators = {"ops": (Webhook(name="ops", url="http://127.0.0.1:9/"), None)}
    served = serve(remote, database=engine_of(remote), operators=operators)
    store = WebhookStore(engine_of(remote))
    store.register("ops", now_s=0.0)
    store.save(replace(store.of_operator()[0], problem="it answered 503", since_s=1.0))
    webhooks = served.http.get("/v1/service").json()["webhooks"]
    assert webhooks == [{"name": "ops", "place": "http://127.0.0.1:9", "problem": "it answered 503", "since": 1.0}]
    remote.create("job", "import time; time.sleep(0.5); print('done')")
    job = remote.step_until_state("job", JobState.RUNNING)
    disturb(proxy, how)
    check_refused(served)
    ended_s = wait_for_the_program(remote, job)
    remote.controller.step()
    answer = served.http.get("/v1/service", timeout=TIMEOUT_S).json()
    assert [problem["part"] for problem in answer["problems"]] == ["database"]
    assert answer["jobs"] is None
    assert answer["webhooks"] == webhooks, "as they were"
    assert PASSWORD not in str(answer)
    proxy.mend()
    job = remote.step_until_over("job")
    assert (job.state, job.end_time_s) == (JobState.SUCCEEDED, ended_s)
    assert [event.state for event in remote.store.events(job.uid)] == ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED"]
    assert remote.problems.all() == []
    assert served.http.post(JOBS, json=BODY).status_code == 200


@pytest.mark.heavy
def test_a_slow_database(remote: Bench, proxy: Proxy) -> None:
    proxy.delay_s = 0.03
    remote.create("job", "print('done')")
    assert remote.step_until_over("job").state is JobState.SUCCEEDED
    assert remote.problems.all() == []


@pytest.fixture
def cleaning(small_disk: Path) -> Iterator[contextlib.ExitStack]:
    """Ends what a test has on the small disk before that goes."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here: it takes root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Fills a disk to the last byte."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def test_a_full_disk(quick_busy: None, small_disk: Path, serve: Serve, cleaning: contextlib.ExitStack) -> None:
    home = Home(path=small_disk)
    settings = Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)
    bench = cleaning.enter_context(open_bench(settings))
    served = serve(bench)
    uploader = LeftoverUploader(home.spool, problems=bench.problems)
    script = "import time\nfor i in range(100):\n  print('line', i, 'x' * 200, flush=True); time.sleep(0.02)"
    bench.create("job", script)
    job = bench.step_until_state("job", JobState.RUNNING)
    filler = fill(small_disk)
    check_refused(served)
    assert served.http.get(JOBS).status_code == 200
    job = bench.step_until("job", lambda job: bool(job.replicas) and job.replicas[0].status.pid is not None)
    pid = job.replicas[0].status.pid
    wait(lambda: not _runs(pid))  # its program has ended; its last lines have no place yet
    given_up = time.monotonic() + LOG_CLOSE_S + 1.0  # by then a runner has stopped trying in its ordinary way
    while time.monotonic() < given_up:
        bench.controller.step()
        time.sleep(0.1)
    uploader.step()
    assert Part.DISK in [problem.part for problem in bench.problems.all()]
    (disk,) = [problem for problem in served.http.get("/v1/service").json()["problems"] if problem["part"] == "disk"]
    assert str(small_disk) in disk["text"]
    filler.unlink()
    ended = bench.step_until_over("job")
    uploader.step()
    assert ended.state is JobState.SUCCEEDED
    assert texts(bench, "job") == [f"line {i} {'x' * 200}" for i in range(100)]
    assert bench.problems.all() == []
    assert job.uid == ended.uid
    assert served.http.post(JOBS, json=BODY).status_code == 200


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_bucket_that_refuses_is_said_and_what_waits_for_it_is_counted(
    bench: Bench, serve: Callable[..., Served]
) -> None:
    served = serve(bench)
    uploader = LeftoverUploader(bench.home.spool, problems=bench.problems)
    bench.create("job", "for i in range(50): print(i)")
    logs = bench.home.bucket / "job" / "logs"
    logs.parent.mkdir(parents=True)
    logs.write_text("a file where the log's folder should be")
    ended = bench.step_until_over("job")
    assert ended.state is JobState.SUCCEEDED
    uploader.step()
    (problem,) = served.http.get("/v1/service").json()["problems"]
    assert problem["part"] == "bucket"
    assert str(logs) in problem["text"]
    assert "of logs and metrics" in problem["kept"]
    logs.unlink()
    uploader.step()
    assert texts(bench, "job") == [str(i) for i in range(50)]
    assert served.http.get("/v1/service").json()["problems"] == []
