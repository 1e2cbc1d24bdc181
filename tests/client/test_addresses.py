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

from lockstep.client import Client, ServiceAddress, find_address, find_service
from lockstep.errors import ConfigError, InvalidInputError, StorageError, UnavailableError
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
    """Answers every request with its path, or what it is told, and keeps what tokens it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.seen: list[tuple[str, str | None]] = []
        self.status = 200
        self.body = b""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Answering)
        self.server.seen.append((self.path, self.headers["authorization"]))
        body = self.server.body or json.dumps({"path": self.path}).encode()
        self.send_response(self.server.status)
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
    assert found.address.url == "http://127.0.0.1:1"
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
        with pytest.raises(UnavailableError, match="does not respond"):
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


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            200,
            b"<html>hello</html>",
            r"the server at http://127\.0\.0\.1:\d+ is not a Lockstep service; see LOCKSTEP_URL",
        ),
        (502, b"<html>bad gateway</html>", "the service responded with status 502 and no reason"),
        (403, b'{"error": null}', "the service responded with status 403 and no reason"),
        (403, b'{"error": {"code": 403}}', "the service responded with status 403 and no reason"),
    ],
    ids=["page", "proxy", "null", "no-message"],
)
def test_an_answer_of_somebody_else_is_said_in_a_line(
    home: Home, server: Answering, status: int, body: bytes, message: str
) -> None:
    server.status, server.body = status, body
    announce(home, url=server.url)
    with Client.from_home(home) as client, pytest.raises(UnavailableError, match=message):
        client.whoami()


def test_a_homes_service_is_on_this_machine_whatever_address_it_has(home: Home) -> None:
    document = {"url": "https://10.0.0.5:8443", "process": ProcessIdentity.of_self().to_json(), "certificate": "PEM"}
    home.address.write_text(json.dumps(document))
    assert find_address(home, env={}).is_on_this_machine
    elsewhere = find_address(home, env={"LOCKSTEP_URL": "https://10.0.0.5:8443", "LOCKSTEP_TOKEN": KEY})
    assert not elsewhere.is_on_this_machine


@pytest.mark.parametrize("proxy", ["socks5h://127.0.0.1:9", "ftp://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_said(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    monkeypatch.setenv("NO_PROXY", "here.example.com")
    with pytest.raises(ConfigError, match=r"proxy .* cannot be used; allowed: .*; change it, or name .* in NO_PROXY"):
        Client(ServiceAddress(url="https://train.example.com", token="t"))
    Client(ServiceAddress(url="https://127.0.0.1:1", token="t")).close()


def test_why_nothing_answers_is_said(home: Home) -> None:
    announce(home)
    with Client.from_home(home) as client, pytest.raises(UnavailableError, match=r"does not respond: .*refused"):
        client.whoami()


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


KEY = "lsk_0123456789ab_secret"


@pytest.mark.parametrize("url", ["https://train.example.com", "https://[2001:db8::1]:8443", "http://127.0.0.1:8080"])
def test_a_service_elsewhere_is_named_by_the_environment(home: Home, url: str) -> None:
    found = find_address(home, env={"LOCKSTEP_URL": f"{url}/", "LOCKSTEP_TOKEN": f"{KEY}\n"})
    assert (found.url, found.token) == (url, KEY)
    assert found.is_on_this_machine == url.startswith("http:")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://train.example.com", "a key would travel unencrypted"),
        ("http://10.0.0.1", "a key would travel unencrypted"),
        ("http://localhost.example.com", "a key would travel unencrypted"),
        ("train.example.com", "allowed: https://HOST"),
        ("ftp://127.0.0.1", "allowed: https://HOST"),
        ("https://", "allowed: https://HOST"),
        ("https://h/path", "allowed: https://HOST"),
        ("https://h:port", "is not a URL"),
        (f"https://ann:{KEY}@h", "contains a user or password"),
    ],
)
def test_a_url_that_is_not_one_is_refused_and_shows_no_secret(home: Home, url: str, message: str) -> None:
    with pytest.raises(ConfigError, match="LOCKSTEP_URL") as caught:
        find_address(home, env={"LOCKSTEP_URL": url, "LOCKSTEP_TOKEN": KEY})
    assert message in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_service_elsewhere_gets_no_token_of_the_home(home: Home) -> None:
    announce(home)
    with pytest.raises(ConfigError, match="LOCKSTEP_URL is set, but no key; set LOCKSTEP_TOKEN"):
        find_address(home, env={"LOCKSTEP_URL": "https://h"})


def test_a_key_opens_the_homes_own_service_as_well(home: Home) -> None:
    announce(home)
    assert find_address(home, env={}).token == "first"
    assert find_address(home, env={"LOCKSTEP_TOKEN": KEY}).token == KEY


def test_a_key_is_read_from_a_file_that_is_its_owners_alone(home: Home, tmp_path: Path) -> None:
    announce(home)
    file = tmp_path / "key"
    env = {"LOCKSTEP_TOKEN_FILE": str(file)}
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        find_address(home, env=env)
    file.write_text(f"{KEY}\n")
    for mode in (0o604, 0o602, 0o601, 0o640, 0o620):
        file.chmod(mode)
        with pytest.raises(ConfigError, match=rf"gives access to users .*: its mode is {mode:04o}; chmod 600"):
            find_address(home, env=env)
    file.chmod(0o600)
    assert find_address(home, env=env).token == KEY
    with pytest.raises(ConfigError, match="are both set"):
        find_address(home, env={**env, "LOCKSTEP_TOKEN": KEY})
    for text in ("", "  \n", f"{KEY} x", f"{KEY}\n{KEY}", "schlüssel"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="LOCKSTEP_TOKEN_FILE does not contain a key") as caught:
            find_address(home, env=env)
        assert KEY not in str(caught.value)
