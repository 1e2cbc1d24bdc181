"""The runner with a server in a container, and the gateway in front of it; the engine only acts as one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from tests.runner.containers.test_container_runs import IMAGE, Run, is_over, log, order, wait

from lockstep.jobs.running.order_parts import ContainerOrder, ContainerRoutes, ServerOrder
from lockstep.jobs.running.orders import Fault, ReplicaOrder, ReplicaPhase
from lockstep.processes.ports import reserve_address
from lockstep.serving import SERVER_TOKEN
from lockstep.testing.container_engine import FakeContainerEngine

TOKEN = "the-servers-token"
SERVER = """
import http.server, json, os, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == os.environ["AIP_HEALTH_ROUTE"] else 404)
        self.end_headers()
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        said = json.dumps({"predictions": [self.path, json.loads(body), sorted(os.environ), dict(self.headers)]})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(said.encode())
    def log_message(self, *_):
        pass
print("started", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["AIP_HTTP_PORT"])), Answers).serve_forever()
"""


@pytest.fixture(autouse=True)
def nothing_is_left(fake: FakeContainerEngine) -> Iterator[None]:
    yield
    assert fake.containers() == []
    gateways = [process for process in psutil.process_iter(["cmdline"]) if _is_gateway(process)]
    assert gateways == []


def _is_gateway(process: psutil.Process) -> bool:
    words = process.info["cmdline"] or []
    return "lockstep.serving" in words and any(word.startswith("--container=") for word in words)


@pytest.fixture
def asked(fake: FakeContainerEngine, tmp_path: Path) -> Iterator[ReplicaOrder]:
    """The order of a server whose container and gateway have ports of their own."""
    with closing(reserve_address("127.0.0.1")) as inner, closing(reserve_address("127.0.0.1")) as outer:
        routes = ContainerRoutes(port=int(inner.address.rpartition(":")[2]), predict="/v1/it:predict", health="/alive")
        made = order(tmp_path)
        container = ContainerOrder(
            image=IMAGE, entry_point=(sys.executable, "-c", SERVER), images_folder=str(tmp_path / "images")
        )
        yield replace(
            made,
            cluster={"worker": (outer.address,)},
            container=container,
            environment={"AIP_HTTP_PORT": str(routes.port), "AIP_HEALTH_ROUTE": routes.health},
            secrets={SERVER_TOKEN: TOKEN},
            server=ServerOrder(ready_within_s=25.0, silent_within_s=3.0, routes=routes),
        )


def ready(run: Run) -> None:
    run.until(lambda status: status.ready_time_s is not None or status.phase is ReplicaPhase.ENDED)
    assert run.statuses[-1].end is None


def predict(asked: ReplicaOrder, *, token: str = TOKEN, timeout_s: float = 20.0) -> httpx.Response:
    (address,) = asked.cluster["worker"]
    headers = {"authorization": f"Bearer {token}", "x-a-clients": "header"}
    return httpx.post(f"http://{address}/predict", json={"instances": [1]}, headers=headers, timeout=timeout_s)


def test_requests_with_the_token_reach_the_container_which_has_no_secret(
    fake: FakeContainerEngine, asked: ReplicaOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-node")
    run = Run(asked)
    ready(run)
    assert predict(asked, token="another").status_code == 401
    path, body, variables, headers = predict(asked).json()["predictions"]
    assert (path, body) == ("/v1/it:predict", {"instances": [1]})
    assert not {SERVER_TOKEN, "LOCKSTEP_HEARTBEAT", "AWS_SECRET_ACCESS_KEY"} & set(variables)
    assert not any("LOCKSTEP_HEARTBEAT" in name for name in variables)
    assert TOKEN not in str(headers)
    assert run.statuses[-1].image_id == fake.image_id(IMAGE)
    ((_, *created),) = fake.calls("create")
    routes = asked.server.routes if asked.server else None
    assert routes is not None
    assert f"127.0.0.1::{routes.port}" in created
    assert "host" not in created
    assert {"--memory", "--pids-limit"} <= set(created)
    assert not any("heartbeat" in word for word in created)
    run.runner.stop()
    assert run.end().stopped


def test_a_container_that_ends_ends_its_gateway(asked: ReplicaOrder) -> None:
    assert asked.container is not None
    code = "import sys; sys.exit('no model here')"
    run = Run(replace(asked, container=replace(asked.container, entry_point=(sys.executable, "-c", code))))
    end = run.end()
    assert (end.exit_code, end.fault) == (1, Fault.PROGRAM)
    assert end.tail[-1] == "no model here"


@pytest.mark.heavy
def test_a_container_that_answers_nothing_is_ended_as_stuck(asked: ReplicaOrder) -> None:
    run = Run(asked)
    ready(run)
    pid = run.running().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    end = run.end()
    assert end.fault is Fault.STUCK
    assert end.problem == "it did not respond for 3 s"
    assert is_over(pid)


def test_a_gateway_that_dies_is_not_the_containers_fault(asked: ReplicaOrder) -> None:
    run = Run(asked)
    ready(run)
    (gateway,) = [process for process in psutil.process_iter(["cmdline"]) if _is_gateway(process)]
    gateway.kill()
    end = run.end()
    assert end.fault is Fault.MACHINE
    assert "the gateway to its container ended" in (end.problem or "")


def test_a_container_that_is_never_healthy_says_so_in_its_log(asked: ReplicaOrder) -> None:
    run = Run(replace(asked, environment={**asked.environment, "AIP_HEALTH_ROUTE": "/elsewhere"}))
    run.running()
    said = "lockstep: its container is not ready: GET /alive says 404"
    wait(lambda: said in [text for _, text in log(asked)])
    run.runner.stop()
    assert run.end().stopped
    assert run.statuses[-1].ready_time_s is None


def test_another_image_of_the_same_name_is_not_run(fake: FakeContainerEngine, asked: ReplicaOrder) -> None:
    assert asked.container is not None
    run = Run(replace(asked, container=replace(asked.container, image_id="sha256:deployed")))
    end = run.end()
    assert end.fault is Fault.PROGRAM
    assert f"image {IMAGE} is not the one that was deployed" in (end.problem or "")
    assert "sha256:deployed" in (end.problem or "")


def test_a_killed_runner_leaves_neither_container_nor_gateway(asked: ReplicaOrder) -> None:
    run = Run(asked)
    ready(run)
    pid = run.running().pid
    (runner,) = [child for child in psutil.Process().children() if "lockstep.runner" in child.cmdline()]
    runner.kill()
    run.end()
    assert pid is not None
    wait(lambda: is_over(pid))
