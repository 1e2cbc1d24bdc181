"""Requests for predictions, which the service sends on to prediction servers."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.waiting import wait_until

from lockstep.service.prediction.routing import Route, Routes, ServerAddress
from lockstep.service.store import ScalingPolicy, VersionState
from lockstep.testing.served import Served


def route_to(servers: list[ServerAddress], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has version v3 answer all requests, by these servers."""

    async def route(_self: Routes, **_asked: str | None) -> Route:
        return Route(version="v3", servers=servers)

    monkeypatch.setattr(Routes, "route", route)


@pytest.mark.parametrize("first", ["closed", "full"])
def test_a_server_that_cannot_be_reached_is_passed_over(
    service: Served, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"predictions": [7]}')

    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = silent.getsockname()
        if first == "closed":
            silent.close()
        else:  # as behind a node that is gone, nobody accepts
            for _ in range(3):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(address)
        answers = stack.enter_context(http.server.HTTPServer(("127.0.0.1", 0), Answers))
        thread = threading.Thread(target=answers.handle_request)
        thread.start()
        ports = (address[1], answers.server_port)
        found = [ServerAddress(uid=str(port), url=f"http://127.0.0.1:{port}", token="t") for port in ports]
        route_to(found, monkeypatch)
        path = "/v1/projects/local/models/m:predict"
        answer = service.http.post(path, json={"instances": [1]}, timeout=20)
        assert answer.json() == {"predictions": [7]}, answer.text
        assert answer.headers["x-lockstep-version"] == "v3"
        thread.join()


def test_a_server_gets_the_time_that_the_client_waits_and_the_client_the_time_to_retry_after(
    service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[str | None] = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.headers["x-server-timeout"])
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(429)
            self.send_header("retry-after", "3")
            self.end_headers()
            self.wfile.write(b'{"error": "busy"}')

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as answers:
        thread = threading.Thread(target=answers.handle_request)
        thread.start()
        found = [ServerAddress(uid="s", url=f"http://127.0.0.1:{answers.server_port}", token="t")]
        route_to(found, monkeypatch)
        path = "/v1/projects/local/models/m:predict"
        answer = service.http.post(path, json={"instances": [1]}, headers={"X-Server-Timeout": "7"}, timeout=20)
        thread.join()
    assert received == ["7"]
    assert (answer.status_code, answer.headers["retry-after"], answer.json()) == (429, "3", {"error": "busy"})


def test_a_held_request_is_answered_by_another_version_if_the_traffic_left_the_one_that_is_deleted(
    service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"predictions": [7]}')

    models, name = service.context.models, {"project": "local", "model": "m"}
    models.create_model(project="local", name="m", description="", labels={})
    for version in ("v1", "v2"):
        policy = ScalingPolicy(min_servers=0, max_servers=1)
        given: dict[str, Any] = {"description": "", "labels": {}, "deployment_uri": "/m", "machine_type": "t"}
        models.create_version(**name, name=version, scaling=policy, **given)
        assert models.update_version(models.get_version(**name, name=version), state=VersionState.READY)
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as answers, ThreadPoolExecutor(2) as pool:
        pool.submit(answers.handle_request)
        server = ServerAddress(uid="s", url=f"http://127.0.0.1:{answers.server_port}", token="t")
        servers = {models.get_version(**name, name="v2").uid: [server]}
        monkeypatch.setattr(service.context.routes, "_read", lambda **_since: servers)
        path = "/v1/projects/local/models/m:predict"
        sent = pool.submit(service.http.post, path, json={"instances": [1]}, timeout=20)
        wait_until(lambda: service.context.waking._num_held == 1)
        models.set_default(**name, name="v2", changed_by="ann")
        models.begin_delete_version(**name, name="v1")
        answer = sent.result(20)
    assert (answer.json(), answer.headers["x-lockstep-version"]) == ({"predictions": [7]}, "v2")
