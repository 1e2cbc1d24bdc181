"""Keys: what is kept of them, when they are valid, and how they are made over REST."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.exc import OperationalError
from tests.service.postgres import PASSWORD, Server

from lockstep.errors import AuthenticationError, NotFoundError
from lockstep.jobs.security.access import ALL_PROJECTS, HOME_PRINCIPAL, Principal, Scope
from lockstep.service.api import requests
from lockstep.service.api.gate import HEADERS, is_on_this_machine
from lockstep.service.api.requests import MAX_JSON_BYTES
from lockstep.service.security.keys import USE_INTERVAL_S, Authenticator, NewKey, digest, make_key
from lockstep.service.store import KeyStore, open_database
from lockstep.service.store.tables import API_KEYS
from lockstep.testing.served import HOME_TOKEN, Served


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Keys:
    """A store of keys and an authenticator of them, with one clock."""

    def __init__(self, database: Engine) -> None:
        self.clock = Clock()
        self.store = KeyStore(database, clock=self.clock)
        self.authenticator = Authenticator(home_token=HOME_TOKEN, keys=self.store, clock=self.clock)

    def make(self, *, expire_time_s: float | None = None) -> NewKey:
        made = make_key()
        principal = Principal(label="ann", scope=Scope.VIEWER, project="a", key_id=made.id)
        self.store.create(
            made.id, digest=digest(made.secret), principal=principal, created_by="home", expire_time_s=expire_time_s
        )
        return made

    def ask(self, token: str) -> Principal:
        return self.authenticator.authenticate(f"Bearer {token}", is_on_this_machine=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = open_database(f"sqlite:///{tmp_path / 'd.db'}")
    else:
        server: Server = request.getfixturevalue("postgres")
        engine = open_database(server.url(server.create_database_with_tables()), password=PASSWORD)
    yield engine
    engine.dispose()


@pytest.fixture
def keys(database: Engine) -> Keys:
    return Keys(database)


def test_a_key_opens_for_whom_it_is_and_its_secret_is_kept_nowhere(
    keys: Keys, database: Engine, tmp_path: Path
) -> None:
    made, other = keys.make(), keys.make()
    assert made.secret != other.secret
    assert len(made.secret) == len("lsk_0123456789ab_") + 43, "256 bits of randomness"
    assert keys.ask(made.secret) == Principal(label="ann", scope=Scope.VIEWER, project="a", key_id=made.id)
    assert made.secret not in repr(made)
    with database.connect() as connection:
        rows = repr(connection.execute(select(API_KEYS)).all())
    assert made.id in rows
    kept = b"".join([rows.encode(), *(file.read_bytes() for file in tmp_path.iterdir())])
    assert made.secret.encode() not in kept
    assert made.secret[17:].encode() not in kept


def test_a_key_with_another_keys_name_is_none(keys: Keys) -> None:
    made, other = keys.make(), keys.make()
    for token in (made.id + other.secret[16:], made.id, f"{made.secret}=", "lsk_0123456789ab_" + "a" * 43, ""):
        with pytest.raises(AuthenticationError, match="carries no valid key"):
            keys.ask(token)


def test_a_key_is_over_at_the_moment_when_it_expires_or_is_revoked(keys: Keys) -> None:
    expiring, revoked = keys.make(expire_time_s=keys.clock.now_s + 10), keys.make()
    keys.clock.now_s += 9.9
    keys.ask(expiring.secret)
    assert keys.store.has_valid()
    assert keys.store.revoke(revoked.id, principal_label="bob").revoked_by == "bob"
    assert keys.store.revoke(revoked.id, principal_label="eve").revoked_by == "bob", "the first one stays"
    with pytest.raises(AuthenticationError, match=r"of ann was revoked at 1970-01-12T13:46:49\+00:00"):
        keys.ask(revoked.secret)
    keys.clock.now_s += 0.1
    with pytest.raises(AuthenticationError, match=r"of ann expired at 1970-01-12T13:46:50\+00:00"):
        keys.ask(expiring.secret)
    assert not keys.store.has_valid()
    keys.clock.now_s -= 3600  # another service's clock, which is behind
    with pytest.raises(AuthenticationError, match="was revoked"):
        keys.ask(revoked.secret)
    with pytest.raises(NotFoundError, match="see `lockstep keys list`"):
        keys.store.revoke("lsk_nothing", principal_label="bob")


def test_the_last_use_is_recorded_now_and_then(keys: Keys, database: Engine) -> None:
    made = keys.make()
    writes: list[str] = []

    def note(*arguments: Any) -> None:
        if arguments[2].startswith("UPDATE"):
            writes.append(arguments[2])

    event.listen(database, "before_cursor_execute", note)
    assert keys.store.get(made.id).last_used_time_s is None
    for _ in range(3):
        keys.ask(made.secret)
    assert keys.store.get(made.id).last_used_time_s == keys.clock.now_s
    keys.clock.now_s += USE_INTERVAL_S - 1
    keys.ask(made.secret)
    assert len(writes) == 1
    keys.clock.now_s += 1
    keys.ask(made.secret)
    assert len(writes) == 2


def test_a_database_that_cannot_be_written_keeps_nobody_out(
    keys: Keys, database: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    made = keys.make()

    def fail(*arguments: Any) -> None:
        if arguments[2].startswith("UPDATE"):
            raise OperationalError("UPDATE", {}, Exception("database or disk is full"))

    event.listen(database, "before_cursor_execute", fail)
    assert keys.ask(made.secret).label == "ann"
    assert f"the use of key {made.id} could not be recorded" in caplog.text
    assert made.secret not in caplog.text


def test_a_database_that_does_not_answer_lets_nobody_in_and_says_so(service: Served) -> None:
    client = service.client(service.key(Scope.VIEWER))
    database = service.context.keys._engine

    def fail(*_: Any) -> None:
        raise OperationalError("SELECT", {}, Exception("disk I/O error"))

    event.listen(database, "before_cursor_execute", fail)
    answer = client.get("/v1/whoami")
    assert (answer.status_code, answer.json()["error"]["status"]) == (503, "UNAVAILABLE")
    assert "keys cannot be looked up" in answer.json()["error"]["message"]
    assert service.http.get("/v1/whoami").status_code == 200, "the home's token needs no database"
    event.remove(database, "before_cursor_execute", fail)
    assert client.get("/v1/whoami").status_code == 200


def test_the_homes_token_is_for_its_own_machine(keys: Keys) -> None:
    header = f"Bearer {HOME_TOKEN}"
    assert keys.authenticator.authenticate(header, is_on_this_machine=True) == HOME_PRINCIPAL
    with pytest.raises(AuthenticationError, match="the home's token is for the service's own machine"):
        keys.authenticator.authenticate(header, is_on_this_machine=False)


@pytest.mark.parametrize(
    ("client", "server", "is_here"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.9.9.9", "10.0.0.1", True),
        ("::1", "::1", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.2", "10.0.0.1", False),
        ("::ffff:10.0.0.2", "::", False),
        ("", "", False),
        (None, "10.0.0.1", False),
    ],
)
def test_who_is_on_this_machine_is_told_by_the_addresses(client: str | None, server: str, is_here: bool) -> None:
    ends = {"client": None if client is None else (client, 5), "server": (server, 80)}
    assert is_on_this_machine({"type": "http", **ends}) is is_here


def test_keys_are_made_listed_and_revoked_over_rest(service: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"label": "ann@example.com", "scope": "submitter", "project": "a", "validSeconds": 60}
    made = service.http.post("/v1/keys", json=body).json()
    secret = made.pop("secret")
    ann = service.client(secret)
    me = ann.get("/v1/whoami").json()
    bucket = service.context.settings.bucket
    assert {name: me[name] for name in ("key", "label", "scope", "project", "bucket")} == {
        "key": made["key"],
        "label": "ann@example.com",
        "scope": "submitter",
        "project": "a",
        "bucket": bucket,
    }
    assert "home" not in ann.get("/v1/whoami").json()
    (listed,) = service.http.get("/v1/keys").json()["keys"]
    assert listed.pop("lastUsedTime") is not None
    assert made.pop("lastUsedTime") is None
    assert listed == made
    assert (made["createdBy"], made["revokeTime"]) == ("home", None)
    revoked = service.http.post(f"/v1/keys/{made['key']}:revoke").json()
    assert revoked["revokedBy"] == "home"
    assert ann.get("/v1/whoami").status_code == 401
    assert service.http.post("/v1/keys/lsk_nothing:revoke").status_code == 404
    assert f"key {made['key']} of ann@example.com was revoked by home" in caplog.text
    for text in (caplog.text, service.http.get("/v1/keys").text):
        assert secret not in text
        assert digest(secret) not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "home"}, "label; received 'home'"),
        ({"label": "ann)(x"}, "label: "),
        ({"label": "a, b"}, "label: "),
        ({"label": ""}, "label: "),
        ({"label": "a" * 64}, "label: "),
        ({"scope": "root"}, "scope: "),
        ({"project": "A"}, "project"),
        ({"project": "packages"}, "the bucket's folder of this name is for code"),
        ({"validSeconds": 0}, "validSeconds: "),
        ({"validSeconds": 1e12}, "validSeconds: "),
        ({"secret": "mine"}, "secret: not supported by this version"),
        ({"scope": "caller"}, "a caller's key is for one model of one project"),
        ({"scope": "caller", "model": "m"}, "a caller's key is for one model of one project"),
        ({"model": "m"}, "only a caller's key is for one model"),
        ({"version": "v1"}, "there is no model that it is a version of"),
        ({"scope": "caller", "model": "a/b", "project": "a"}, "model: "),
        ({"requestsPerSecond": 0}, "requestsPerSecond: "),
        ({"requestsPerSecond": 1e7}, "requestsPerSecond: "),
    ],
)
def test_a_key_that_cannot_be_is_refused(service: Served, change: dict[str, Any], message: str) -> None:
    body = {"label": "ann", "scope": "viewer", "project": ALL_PROJECTS, "validSeconds": None, **change}
    answer = service.http.post("/v1/keys", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert service.http.get("/v1/keys").json() == {"keys": []}


def test_a_callers_key_is_for_a_model_that_exists(service: Served) -> None:
    body = {"label": "shop", "scope": "caller", "project": "a", "validSeconds": None, "requestsPerSecond": 2.5}
    for names in ({"model": "digits"}, {"model": "digits", "version": "v1"}):
        answer = service.http.post("/v1/keys", json={**body, **names})
        assert answer.status_code == 404, answer.text
        if "version" not in names:
            service.http.post("/v1/projects/a/models", json={"name": "digits"})
            assert service.http.post("/v1/keys", json={**body, **names}).status_code == 200
    service.http.post("/v1/projects/a/models/digits/versions", json={"name": "v1", "deploymentUri": "/x"})
    made = service.http.post("/v1/keys", json={**body, "model": "digits", "version": "v1"}).json()
    shown = {name: made[name] for name in ("scope", "project", "model", "version", "requestsPerSecond")}
    assert shown == {"scope": "caller", "project": "a", "model": "digits", "version": "v1", "requestsPerSecond": 2.5}
    record = service.context.keys.get(made["key"])
    assert (record.principal.model, record.principal.version) == ("digits", "v1")
    assert record.principal.requests_per_second == 2.5


def test_every_answer_tells_browsers_to_keep_nothing_and_run_nothing(service: Served) -> None:
    stranger = service.client(None)
    for answer in (stranger.get("/healthz"), stranger.get("/v1/keys"), service.http.get("/v1/keys")):
        assert set(HEADERS) <= set(answer.headers.raw)
        assert "strict-transport-security" not in answer.headers, "this is plain HTTP"
    assert stranger.get("/v1/keys").headers["www-authenticate"] == 'Bearer realm="lockstep"'


def test_a_body_that_is_too_long_is_refused(service: Served) -> None:
    path = "/v1/projects/local/jobs"
    answer = service.http.post(path, content=b" " * (MAX_JSON_BYTES + 1))
    assert (answer.status_code, answer.json()["error"]["status"]) == (413, "INVALID_ARGUMENT")
    assert "1048576 bytes at most" in answer.json()["error"]["message"]
    longest = service.http.post(path, content=b" " * MAX_JSON_BYTES)
    assert "is not JSON" in longest.json()["error"]["message"]


def test_a_body_that_does_not_come_is_not_waited_for(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_TIMEOUT_S", 0.05)
    host, _, port = service.url.removeprefix("http://").partition(":")
    head = f"POST /v1/projects/local/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {HOME_TOKEN}\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"{head}Content-Length: 10\r\n\r\n{{".encode())
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_a_project_that_has_the_name_of_the_folder_for_code_is_refused(service: Served) -> None:
    answer = service.http.get("/v1/projects/packages/jobs")
    assert answer.status_code == 400
    assert "the bucket's folder of this name is for code" in answer.json()["error"]["message"]
