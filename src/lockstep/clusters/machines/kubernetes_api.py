"""The few requests to Kubernetes that machines need."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Final, final

import httpx

from lockstep.clusters.machines.kubeconfig import KubernetesAccess
from lockstep.errors import EngineError

TIMEOUT_S: Final = 15.0


@final
class _TokenAuth(httpx.Auth):
    def __init__(self, access: KubernetesAccess) -> None:
        self._access = access

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        file = self._access.token_file
        token = self._access.token if file is None else file.read_text().strip()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        yield request


@final
class KubernetesApi:
    """Kubernetes' interface. Thread-safe; blocks for up to `TIMEOUT_S`.

    Args:
        access: where it is.
    """

    def __init__(self, access: KubernetesAccess) -> None:
        self._client = httpx.Client(
            base_url=access.url,
            auth=_TokenAuth(access),
            verify=access.tls or True,
            timeout=TIMEOUT_S,
            trust_env=False,  # no proxy's: the interface is near
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
        """Makes a request.

        Args:
            method: of HTTP.
            path: the resource.
            body: what is sent.
            query: what is asked for.
            accepted: HTTP statuses that are no error beside those of success.

        Returns:
            HTTP status and answer.

        Raises:
            EngineError: it does not answer, or refuses, in its words.
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
