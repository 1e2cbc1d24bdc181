"""Machines that are pods, against a server that acts as Kubernetes."""

from __future__ import annotations

import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.clusters.machines.kubernetes_server import TOKEN, Kubernetes, kubeconfig, kubernetes

from lockstep.clusters.machines import AbstractMachines
from lockstep.clusters.machines.kubeconfig import find_access
from lockstep.clusters.machines.kubernetes import KubernetesMachines
from lockstep.clusters.machines.kubernetes_api import KubernetesApi
from lockstep.clusters.machines.pods import Pods
from lockstep.errors import ConfigError, EngineError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import parse_cluster
from lockstep.testing.machines import AbstractMachinesConformance

ENGINE_TOKEN = "0123456789abcdef" * 4
NAME = "test-v100-0-0a1b2c"
UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available:\n3 Insufficient nvidia.com/gpu.",
        }
    ],
}
ENDED = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"reason": "Error", "exitCode": 1}}}]}
NO_IMAGE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "True"}],
    "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}],
}


@pytest.fixture(scope="module")
def _server() -> Iterator[Kubernetes]:
    with kubernetes() as state:
        yield state


@pytest.fixture
def server(_server: Kubernetes) -> Kubernetes:
    _server.objects = {"pods": {}, "secrets": {}}
    _server.status = {"phase": "Running"}
    return _server


def machines_of(name: str, *, file: str) -> KubernetesMachines:
    v100s = {"type": "NVIDIA_TESLA_V100", "count": 2}
    document = {
        "name": name,
        "provider": {
            "type": "kubernetes",
            "settings": {"namespace": "training", "image": "registry.example.com/lockstep:1", "kubeconfig": file},
        },
        "headAddress": "10.0.0.5",
        "setupCommands": ["echo 'it''s' ready"],
        "nodeTypes": {
            "cpu": {"machineType": "n1-standard-4", "maxNodes": 2},
            "v100": {"machineType": "n1-standard-8", "acceleratorConfig": v100s, "maxNodes": 1},
        },
    }
    pods = Pods(parse_cluster(document, source="cluster.yaml", catalogue=load_catalogue()), catalogue=load_catalogue())
    return KubernetesMachines(
        pods,
        connect=lambda: KubernetesApi(find_access(pods.kubeconfig)),
        token=ENGINE_TOKEN,
        head_address=lambda: "10.0.0.5:6379",
    )


@pytest.fixture
def machines(server: Kubernetes, tmp_path: Path) -> KubernetesMachines:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return machines_of("test", file=kubeconfig(tmp_path, url=server.url, tokenFile="token"))


class TestKubernetes(AbstractMachinesConformance):
    @pytest.fixture(autouse=True)
    def _made(self, machines: KubernetesMachines) -> None:
        self._machines = machines

    def machines(self) -> AbstractMachines:
        return self._machines


def test_a_machine_is_a_pod_that_ends_with_its_node(server: Kubernetes, machines: KubernetesMachines) -> None:
    machines.create(NAME, node_type="v100")
    spec = server.objects["pods"][NAME]["spec"]
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "30720Mi", "nvidia.com/gpu": "2"}
    *shell, script = container["command"]
    assert shell == ["bash", "-c"]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert f"exec ray start --block --address=10.0.0.5:6379 --labels=lockstep.io/node={NAME}," in script


def test_the_token_is_in_the_secret_alone_and_is_written_anew(server: Kubernetes, machines: KubernetesMachines) -> None:
    server.objects["secrets"]["test-ray-token"] = {"stringData": {"ray-token": "an earlier home's"}}
    machines.create(NAME, node_type="v100")
    assert server.objects["secrets"]["test-ray-token"]["stringData"] == {"ray-token": ENGINE_TOKEN}
    assert ENGINE_TOKEN not in str(server.objects["pods"])


@pytest.mark.parametrize(
    ("status", "words"),
    [
        pytest.param(
            UNSCHEDULABLE, "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", id="no room"
        ),
        pytest.param(NO_IMAGE, "ErrImagePull: no such image", id="no image"),
        pytest.param(ENDED, "Error: exit code 1", id="it ended"),
        pytest.param({"phase": "Running"}, "", id="nothing"),
    ],
)
def test_why_a_pod_is_not_up(
    status: dict[str, Any], words: str, server: Kubernetes, machines: KubernetesMachines
) -> None:
    server.status = status
    machines.create(NAME, node_type="v100")
    assert machines.names() == {NAME}
    assert machines.words(NAME) == words


def test_pods_of_others_are_neither_seen_nor_removed(
    server: Kubernetes, machines: KubernetesMachines, tmp_path: Path
) -> None:
    other = machines_of("other", file=kubeconfig(tmp_path, url=server.url, token=TOKEN))
    other.create("other-cpu-0-0a1b2c", node_type="cpu")
    assert machines.names() == frozenset()
    machines.remove("other-cpu-0-0a1b2c")
    assert other.names() == {"other-cpu-0-0a1b2c"}


def test_a_refusal_is_said_in_its_words(server: Kubernetes, tmp_path: Path) -> None:
    machines = machines_of("test", file=kubeconfig(tmp_path, url=server.url, token="wrong"))
    with pytest.raises(EngineError, match=r"^Kubernetes refuses, 401: Unauthorized$"):
        machines.names()


def test_one_that_does_not_answer_is_said(tmp_path: Path) -> None:
    machines = machines_of("test", file=kubeconfig(tmp_path, url="http://127.0.0.1:1", token=TOKEN))
    with pytest.raises(EngineError, match=r"^Kubernetes does not answer: ConnectError"):
        machines.names()


def test_a_certificate_opens_it_as_well(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    mine = authority.issue_cert("lockstep")
    user = {
        "client-certificate-data": b64encode(mine.cert_chain_pems[0].bytes()).decode(),
        "client-key-data": b64encode(mine.private_key_pem.bytes()).decode(),
    }
    with kubernetes(tls) as server:
        file = kubeconfig(tmp_path, url=server.url, authority=authority.cert_pem.bytes(), **user)
        assert machines_of("test", file=file).names() == frozenset()


@pytest.mark.parametrize(
    ("url", "user", "words"),
    [
        pytest.param("http://10.0.0.1", {"token": "x"}, "allowed: https", id="not encrypted"),
    ],
)
def test_kubeconfigs_that_are_refused(url: str, user: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        find_access(kubeconfig(tmp_path, url=url, **user))


@pytest.mark.parametrize(
    ("user", "words"),
    [
        pytest.param({"client-certificate": "mine.pem"}, "KeyError: 'client-key'", id="no key"),
        pytest.param({"client-certificate": "a", "client-key": "b"}, "FileNotFoundError", id="no such file"),
        pytest.param({"client-certificate-data": "!", "client-key-data": "="}, "Error: ", id="not encoded"),
        pytest.param({"client-certificate-data": "eA==", "client-key-data": "eA=="}, "SSLError", id="no certificate"),
    ],
)
def test_certificates_that_cannot_be_used_are_named(user: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"kubeconfig: its certificates cannot be used: .*{words}"):
        find_access(kubeconfig(tmp_path, url="https://10.0.0.1", **user))


def test_without_a_kubeconfig_the_service_is_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="kubeconfig is missing"):
        find_access(None)
