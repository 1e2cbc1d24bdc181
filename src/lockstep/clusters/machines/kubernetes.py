"""Machines as pods of Kubernetes: one pod for each machine, with the ledger's name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, final

from typing_extensions import override

from lockstep.clusters.machines.base import AbstractMachines
from lockstep.clusters.machines.kubernetes_api import KubernetesApi
from lockstep.clusters.machines.pods import TOKEN_KEY, Pods
from lockstep.clusters.machines.start_script import pod_script
from lockstep.clusters.ray.node_start import NODE_TYPE_LABEL

MACHINES_LABEL: Final = "lockstep.io/machines-of"
"""Label of a pod that is a machine. Its value is the cluster's name."""


@final
class KubernetesMachines(AbstractMachines):
    """The machines of one cluster, as pods in one namespace.

    Args:
        pods: the specifications of the cluster's pods.
        connect: connects to Kubernetes; called before the first request.
        token: the token that nodes need to join the engine.
        head_address: returns "host:port" of the head's control store.
    """

    def __init__(
        self, pods: Pods, *, connect: Callable[[], KubernetesApi], token: str, head_address: Callable[[], str]
    ) -> None:
        self._pods = pods
        self._connect = connect
        self._token = token
        self._head_address = head_address
        self._api: KubernetesApi | None = None
        self._has_secret = False
        self._words: dict[str, str] = {}
        self._lock = threading.Lock()

    @override
    def names(self) -> frozenset[str]:
        query = {"labelSelector": f"{MACHINES_LABEL}={self._pods.definition.name}"}
        _, found = self._opened().request("GET", self._path("pods"), query=query)
        self._words = {pod["metadata"]["name"]: _words(pod.get("status", {})) for pod in found["items"]}
        return frozenset(self._words)

    @override
    def words(self, name: str) -> str:
        return self._words.get(name, "")

    @override
    def create(self, name: str, *, node_type: str) -> None:
        self._write_secret()
        definition = self._pods.definition
        script = pod_script(
            name, node_type=node_type, head_address=self._head_address(), setup_commands=definition.setup_commands
        )
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {MACHINES_LABEL: definition.name, NODE_TYPE_LABEL: node_type}},
            "spec": self._pods.machine(node_type, script=script),
        }
        self._opened().request("POST", self._path("pods"), body=pod, accepted=(409,))  # 409: it exists already

    @override
    def remove(self, name: str) -> None:
        path = f"{self._path('pods')}/{name}"
        _, pod = self._opened().request("GET", path, accepted=(404,))
        labels = pod.get("metadata", {}).get("labels", {})
        if labels.get(MACHINES_LABEL) == self._pods.definition.name:
            self._opened().request("DELETE", path, accepted=(404,))

    def _write_secret(self) -> None:
        """Stores the engine's token in a Secret, so that no pod's specification contains it."""
        with self._lock:
            if self._has_secret:
                return
            name = self._pods.token_secret
            secret = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name},
                "stringData": {TOKEN_KEY: self._token},
            }
            status, _ = self._api_locked().request("POST", self._path("secrets"), body=secret, accepted=(409,))
            if status == 409:
                self._api_locked().request("PUT", f"{self._path('secrets')}/{name}", body=secret)
            self._has_secret = True

    def _opened(self) -> KubernetesApi:
        with self._lock:
            return self._api_locked()

    def _api_locked(self) -> KubernetesApi:
        if self._api is None:
            self._api = self._connect()
        return self._api

    def _path(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self._pods.namespace}/{kind}"


def _words(status: dict[str, Any]) -> str:
    """Returns Kubernetes's reason why a pod does not run, such as no node with enough room, or a missing image."""
    if status.get("phase") == "Running":
        return ""
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return " ".join(f"{condition.get('reason')}: {condition.get('message')}".split())
    for container in status.get("containerStatuses", []):
        state = container.get("state", {})
        found = state.get("waiting") or state.get("terminated") or {}
        why = found.get("message") or (f"exit code {found['exitCode']}" if "exitCode" in found else "")
        if why:
            return " ".join(f"{found.get('reason')}: {why}".split())
    return ""
