"""Finding the service: by what the home says of it, whatever that is."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from lockstep.client import Client, find_service
from lockstep.errors import InvalidInputError, StorageError, UnavailableError
from lockstep.home import Home
from lockstep.processes import ProcessIdentity


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(path=tmp_path)
    made.token.write_text("first\n")
    return made


def announce(home: Home, *, url: str = "http://127.0.0.1:1", process: ProcessIdentity | None = None) -> None:
    document = {"url": url, "process": (process or ProcessIdentity.of_self()).to_json()}
    home.address.write_text(json.dumps(document))


class Answering(HTTPServer):
    """Answers every request with its path, and keeps what tokens it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.seen: list[tuple[str, str | None]] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Answering)
        self.server.seen.append((self.path, self.headers["authorization"]))
        body = json.dumps({"path": self.path}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stays silent."""


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def test_the_service_is_found_across_a_step_of_the_clock(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(home)
    if sys.platform == "linux":
        boot_time = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time + 3600)
    found = find_service(home)
    assert found is not None
    assert found.url == "http://127.0.0.1:1"
    assert "first" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "7", "{}", '{"url": "u"}', "\\ud800", '{"url": "u", "process": []}'),
        '{"url": "u", "process": {"pid": "x", "start": "s"}}',
        '{"url": "u", "process": {"pid": -1, "start": "s"}}',
    ],
)
def test_what_says_nothing_of_a_service_is_no_service(home: Home, text: str) -> None:
    home.address.write_text(text)
    assert find_service(home) is None


def test_what_is_not_text_is_no_service(home: Home) -> None:
    home.address.write_bytes(b"\xff\xfe")
    assert find_service(home) is None


def test_a_home_that_cannot_be_read_is_said(home: Home) -> None:
    home.address.mkdir()
    with pytest.raises(StorageError, match="cannot be read: Is a directory; set LOCKSTEP_HOME"):
        find_service(home)


def test_a_process_that_has_its_id_is_no_service(home: Home) -> None:
    me = ProcessIdentity.of_self()
    announce(home, process=replace(me, start=f"{me.start}0"))
    assert find_service(home) is None
    with pytest.raises(UnavailableError, match="start one with `lockstep up`"):
        Client.from_home(home)


def test_a_client_finds_the_service_again_at_another_port_with_another_token(home: Home, server: Answering) -> None:
    announce(home)
    with Client.from_home(home) as client:
        client.find_again()
        with pytest.raises(UnavailableError, match="does not answer"):
            client.service()
        announce(home, url=server.url)
        home.token.write_text("second")
        client.find_again()
        assert client.service() == {"path": "/v1/service"}
        assert server.seen == [("/v1/service", "Bearer second")]


def test_a_client_sends_no_token_to_whoever_has_the_old_port(home: Home, server: Answering) -> None:
    announce(home, url=server.url)
    with Client.from_home(home) as client:
        me = ProcessIdentity.of_self()
        announce(home, url=server.url, process=replace(me, start=f"{me.start}0"))
        with pytest.raises(UnavailableError, match="no service runs"):
            client.find_again()
    assert server.seen == []


def test_names_are_quoted(home: Home, server: Answering) -> None:
    announce(home, url=server.url)
    with Client.from_home(home, project="a?b") as client:
        client.job("x?y#z:cancel %")
        client.version("m&", name="v=1")
    assert [path for path, _ in server.seen] == [
        "/v1/projects/a%3Fb/jobs/x%3Fy%23z%3Acancel%20%25",
        "/v1/projects/a%3Fb/models/m%26/versions/v%3D1",
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_what_is_no_name_is_refused(home: Home, name: str) -> None:
    announce(home)
    with Client.from_home(home) as client:
        with pytest.raises(InvalidInputError, match="not the name of a job; received"):
            client.job(name)
        with pytest.raises(InvalidInputError, match="not the name of a version"):
            client.predict("m", [], version=name)
    with pytest.raises(InvalidInputError, match="not the name of a project"):
        Client.from_home(home, project=name)
