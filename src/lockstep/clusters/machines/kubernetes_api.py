"""A small client of the Kubernetes API, for the requests that machines need."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from typing import Any, Final, final

import httpx

from lockstep.clusters.machines.kubeconfig import KubernetesAccess
from lockstep.clusters.machines.kubernetes_credentials import Credential, load_certificate
from lockstep.errors import EngineError

TIMEOUT_S: Final = 15.0


@final
class _Auth(httpx.Auth):
    def __init__(self, access: KubernetesAccess) -> None:
        self._access = access
        self._loaded: Credential | None = None
        self._lock = threading.Lock()

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        plugin = self._access.plugin
        if plugin is None:
            file = self._access.token_file
            _add_token(request, self._access.token if file is None else file.read_text().strip())
            yield request
            return
        credential = plugin.fetch()
        self._add(request, credential)
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED:
            self._add(request, plugin.fetch(refused=credential))
            yield request

    def _add(self, request: httpx.Request, credential: Credential) -> None:
        _add_token(request, credential.token)
        tls, certificate, key = self._access.tls, credential.client_certificate_data, credential.client_key_data
        if tls is None or certificate is None or key is None:
            return
        request.headers["Connection"] = "close"  # the next connection may need another certificate
        with self._lock:
            if credential is self._loaded:
                return
            try:
                load_certificate(tls, certificate=certificate.encode(), key=key.encode())
            except OSError as error:
                raise EngineError(f"the certificate for Kubernetes cannot be used: {type(error).__name__}") from None
            self._loaded = credential


def _add_token(request: httpx.Request, token: str | None) -> None:
    if token:
        request.headers["Authorization"] = f"Bearer {token}"


@final
class KubernetesApi:
    """A client of the Kubernetes API. Thread-safe. Blocks for up to `TIMEOUT_S`, and while an exec plugin runs.

    Args:
        access: the API's address and credentials.
    """

    def __init__(self, access: KubernetesAccess) -> None:
        self._client = httpx.Client(
            base_url=access.url,
            auth=_Auth(access),
            verify=access.tls or True,
            timeout=TIMEOUT_S,
            trust_env=False,  # no proxy: the API is on the cluster's own network
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        accepted: tuple[int, ...] = (),
    ) -> tuple[int, dict[str, Any]]:
        """Sends a request and returns the response.

        Args:
            method: the HTTP method.
            path: the path of the resource.
            body: the JSON document to send.
            query: the query parameters.
            accepted: error statuses that do not raise an error.

        Returns:
            The HTTP status, and the response's document.

        Raises:
            EngineError: Kubernetes does not answer, or refuses the request (with its message), or there is no
                credential.
        """
        try:
            response = self._client.request(method, path, json=body, params=query)
            document = response.json()
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise EngineError(f"Kubernetes does not answer: {type(error).__name__}: {error}") from None
        if response.is_error and response.status_code not in accepted:
            words = document.get("message") or response.reason_phrase
            raise EngineError(f"Kubernetes refuses, {response.status_code}: {words}")
        return response.status_code, document
