"""Where the REST interface listens, and who trusts what answers there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httplib2
import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from lockstep.client import Client, ServiceAddress, find_address
from lockstep.errors import ConfigError, InvalidInputError, PortInUseError, UnavailableError
from lockstep.home import Home
from lockstep.jobs.security.access import Scope
from lockstep.service.listening import bind, check_binding, is_loopback, local_url, read_certificate
from lockstep.service.settings import Settings
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served


@dataclass(frozen=True, kw_only=True)
class Issued:
    """A certificate of an authority that the test made."""

    authority: Path
    certificate: Path
    key: Path
    pem: str


def issue(folder: Path, *, name: str = "localhost", not_after: datetime | None = None) -> Issued:
    folder.mkdir()
    authority = trustme.CA()
    made = authority.issue_cert(name, not_after=not_after)
    issued = Issued(
        authority=folder / "ca.pem",
        certificate=folder / "certificate.pem",
        key=folder / "key.pem",
        pem=made.cert_chain_pems[0].bytes().decode(),
    )
    authority.cert_pem.write_to_path(str(issued.authority))
    for blob in made.cert_chain_pems:
        blob.write_to_path(str(issued.certificate), append=True)
    made.private_key_pem.write_to_path(str(issued.key))
    issued.key.chmod(0o600)
    return issued


@pytest.fixture
def issued(tmp_path: Path) -> Issued:
    return issue(tmp_path / "tls")


@pytest.fixture
def encrypted(bench: Bench, issued: Issued) -> Iterator[Served]:
    made = Served(bench, certificate=(issued.certificate, issued.key))
    yield made
    made.close()


def test_loopback_alone_needs_nothing() -> None:
    loopback = ["127.0.0.1", "127.1.2.3", "::1"]
    assert [host for host in [*loopback, "0.0.0.0", "::", "10.0.0.1", "2001:db8::1"] if is_loopback(host)] == loopback
    check_binding("127.0.0.1", has_tls=False, has_keys=False)
    with pytest.raises(
        InvalidInputError, match=r"--host 0\.0\.0\.0 is reachable from other machines: keys would travel unencr"
    ):
        check_binding("0.0.0.0", has_tls=False, has_keys=True)
    with pytest.raises(
        InvalidInputError, match="there is no valid API key; make one first with `lockstep keys create`"
    ):
        check_binding("10.0.0.1", has_tls=True, has_keys=False)
    check_binding("0.0.0.0", has_tls=True, has_keys=True)
    for name in ("localhost", "train.example.com", "", "127.1"):
        with pytest.raises(InvalidInputError, match="allowed: an IP address"):
            check_binding(name, has_tls=True, has_keys=True)


def test_settings_that_would_open_the_service_to_all_are_refused(tmp_path: Path) -> None:
    home, file = Home(path=tmp_path), tmp_path / "file"
    with pytest.raises(InvalidInputError, match="--tls-certificate and --tls-key"):
        Settings(home=home, bucket="/b", host="0.0.0.0")
    for half in ({"tls_certificate": file}, {"tls_key": file}):
        with pytest.raises(InvalidInputError, match="belong together"):
            Settings(home=home, bucket="/b", **half)
    assert Settings(home=home, bucket="/b", host="0.0.0.0", tls_certificate=file, tls_key=file).has_tls


@pytest.mark.parametrize(
    ("host", "has_tls", "url"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:80"),
        ("0.0.0.0", True, "https://127.0.0.1:80"),
        ("::", True, "https://[::1]:80"),
        ("10.0.0.1", True, "https://10.0.0.1:80"),
    ],
)
def test_this_machine_reaches_it(host: str, has_tls: bool, url: str) -> None:
    assert local_url(host, port=80, has_tls=has_tls) == url


def test_a_port_is_kept_from_one_start_to_the_next_where_it_is_free(tmp_path: Path) -> None:
    home = Home(path=tmp_path)
    with bind("127.0.0.1", port=0, home=home) as first:
        first.listen()
        port = first.getsockname()[1]
        (tmp_path / "port.json").write_text(str(port))
        with pytest.raises(
            PortInUseError, match=rf"port {port} of 127\.0\.0\.1 cannot be bound: Address already in use"
        ):
            bind("127.0.0.1", port=port, home=home)
        with bind("127.0.0.1", port=0, home=home) as other:
            assert other.getsockname()[1] != port
    with bind("127.0.0.1", port=0, home=home) as again:
        assert again.getsockname()[1] == port
    with pytest.raises(PortInUseError, match=r"no port of 192\.0\.2\.1 can be bound"):
        bind("192.0.2.1", port=0, home=home)
    if socket.has_ipv6:
        with bind("::1", port=0, home=Home(path=tmp_path / "other")) as listener:
            assert listener.getsockname()[0] == "::1"


def test_a_certificate_is_tried_before_anybody_meets_it(issued: Issued, tmp_path: Path) -> None:
    assert read_certificate(issued.certificate, key=issued.key).strip() == issued.pem.strip()
    other = issue(tmp_path / "other")
    expired = issue(tmp_path / "expired", not_after=datetime.now(tz=UTC) - timedelta(days=1))
    sealed = tmp_path / "sealed.pem"
    key = serialization.load_pem_private_key(issued.key.read_bytes(), password=None)
    passphrase = serialization.BestAvailableEncryption(b"passphrase")
    sealed.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, passphrase))
    sealed.chmod(0o600)
    for certificate, private, message in [
        (issued.certificate, other.key, "key values mismatch"),
        (expired.certificate, expired.key, "certificate has expired"),
        (issued.certificate, sealed, "--tls-key has a passphrase"),
        (issued.key, issued.key, "holds no certificate"),
        (issued.certificate, issued.certificate, "everybody can read"),
        (tmp_path / "absent", issued.key, "absent: No such file"),
        (issued.certificate, tmp_path / "absent", "absent: No such file"),
        (tmp_path, issued.key, "Is a directory"),
    ]:
        if private == issued.certificate:
            private.chmod(0o644)
        with pytest.raises(InvalidInputError) as caught:
            read_certificate(certificate, key=private)
        assert message in str(caught.value)
        assert "--tls-" in str(caught.value)


def test_the_homes_clients_trust_the_very_certificate_that_the_service_says(
    encrypted: Served, issued: Issued, tmp_path: Path
) -> None:
    address = ServiceAddress(url=encrypted.url, token=HOME_TOKEN, certificate=issued.pem)
    with Client(address) as client:
        assert client.whoami()["label"] == "home"
    other = ServiceAddress(url=encrypted.url, token=HOME_TOKEN, certificate=issue(tmp_path / "other").pem)
    with Client(other) as client, pytest.raises(UnavailableError, match=r"is not trusted: .*; name its authority's"):
        client.whoami()


def test_clients_elsewhere_trust_an_authority_for_the_services_name(
    encrypted: Served, issued: Issued, tmp_path: Path
) -> None:
    key = encrypted.key(Scope.VIEWER, project="a")
    port = encrypted.url.rpartition(":")[2]

    def client(**env: str) -> Client:
        named = {"LOCKSTEP_URL": f"https://localhost:{port}", "LOCKSTEP_TOKEN": key, **env}
        return Client(find_address(Home(path=tmp_path), env=named))

    with client(LOCKSTEP_CA_CERT=str(issued.authority)) as trusting:
        assert trusting.whoami()["project"] == "a"
    stranger = str(issue(tmp_path / "stranger").authority)
    wrong_name = {"LOCKSTEP_URL": encrypted.url, "LOCKSTEP_CA_CERT": str(issued.authority)}
    for env in ({}, {"LOCKSTEP_CA_CERT": stranger}, wrong_name):
        with client(**env) as doubting, pytest.raises(UnavailableError, match="is not trusted"):
            doubting.whoami()
    for file in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match=r"LOCKSTEP_CA_CERT: .* cannot be read"):
            client(LOCKSTEP_CA_CERT=str(file))


def test_the_systems_variable_for_authorities_counts(
    encrypted: Served, issued: Issued, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(issued.authority))
    url = encrypted.url.replace("127.0.0.1", "localhost")
    env = {"LOCKSTEP_URL": url, "LOCKSTEP_TOKEN": encrypted.key(Scope.VIEWER)}
    with Client(find_address(Home(path=tmp_path), env=env)) as client:
        assert client.whoami()["scope"] == "viewer"


def test_googles_client_works_over_tls(encrypted: Served, issued: Issued) -> None:
    encrypted.url = encrypted.url.replace("127.0.0.1", "localhost")
    connections = httplib2.Http(ca_certs=str(issued.authority))
    projects = encrypted.google(encrypted.key(Scope.VIEWER, project="a"), connections=connections)
    assert projects.jobs().list(parent="projects/a").execute() == {"jobs": []}


def test_answers_over_tls_say_that_it_stays_so(encrypted: Served) -> None:
    answer = httpx.get(f"{encrypted.url}/healthz", verify=False)
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
