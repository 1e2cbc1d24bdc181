"""Callers in a loop while the traffic moves, versions are deleted, and servers are killed: no request is lost.

The service, the controller, the runners and the processes are the real ones. The servers load no model: each answers
with what its version's file says, at once or after a moment, and dies at once when it is told to end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from lockstep.service.prediction import servers as servers_module
from lockstep.service.prediction.deployments import is_ready
from lockstep.service.store import VersionState
from lockstep.submission.packing import stage_folder
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

WAIT_S = 60.0
MODEL = "/v1/projects/local/models/m"

SERVER = '''
"""Answers with what its model's file says. An instance says how many seconds that takes."""
import http.server, json, os, pathlib, sys, threading, time
from lockstep.heartbeat import report_progress
from lockstep.topology import Topology

text = pathlib.Path(next(arg for arg in sys.argv if arg.startswith("--model=")).removeprefix("--model=")).read_text()
token = os.environ["LOCKSTEP_SERVER_TOKEN"]
num_open, lock = 0, threading.Lock()


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        global num_open
        with lock:
            num_open += 1
        try:
            assert self.headers["authorization"] == f"Bearer {token}"
            (delay_s,) = json.loads(self.rfile.read(int(self.headers["content-length"])))["instances"]
            time.sleep(delay_s)
            content = json.dumps({"predictions": [text]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        finally:
            with lock:
                num_open -= 1

    def log_message(self, *_):
        pass


host, _, port = Topology.from_env().synchronous_addresses[0].rpartition(":")
server = http.server.ThreadingHTTPServer((host, int(port)), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
while True:
    report_progress(open=num_open, waiting=0)
    time.sleep(0.1)
'''


class Callers:
    """Threads that request predictions in a loop, from the model without a version's name.

    Args:
        url: the URL of the service.
        token: a key for it.
        delays_s: how long each caller's requests take.
    """

    def __init__(self, url: str, token: str, *, delays_s: tuple[float, ...]) -> None:
        self._url = url
        self._headers = {"authorization": f"Bearer {token}"}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.answered: Counter[str] = Counter()
        self.lost: list[str] = []
        self._threads = [threading.Thread(target=self._call, args=(delay_s,)) for delay_s in delays_s]
        for thread in self._threads:
            thread.start()

    def _call(self, delay_s: float) -> None:
        with httpx.Client(base_url=self._url, headers=self._headers, timeout=WAIT_S) as http:
            while not self._stop.is_set():
                answer = http.post(f"{MODEL}:predict", json={"instances": [delay_s]})
                version = answer.headers.get("x-lockstep-version", "none")
                with self._lock:
                    if answer.status_code == 200 and answer.json() == {"predictions": [f"I am {version}"]}:
                        self.answered[version] += 1
                    else:
                        self.lost.append(f"{answer.status_code}, version {version}: {answer.text}")

    def since_now(self) -> Callable[[str], int]:
        """Returns a function that counts the answers of a version since now."""
        before = Counter(self.answered)
        return lambda version: self.answered[version] - before[version]

    def stop(self) -> None:
        """Stops the callers, and waits for their last answers."""
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()


class Site:
    """A served model whose versions say their names, and the loops that advance them."""

    def __init__(self, bench: Bench, service: Served, path: Path) -> None:
        self.bench = bench
        self.service = service
        self.path = path
        self.models = service.context.models
        (path / "code").mkdir()
        (path / "code" / "naming_server.py").write_text(SERVER)
        self.package = stage_folder(path / "code", staging=str(path / "staging"))
        self.models.create_model(project="local", name="m", description="", labels={})

    def deploy(self, name: str, *, num_servers: int = 1) -> None:
        model = self.path / name / "model.keras"
        model.parent.mkdir()
        model.write_text(f"I am {name}")
        self.models.create_version(
            project="local",
            model="m",
            name=name,
            description="",
            labels={},
            deployment_uri=str(model),
            machine_type="n1-standard-4",
            package_uris=[self.package],
            num_servers=num_servers,
        )
        self.step_until(lambda: self.states()[name] == VersionState.READY)

    def request(self, method: str, path: str, body: object = None) -> None:
        answer = self.service.http.request(method, f"{MODEL}{path}", json=body)
        assert answer.status_code == 200, answer.text

    def split(self, **percents: int) -> None:
        self.request("PATCH", "?updateMask=lockstep.trafficSplit", {"lockstep": {"trafficSplit": percents}})

    def states(self) -> dict[str, VersionState]:
        return {version.name: version.state for version in self.models.list_versions()}

    def ready_pids(self) -> set[int]:
        """Returns the processes of the servers that are ready."""
        servers = [server for server in self.bench.store.servers() if is_ready(server)]
        return {pid for server in servers if (pid := server.replicas[0].status.pid) is not None}

    def step_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "\n".join(map(str, (self.states(), *self.bench.store.servers())))
            self.bench.step()
            self.service.context.deployments.step()
            time.sleep(0.05)


@pytest.fixture
def site(bench: Bench, service: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(servers_module, "SERVER_MODULE", "naming_server")
    return Site(bench, service, tmp_path)


@pytest.fixture
def callers(site: Site) -> Iterator[Callers]:
    """Callers of the model, which has version v1: quick ones, and ones whose requests take seconds."""
    site.deploy("v1")
    token = site.service.http.headers["authorization"].removeprefix("Bearer ")
    made = Callers(site.service.url, token, delays_s=(0.0, 0.0, 0.0, 0.05, 1.0, 4.0))
    yield made
    made.stop()


@pytest.mark.heavy
def test_no_request_is_lost_while_the_default_moves_and_the_old_version_goes(site: Site, callers: Callers) -> None:
    site.step_until(lambda: callers.answered["v1"] > 100)
    site.deploy("v2")
    site.request("POST", "/versions/v2:setDefault")
    site.request("DELETE", "/versions/v1")  # at once: services still send it requests
    site.step_until(lambda: "v1" not in site.states())
    since = callers.since_now()
    site.step_until(lambda: since("v2") > 100)
    assert since("v1") == 0
    callers.stop()
    assert callers.lost == []


@pytest.mark.heavy
def test_no_request_is_lost_by_a_canary_its_rollback_and_its_end(site: Site, callers: Callers) -> None:
    site.deploy("v2")
    since = callers.since_now()
    site.split(v1=80, v2=20)
    site.step_until(lambda: since("v2") > 50)
    assert since("v1") > since("v2")
    site.request("POST", ":rollback")
    site.request("DELETE", "/versions/v2")
    site.step_until(lambda: "v2" not in site.states())
    since = callers.since_now()
    site.step_until(lambda: since("v1") > 50)
    assert since("v2") == 0
    callers.stop()
    assert callers.lost == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("num_servers", [1, 2])
@pytest.mark.heavy
def test_a_server_that_is_killed_or_stopped_loses_the_requests_in_its_hands_alone(
    site: Site, num_servers: int, number: signal.Signals
) -> None:
    site.deploy("v1", num_servers=num_servers)
    site.step_until(lambda: len(site.ready_pids()) == num_servers)
    token = site.service.http.headers["authorization"].removeprefix("Bearer ")
    callers = Callers(site.service.url, token, delays_s=(0.0, 0.0, 0.05, 1.0))
    try:
        site.step_until(lambda: callers.answered["v1"] > 100)
        pid = min(site.ready_pids())
        os.kill(pid, number)
        since = callers.since_now()
        site.step_until(lambda: len(site.ready_pids() - {pid}) == num_servers and since("v1") > 100)
    finally:
        callers.stop()
    # A caller has one request at a time, so each may have lost one.
    assert len(callers.lost) <= 4
    assert all(lost.startswith("503") and "ended or did not answer" in lost for lost in callers.lost), callers.lost


def test_any_service_over_the_database_answers(site: Site) -> None:
    site.deploy("v1")
    other = Served(site.bench)
    try:
        assert other.context.routes is not site.service.context.routes
        for served in (site.service, other):
            answer = served.http.post(f"{MODEL}:predict", json={"instances": [0.0]})
            assert (answer.status_code, answer.json()) == (200, {"predictions": ["I am v1"]})
    finally:
        other.close()
