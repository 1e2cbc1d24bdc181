"""Runs the exec plugin of a kubeconfig: the program that returns credentials for a managed cluster.

https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, final

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from lockstep.errors import ConfigError, EngineError
from lockstep.jobs.parsing.fields import AbstractDocument, Flag, Text
from lockstep.jobs.parsing.rules import parse_document
from lockstep.processes.exit_codes import describe_exit

PLUGIN_TIMEOUT_S: Final = 60.0

_EARLY: Final = timedelta(seconds=10)
_MAX_WORDS: Final = 300


@final
class _Version(StrEnum):
    V1 = "client.authentication.k8s.io/v1"
    V1BETA1 = "client.authentication.k8s.io/v1beta1"


@final
class _Variable(AbstractDocument):
    name: Text
    value: Text


@final
class _ExecEntry(AbstractDocument):
    api_version: _Version
    command: Text
    args: tuple[Text, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    install_hint: Text = ""
    interactive_mode: Text = ""
    provide_cluster_info: Flag = False


class _Printed(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, hide_input_in_errors=True)


@final
class Credential(_Printed):
    """What a plugin returns: a token, a certificate (a chain in PEM form) with its key, or both."""

    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: AwareDatetime | None = None


@final
class _ExecCredential(_Printed):
    api_version: str
    kind: Literal["ExecCredential"]
    status: Credential


@final
class ExecPlugin:
    """A program that returns credentials. Thread-safe.

    Args:
        entry: the user's ``exec`` in a kubeconfig.
        cluster: the cluster in the kubeconfig.
        path: the kubeconfig.

    Raises:
        ConfigError: the entry has an unknown key or a wrong type, or the program needs a terminal.
    """

    def __init__(self, entry: object, *, cluster: Mapping[str, Any], path: Path) -> None:
        read = parse_document(_ExecEntry, document=entry, source=f"{path}: the user's exec")
        if read.interactive_mode == "Always":
            raise ConfigError(f"{path}: the user's exec needs a terminal (interactiveMode), and the service has none")
        command = str(path.parent.absolute() / read.command) if "/" in read.command else read.command
        spec: dict[str, Any] = {"interactive": False}
        if read.provide_cluster_info:
            spec["cluster"] = _describe_cluster(cluster, folder=path.parent)
        info = {"apiVersion": read.api_version, "kind": "ExecCredential", "spec": spec}
        self._command = (command, *(read.args or ()))
        self._variables = {each.name: each.value for each in read.env or ()} | {
            "KUBERNETES_EXEC_INFO": json.dumps(info)
        }
        self._version = read.api_version
        self._what = f"the program {command}, which {path} names for credentials,"
        self._install_hint = " ".join(read.install_hint.split()) or "install it where the service finds it (PATH)"
        self._held: Credential | None = None
        self._lock = threading.Lock()

    def fetch(self, *, refused: Credential | None = None) -> Credential:
        """Returns a credential; runs the program if none is held, or the held one expires or was refused.

        Args:
            refused: a credential that Kubernetes has refused.

        Raises:
            EngineError: the program is missing, fails, takes more than `PLUGIN_TIMEOUT_S` or returns no credential.
        """
        with self._lock:  # other threads wait for the same result
            held = self._held
            expiry = None if held is None else held.expiration_timestamp
            if held is None or held is refused or (expiry and datetime.now(UTC) >= expiry - _EARLY):
                self._held = held = self._read(self._run())
            return held

    def _read(self, output: bytes) -> Credential:
        try:
            document = _ExecCredential.model_validate_json(output)
        except ValidationError as error:  # its text is not shown: it may repeat a token
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            problem = f"{where}: {first['msg']}" if where else "it is not a JSON document"
        else:
            status = document.status
            if document.api_version != self._version:
                problem = f"its apiVersion is not {self._version}, which the kubeconfig names"
            elif bool(status.client_certificate_data) != bool(status.client_key_data):
                problem = "it has a certificate without its key, or a key alone"
            elif not (status.token or status.client_certificate_data):
                problem = "it has neither a token nor a certificate"
            else:
                return status
        raise EngineError(f"{self._what} returned no ExecCredential: {problem}")

    def _run(self) -> bytes:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **self._variables},
                start_new_session=True,
            )
        except OSError as error:
            raise EngineError(f"{self._what} cannot start: {error.strerror}", action=self._install_hint) from None
        with process:
            try:
                output, errors = process.communicate(timeout=PLUGIN_TIMEOUT_S)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):  # also its children, which may hold the pipes open
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise EngineError(
                    f"{self._what} did not end within {PLUGIN_TIMEOUT_S:.0f} s",
                    action="if it waits for a login, log in on the service's machine, as the service's user",
                ) from None
        if process.returncode:
            lines = errors.decode(errors="replace").split("\n")
            last = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "no message")
            raise EngineError(f"{self._what} {describe_exit(process.returncode)}: {last[:_MAX_WORDS]}")
        return output


def load_certificate(tls: ssl.SSLContext, *, certificate: bytes, key: bytes) -> None:
    """Loads a client certificate (a chain) and its private key, both in PEM form.

    Raises:
        OSError: they are not a certificate and its key.
    """
    with tempfile.TemporaryDirectory() as private:  # only this user can read it; Python's ssl loads only files
        paths = Path(private) / "certificate", Path(private) / "key"
        for path, data in zip(paths, (certificate, key), strict=True):
            path.write_bytes(data)
        tls.load_cert_chain(*paths)


def _describe_cluster(cluster: Mapping[str, Any], *, folder: Path) -> dict[str, Any]:
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
    info = {name: cluster[name] for name in names if name in cluster}
    if "certificate-authority" in cluster:
        data = (folder / cluster["certificate-authority"]).read_bytes()
        info["certificate-authority-data"] = base64.b64encode(data).decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info
