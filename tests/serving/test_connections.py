"""Connections that stall in a request's headers are closed; those that wait for an answer are not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from lockstep.serving import connections
from lockstep.serving.connections import LimitedProtocol

TIMEOUT_S = 0.3
DEADLINE_S = 20.0
WHOLE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers later than headers may take."""
    assert scope["type"] == "http"
    while (await receive())["more_body"]:
        pass
    await asyncio.sleep(2 * TIMEOUT_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(connections, "HEADERS_TIMEOUT_S", TIMEOUT_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=LimitedProtocol, log_level="critical", lifespan="off", timeout_keep_alive=60)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


def read_answer(client: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"ok"):
        read = client.recv(4096)
        assert read, data
        data += read
    return data


def is_closed(client: socket.socket) -> bool:
    client.settimeout(DEADLINE_S)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def is_refused(client: socket.socket) -> bool:
    """Whether the connection is closed, after status 400 if that still arrives."""
    data = b""
    try:
        while part := client.recv(4096):
            data += part
    except ConnectionError:
        pass
    return data == b"" or data.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("begun", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: h", WHOLE[:-1]])
def test_a_connection_that_stalls_in_its_headers_is_closed(begun: bytes, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        client.sendall(begun)
        assert is_closed(client)


def test_headers_that_trickle_in_are_not_waited_for_longer(port: int) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S / 10) as client:
        client.sendall(WHOLE[:-2])
        while time.monotonic() - began < DEADLINE_S:
            try:
                client.sendall(b"A: b\r\n")
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it is open still")


def test_the_headers_of_a_later_request_are_bounded_too(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        for _ in range(2):
            client.sendall(WHOLE)
            assert read_answer(client).startswith(b"HTTP/1.1 200")
        client.sendall(WHOLE[:-2])
        assert is_closed(client)


def test_headers_without_end_are_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADERS_TIMEOUT_S", 10 * DEADLINE_S)
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        client.sendall(WHOLE[:-2])
        sent = 0
        try:
            while sent <= 4 * connections.MAX_HEADERS_BYTES:
                sent += client.send(b"A: " + b"b" * 4096 + b"\r\n")
        except ConnectionError:
            pass
        assert is_refused(client)


def test_a_body_may_be_larger_than_headers_may(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        length = 4 * connections.MAX_HEADERS_BYTES
        client.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % length + b"x" * length)
        assert read_answer(client).startswith(b"HTTP/1.1 200")


def test_a_body_may_come_later_than_headers_may(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n1")
        time.sleep(2 * TIMEOUT_S)  # what is tested is that nothing happens meanwhile
        client.sendall(b"2")
        assert read_answer(client).startswith(b"HTTP/1.1 200")
