"""Kubeconfigs that name a program for credentials, as those of managed clusters do."""

import json
import shlex
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, final

import pytest
import trustme
from tests.clusters.machines.kubernetes_server import TOKEN, Kubernetes, kubeconfig, kubernetes

from lockstep.clusters.machines import kubernetes_credentials
from lockstep.clusters.machines.kubeconfig import find_access
from lockstep.clusters.machines.kubernetes_api import KubernetesApi
from lockstep.errors import ConfigError, EngineError

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"
QUERY = {"labelSelector": "a=b"}


def ask(api: KubernetesApi) -> int:
    return api.request("GET", "/api/v1/namespaces/training/pods", query=QUERY)[0]


def reach(file: str) -> KubernetesApi:
    return KubernetesApi(find_access(file))


def in_the(future_s: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=future_s)).isoformat().replace("+00:00", "Z")


@final
class Plugin:
    """A program that prints a document, and records how often and with which variables it was run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "a plugin"
        self.runs = folder / "runs"
        self.document = folder / "document"
        self.write(f"cat {shlex.quote(str(self.document))}")

    def write(self, last: str) -> None:
        record = f'echo "$* $REGION $KUBERNETES_EXEC_INFO" >> {shlex.quote(str(self.runs))}'
        self.path.write_text(f"#!/bin/sh\n{record}\n{last}\n")
        self.path.chmod(0o755)

    def answer(self, *, version: str = V1, **status: str) -> None:
        self.document.write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))

    def entry(self, *, version: str = V1, **options: Any) -> dict[str, Any]:
        return {"apiVersion": version, "command": "./a plugin", "interactiveMode": "Never", **options}

    @property
    def num_runs(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@pytest.fixture(scope="module")
def _server() -> Iterator[Kubernetes]:
    with kubernetes() as state:
        yield state


@pytest.fixture
def server(_server: Kubernetes) -> Kubernetes:
    _server.token = TOKEN
    return _server


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_a_plugin_is_run_as_its_entry_says_and_once(
    server: Kubernetes, plugin: Plugin, tmp_path: Path, version: str
) -> None:
    plugin.answer(version=version, token=TOKEN)
    entry = plugin.entry(version=version, args=["get-token", "--id=x"], env=[{"name": "REGION", "value": "there"}])
    api = reach(kubeconfig(tmp_path, url=server.url, exec=entry))
    assert [ask(api) for _ in range(3)] == [200, 200, 200]
    arguments, region, info = plugin.runs.read_text().split(" ", 2)[0], *plugin.runs.read_text().split(" ", 3)[2:]
    assert (arguments, region) == ("get-token", "there")
    assert json.loads(info) == {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}


def test_a_plugin_is_told_of_the_cluster_if_it_wants(server: Kubernetes, plugin: Plugin, tmp_path: Path) -> None:
    plugin.answer(token=TOKEN)
    ask(reach(kubeconfig(tmp_path, url=server.url, exec=plugin.entry(provideClusterInfo=True))))
    info = json.loads(plugin.runs.read_text())
    assert info["spec"]["cluster"] == {"server": server.url}


def test_a_credential_is_used_until_it_expires(server: Kubernetes, plugin: Plugin, tmp_path: Path) -> None:
    plugin.answer(token=TOKEN, expirationTimestamp=in_the(3600))
    api = reach(kubeconfig(tmp_path, url=server.url, exec=plugin.entry()))
    ask(api)
    ask(api)
    assert plugin.num_runs == 1
    plugin.runs.unlink()
    plugin.answer(token=TOKEN, expirationTimestamp=in_the(5))  # too soon to be used for long
    api = reach(kubeconfig(tmp_path, url=server.url, exec=plugin.entry()))
    ask(api)
    ask(api)
    assert plugin.num_runs == 2


def test_a_credential_that_is_refused_is_replaced_once(server: Kubernetes, plugin: Plugin, tmp_path: Path) -> None:
    plugin.answer(token=TOKEN, expirationTimestamp=in_the(3600))
    api = reach(kubeconfig(tmp_path, url=server.url, exec=plugin.entry()))
    ask(api)
    server.token = "another"
    plugin.answer(token="another", expirationTimestamp=in_the(3600))
    assert ask(api) == 200
    assert plugin.num_runs == 2
    server.token = "a third"
    with pytest.raises(EngineError, match=r"^Kubernetes refuses, 401: Unauthorized$"):
        ask(api)
    assert plugin.num_runs == 3


def test_a_certificate_of_a_plugin_is_shown_and_renewed(plugin: Plugin, tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED

    def issue(name: str) -> None:
        mine = authority.issue_cert(name)
        certificate, key = mine.cert_chain_pems[0].bytes().decode(), mine.private_key_pem.bytes().decode()
        plugin.answer(clientCertificateData=certificate, clientKeyData=key, expirationTimestamp=in_the(1))

    issue("first.example")
    with kubernetes(tls, keeps_alive=True) as server:
        file = kubeconfig(tmp_path, url=server.url, authority=authority.cert_pem.bytes(), exec=plugin.entry())
        api = reach(file)
        assert ask(api) == 200
        issue("second.example")
        assert ask(api) == 200
    assert server.shown == ["first.example", "second.example"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param("secret", "it is not a JSON document", id="no JSON"),
        pytest.param('{"kind": "Pod", "secret": 1}', "apiVersion: Field required", id="no version"),
        pytest.param(
            f'{{"kind": "ExecCredential", "apiVersion": "{V1BETA1}", "status": {{"token": "secret"}}}}',
            f"its apiVersion is not {V1}",
            id="another version",
        ),
        pytest.param(f'{{"kind": "ExecCredential", "apiVersion": "{V1}"}}', "status: Field required", id="no status"),
        pytest.param(
            f'{{"kind": "ExecCredential", "apiVersion": "{V1}", "status": {{"clientCertificateData": "secret"}}}}',
            "it has a certificate without its key",
            id="half a certificate",
        ),
        pytest.param(
            f'{{"kind": "ExecCredential", "apiVersion": "{V1}", "status": {{"token": "secret", '
            '"expirationTimestamp": "secret"}}',
            "status.expirationTimestamp: Input should be a valid datetime",
            id="no time",
        ),
    ],
)
def test_what_a_plugin_prints_is_checked_and_never_repeated(
    document: str, words: str, plugin: Plugin, tmp_path: Path
) -> None:
    plugin.document.write_text(document)
    with pytest.raises(EngineError, match=words) as caught:
        ask(reach(kubeconfig(tmp_path, url="http://127.0.0.1:1", exec=plugin.entry())))
    assert f"the program {plugin.path}, which {tmp_path}/kubeconfig names for credentials, " in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_plugin_that_is_not_there_is_named(tmp_path: Path) -> None:
    entry = {"apiVersion": V1BETA1, "command": "no-such-plugin", "installHint": "Install it:\n  get plugin"}
    api = reach(kubeconfig(tmp_path, url="http://127.0.0.1:1", exec=entry))
    with pytest.raises(EngineError) as caught:
        ask(api)
    assert str(caught.value) == (
        f"the program no-such-plugin, which {tmp_path}/kubeconfig names for credentials, cannot start: "
        "No such file or directory; Install it: get plugin"
    )


def test_a_plugin_that_fails_is_quoted(server: Kubernetes, plugin: Plugin, tmp_path: Path) -> None:
    plugin.write("echo secret; echo '  you are not\tlogged in ' >&2; exit 3")
    api = reach(kubeconfig(tmp_path, url=server.url, exec=plugin.entry()))
    with pytest.raises(EngineError, match=r"ended with exit code 3: you are not logged in$") as caught:
        ask(api)
    assert "secret" not in str(caught.value)
    plugin.answer(token=TOKEN)
    plugin.write(f"cat {shlex.quote(str(plugin.document))}")
    assert ask(api) == 200, "it is run again at the next request"


def test_a_plugin_that_waits_is_ended_with_what_it_started(
    plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_credentials, "PLUGIN_TIMEOUT_S", 0.5)
    plugin.write("sleep 600 & wait")
    start_s = time.monotonic()
    with pytest.raises(EngineError, match=r"did not end within 0 s; if it waits for a login"):
        ask(reach(kubeconfig(tmp_path, url="http://127.0.0.1:1", exec=plugin.entry())))
    assert time.monotonic() - start_s < 60


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        pytest.param({"command": "x"}, "the user's exec: apiVersion is missing$", id="no version"),
        pytest.param("x", "the user's exec; received 'x'; allowed: keys and values", id="no mapping"),
        pytest.param(
            {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"},
            f"exec: apiVersion; received '.*v1alpha1'; allowed: {V1}, {V1BETA1}",
            id="an old version",
        ),
        pytest.param(
            {"apiVersion": V1, "command": "x", "arg": []},
            "the user's exec: unknown key arg; did you mean .args",
            id="a typo",
        ),
        pytest.param({"apiVersion": V1, "command": "x", "interactiveMode": "Always"}, "needs a terminal", id="asks"),
    ],
)
def test_entries_that_are_refused(entry: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        find_access(kubeconfig(tmp_path, url="https://10.0.0.1", exec=entry))


def test_what_kubectl_no_longer_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the user's auth-provider is not supported; allowed: exec, token"):
        find_access(kubeconfig(tmp_path, url="https://10.0.0.1", **{"auth-provider": {"name": "gcp"}}))
