"""Finds the address and credentials of the Kubernetes API, from a kubeconfig or from a pod's service account."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import urlsplit

from lockstep.clusters.machines.kubernetes_credentials import ExecPlugin, load_certificate
from lockstep.errors import ConfigError
from lockstep.jobs.parsing.yaml_documents import read_yaml

ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder of a pod's service account, with its token, which Kubernetes replaces from time to time."""


@final
@dataclass(frozen=True, kw_only=True)
class KubernetesAccess:
    """The address of the Kubernetes API, and the credentials for it.

    Attributes:
        url: the URL of the API.
        token: the bearer token; "" if there is none.
        token_file: a file that contains the token; read for each request.
        plugin: a program that returns credentials.
        tls: the trusted certificate authorities, and the client certificate if there is one.
    """

    url: str
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    plugin: ExecPlugin | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)


def find_access(kubeconfig: str | None) -> KubernetesAccess:
    """Returns the access to Kubernetes that a kubeconfig or a pod's service account gives.

    Args:
        kubeconfig: the path of the kubeconfig; None to use the pod's service account.

    Raises:
        ConfigError: there is neither, or the file uses a setting that is not supported.
        MissingInputError: the file does not exist.
    """
    if kubeconfig is not None:
        return _read_kubeconfig(Path(kubeconfig).expanduser())
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if host is None:
        raise ConfigError(
            "provider.settings.kubeconfig is missing",
            action="set it to the path of a kubeconfig, or run the service in a pod of the cluster",
        )
    tls = ssl.create_default_context(cafile=str(ACCOUNT_FOLDER / "ca.crt"))
    return KubernetesAccess(
        url=f"https://{f'[{host}]' if ':' in host else host}:{port}", token_file=ACCOUNT_FOLDER / "token", tls=tls
    )


def _read_kubeconfig(path: Path) -> KubernetesAccess:
    document = read_yaml(path, flag="provider.settings.kubeconfig")
    try:
        context = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", context["cluster"])["cluster"]
        user = _named(document, "users", context["user"])["user"] or {}
        url = str(cluster["server"])
    except (KeyError, TypeError):
        raise ConfigError(
            f"{path} is not a valid kubeconfig: it needs a current context with a cluster and a user"
        ) from None
    if urlsplit(url).scheme != "https" and urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(f"{path}: server", received=url, allowed="https")
    unknown = {"auth-provider", "username"} & set(user)
    if unknown:
        raise ConfigError(
            f"{path}: the user's {min(unknown)} is not supported",
            allowed="exec, token, tokenFile, client-certificate and client-key, or their data",
            action="write the kubeconfig with the cloud's current command, or use a service account's token",
        )
    token_file = user.get("tokenFile")
    try:
        tls = _tls(cluster, user, folder=path.parent) if url.startswith("https") else None
        plugin = ExecPlugin(user["exec"], cluster=cluster, path=path) if "exec" in user else None
    except (KeyError, ValueError, OSError) as error:
        problem = f"{path}: its certificates cannot be used: {type(error).__name__}: {error}"
        raise ConfigError(problem) from None
    return KubernetesAccess(
        url=url,
        token=str(user.get("token", "")),
        token_file=None if token_file is None else path.parent / token_file,
        plugin=plugin,
        tls=tls,
    )


def _named(document: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    for entry in document[key]:
        if entry["name"] == name:
            return entry
    raise KeyError(name)


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], *, folder: Path) -> ssl.SSLContext:
    data = cluster.get("certificate-authority-data")
    file = cluster.get("certificate-authority")
    tls = ssl.create_default_context(
        cafile=None if file is None else str(folder / file),
        cadata=None if data is None else base64.b64decode(data).decode(),
    )
    if "client-certificate" in user:
        tls.load_cert_chain(folder / user["client-certificate"], folder / user["client-key"])
    elif "client-certificate-data" in user:
        load_certificate(
            tls,
            certificate=base64.b64decode(user["client-certificate-data"]),
            key=base64.b64decode(user["client-key-data"]),
        )
    return tls
