"""Requests to the service's REST interface."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final
from urllib.parse import quote, urlencode

import httpx

from lockstep import errors
from lockstep.client.addresses import AUTHORITY_VARIABLE, URL_VARIABLE, ServiceAddress, find_address
from lockstep.client.connections import open_connections
from lockstep.client.downloads import fetch_file
from lockstep.client.error_answers import read_error
from lockstep.client.job_requests import AbstractJobRequests
from lockstep.client.model_requests import TIMEOUT_S, AbstractModelRequests
from lockstep.client.paths import path_segment
from lockstep.client.tls import untrusted
from lockstep.errors import UnavailableError
from lockstep.home import Home

if TYPE_CHECKING:
    from lockstep.client.shell_connection import ShellConnection
    from lockstep.jobs.running.shell_frames import ShellRequest

DOCTOR_S: Final = 90.0
"""How long `Client.doctor` waits for the checks of the service's machine, in seconds."""
DOCTOR_POLL_S: Final = 0.5


@final
class Client(AbstractJobRequests, AbstractModelRequests):
    """Sends requests to the service. Thread-safe.

    Each method sends one request unless it says otherwise.

    Args:
        address: the service's address.
        project: the project of the jobs, secrets and models.
        locate: finds the service's current address, for `find_again`; None if the address never changes.

    Raises:
        LockstepError: the service rejects a request; the class is the one that the service raised.
        ConfigError: the certificates to verify the service with cannot be read, or a proxy cannot be used.
        UnavailableError: the service does not respond, or its certificate is not trusted.
    """

    def __init__(
        self,
        address: ServiceAddress,
        *,
        project: str = "local",
        locate: Callable[[], ServiceAddress] | None = None,
    ) -> None:
        self._locate = locate
        self._project = project
        self._prefix = f"/v1/projects/{path_segment(project, what='project')}"
        self._address = address
        self._http = open_connections(address, timeout_s=TIMEOUT_S)
        self._finding = threading.Lock()
        self._former: list[httpx.Client] = []

    @classmethod
    def from_home(cls, home: Home, *, project: str = "local") -> Self:
        """Returns a client of a home's running service that uses the home's own token.

        Raises:
            UnavailableError: no service runs on the home.
        """
        return cls._located(lambda: find_address(home, env={}), project=project)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, project: str = "local") -> Self:
        """Returns a client of the service that the environment names, by default the home's: see `find_address`.

        Raises:
            ConfigError: a variable is not valid, or one is missing.
            UnavailableError: no service is named, and none runs on the home.
        """
        variables = dict(os.environ if env is None else env)
        return cls._located(lambda: find_address(Home.from_env(variables), env=variables), project=project)

    @classmethod
    def _located(cls, locate: Callable[[], ServiceAddress], *, project: str) -> Self:
        return cls(locate(), project=project, locate=locate)

    @property
    def project(self) -> str:
        """The project of the jobs, secrets and models."""
        return self._project

    @property
    def url(self) -> str:
        """The base URL of the service's REST paths."""
        return self._address.url

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the service runs on this machine, so that a path means the same file to both."""
        return self._address.is_on_this_machine

    def find_again(self) -> None:
        """Finds the service again, because another one may run on the home by now, with another port and token.

        Sends no request, so a process that has got the old port in the meantime never receives a token.

        Raises:
            UnavailableError: no service runs.
        """
        if self._locate is None:
            return
        with self._finding:
            address = self._locate()
            if address != self._address:
                self._former.append(self._http)  # another thread may be using it
                self._address, self._http = address, open_connections(address, timeout_s=TIMEOUT_S)

    def close(self) -> None:
        """Closes the connections."""
        with self._finding:
            for connections in (self._http, *self._former):
                connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_health(self) -> None:
        """Returns if the service responds, and raises otherwise."""
        self._call("GET", "/healthz")

    def whoami(self) -> dict[str, Any]:
        """Returns the label, scope and project of this client's key, and the bucket that code is staged in."""
        return self._call("GET", "/v1/whoami")

    def create_key(
        self, *, label: str, scope: str, project: str, valid_s: float | None, **limits: str | float | None
    ) -> dict[str, Any]:
        """Creates a key, and returns it with its secret, which cannot be read again later.

        `limits` are those of callers: ``model``, ``version`` and ``requestsPerSecond``.
        """
        body = {"label": label, "scope": scope, "project": project, "validSeconds": valid_s, **limits}
        return self._call("POST", "/v1/keys", body=body)

    def keys(self) -> list[dict[str, Any]]:
        """Returns all keys, the oldest first."""
        return self._call("GET", "/v1/keys")["keys"]

    def revoke_key(self, key_id: str) -> dict[str, Any]:
        """Revokes a key, and returns it."""
        return self._call("POST", f"/v1/keys/{path_segment(key_id, what='key')}:revoke")

    def set_secret(self, name: str, *, value: str) -> None:
        """Creates or replaces a secret of the project."""
        self._call("PUT", self._secret(name), body={"value": value})

    def secrets(self) -> list[dict[str, Any]]:
        """Returns the project's secrets, ordered by name, without their values, which cannot be read back."""
        return self._call("GET", f"{self._prefix}/secrets")["secrets"]

    def remove_secret(self, name: str) -> None:
        """Removes a secret of the project."""
        self._call("DELETE", self._secret(name))

    def console_url(self, *, then: str = "/") -> str:
        """Returns a URL that opens the console signed in as this client, once, within five minutes.

        Args:
            then: the path of the console that is shown.
        """
        made = self._call("POST", "/v1/console:link", body={})
        return f"{self.url}{made['path']}&{urlencode({'then': then})}"

    def webhook_deliveries(self, webhook: str) -> list[dict[str, Any]]:
        """Returns the last deliveries of a webhook of the operator, the latest first."""
        return self._call("GET", f"/v1/webhooks/{path_segment(webhook, what='webhook')}/deliveries")["deliveries"]

    def service(self) -> dict[str, Any]:
        """Returns the status of the service."""
        return self._call("GET", "/v1/service")

    def doctor(self) -> dict[str, Any]:
        """Returns what is wrong with the service's own machine; sends requests until the checks have ended.

        Returns:
            ``{"time", "checking", "findings", "passed", "skipped"}``; see docs/operations.md. ``checking`` is true if
            they did not end within `DOCTOR_S`.
        """
        deadline = time.monotonic() + DOCTOR_S
        while (found := self._call("GET", "/v1/doctor"))["checking"] and time.monotonic() < deadline:
            time.sleep(DOCTOR_POLL_S)
        return found

    def nodes(self, *, everything: bool = False) -> dict[str, Any]:
        """Returns the nodes of a cluster whose machines are created and deleted on demand.

        Args:
            everything: whether to include nodes that no longer exist.
        """
        return self._call("GET", "/v1/nodes" + ("?all=true" if everything else ""))

    def queue(self, *, limit: int = 100) -> dict[str, Any]:
        """Returns the first jobs in the queue of all projects, and the quotas of projects.

        Args:
            limit: the maximum number of jobs; sends as many requests as needed.

        Returns:
            ``{"jobs": [{"project", "jobId", "kind", "priority", "createTime", "position", "reason", "startByTime"}],
            "numQueued", "quotas": [...]}``.
        """
        found = self._call("GET", "/v1/queue", query={"pageSize": limit})
        token = found.pop("nextPageToken", None)
        while token and len(found["jobs"]) < limit:
            page = self._call("GET", "/v1/queue", query={"pageSize": limit - len(found["jobs"]), "pageToken": token})
            found["jobs"] += page["jobs"]
            token = page.get("nextPageToken")
        return found

    def ended_nodes(self, *, size: int = 0, token: str = "") -> dict[str, Any]:
        """Returns a page of the nodes that ended, those that were requested last first.

        Args:
            size: the maximum number of nodes; 0 for the service's default.
            token: the token from the previous page; empty for the first page.
        """
        return self._call("GET", "/v1/nodes/ended", query={"pageSize": size, "pageToken": token})

    def data_sets(self, *, folder: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Returns the packed data sets in a folder of a bucket.

        Args:
            folder: the URL of the folder; empty for the project's folder in the service's bucket.
            limit: the maximum number of data sets; sends as many requests as needed.
        """
        path, found, token = f"{self._prefix}/datasets", [], ""
        while len(found) < limit:
            query = {"folder": folder, "pageSize": limit - len(found), "pageToken": token}
            page = self._call("GET", path, query=query)
            found += page["datasets"]
            token = page.get("nextPageToken", "")
            if not token:
                break
        return found[:limit]

    def data_set(self, url: str, *, num_records: int = 24) -> dict[str, Any]:
        """Returns a packed data set with its first files and its first records.

        Args:
            url: its URL, as `data_sets` returns it.
            num_records: the maximum number of records.
        """
        query = {"url": url, "numRecords": num_records}
        return self._call("GET", f"{self._prefix}/datasets:read", query=query)

    def fetch_artifact(self, job_id: str, path: str, *, to: Path) -> None:
        """Downloads a file that a job left. The local file appears whole or not at all.

        Args:
            job_id: the job's id.
            path: the path of the file, as `artifacts` returns it.
            to: the local file, which is replaced if it exists. Its folder is created.

        Raises:
            InvalidInputError: no artifact can have this path.
            StorageWriteError: the local file cannot be written.
        """
        names = path.split("/")
        if any(name in ("", ".", "..") for name in names):
            raise errors.InvalidInputError("not the path of an artifact", received=path, allowed="OUTPUT/NAME")
        quoted = "/".join(quote(name, safe="") for name in names)
        fetch_file(self._http, f"{self._job(job_id)}/artifacts/{quoted}", to=to, unavailable=self._unavailable)

    def costs(self, *, by: str = "job", since: str = "", until: str = "", all_projects: bool = False) -> dict[str, Any]:
        """Returns the costs of the project's jobs, or of all projects: ``{"rows": [...], "total": {...}, ...}``."""
        path = "/v1/costs" if all_projects else f"{self._prefix}/costs"
        return self._call("GET", path, query={"by": by, "since": since, "until": until})

    def version_log_page(
        self, model: str, *, version: str, server: str = "", cursor: str = "", filter_text: str = ""
    ) -> dict[str, Any]:
        """Returns the next entries of a prediction server's log that match a filter.

        Args:
            model: the model's name.
            version: the version's name.
            server: the server of the previous page; empty for the version's newest server.
            cursor: the cursor from the previous page; empty for the first page.
            filter_text: a filter in Cloud Logging's query language; see docs/logs.md.

        Returns:
            As `log_page`, with ``"server"``.
        """
        query = {"server": server, "cursor": cursor, "filter": filter_text}
        return self._call("GET", f"{self._version(model, version)}/logEntries", query=query)

    def metric_pages(self, job_id: str, *, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the metrics of a job's replicas over time, page by page; sends as many requests as needed.

        Args:
            job_id: the job's id.
            query: the query parameters ``name`` (a list), ``replica``, ``attempt``, ``since``, ``until`` and
                ``maxPoints``; see docs/watching.md.

        Yields:
            ``{"series": [{"replica", "attempt", "name", "unit", "points"}], "intervalSeconds"}``.
        """
        yield from self._metric_pages(self._job(job_id), query=query)

    def version_metric_pages(self, model: str, *, version: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the metrics of a version's prediction servers over time, server by server; sends as many requests.

        Args:
            model: the model's name.
            version: the version's name.
            query: the query parameters ``name`` (a list), ``server``, ``since``, ``until`` and ``maxPoints``; see
                docs/watching.md.

        Yields:
            As `metric_pages`. Each series has ``"server"``.
        """
        yield from self._metric_pages(self._version(model, version), query=query)

    def _metric_pages(self, resource: str, *, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            page = self._call("GET", f"{resource}/metrics", query={**query, "pageToken": token})
            yield page
            token = page.get("nextPageToken", "")
            if not token:
                return

    def request_profile(self, job_id: str, *, replica: str, num_steps: int) -> dict[str, Any]:
        """Requests a profile of the next training steps of a replica; `lockstep.client.profiles` waits for it.

        Args:
            job_id: the job's id.
            replica: the replica's name.
            num_steps: the number of steps.

        Returns:
            ``{"id", "state", "numSteps", "files", "problem"}``, as the replica in `job` reports it from then on.
        """
        path = f"{self._job(job_id)}/replicas/{path_segment(replica, what='replica')}:profile"
        return self._call("POST", path, body={"numSteps": num_steps})

    def open_shell(self, job_id: str, *, replica: str, request: ShellRequest) -> ShellConnection:
        """Opens a shell in a replica of a running job; see docs/watching.md.

        Args:
            job_id: the job's id.
            replica: the replica's name.
            request: the command to run, and its terminal.
        """
        # Imported here because no other request needs WebSockets.
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        from lockstep.client.shell_connection import ShellConnection

        path = f"{self._job(job_id)}/replicas/{path_segment(replica, what='replica')}:exec"
        try:
            return ShellConnection(self._address, path=path, request=request)
        except InvalidStatus as error:
            refused = httpx.Response(error.response.status_code, content=bytes(error.response.body or b""))
            if refused.status_code == errors.PermissionDeniedError.http_status and not refused.content:
                raise errors.PermissionDeniedError(
                    "the service refuses this key", action="see `lockstep whoami`"
                ) from None
            raise read_error(refused) from None
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise self._unavailable(error) from error

    def _listed(self, path: str, *, field: str, query: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        token = ""
        while len(found) < limit:
            asked = {**query, "pageSize": min(100, limit - len(found)), "pageToken": token}
            page = self._call("GET", path, query=asked)
            found += page[field]
            token = page.get("nextPageToken", "")
            if not token:
                break
        return found

    def _pages(self, path: str, *, field: str) -> Iterator[dict[str, Any]]:
        """Yields the resources on all pages of a list; sends a request for each page."""
        token = ""
        while True:
            page = self._call("GET", path, query={"pageSize": 1000, "pageToken": token})
            yield from page[field]
            token = page.get("nextPageToken", "")
            if not token:
                return

    def _secret(self, name: str) -> str:
        return f"{self._prefix}/secrets/{path_segment(name, what='secret')}"

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return self._read(self._send(method, path, **options))

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> httpx.Response:
        if headers is None and content is not None:
            headers = {"content-type": "application/json"}
        try:
            answer = self._http.request(
                method, path, params=query, json=body, content=content, headers=headers, timeout=timeout_s
            )
        except ValueError as error:  # for example NaN, which JSON cannot express
            raise errors.InvalidInputError(f"the request cannot be written as JSON: {error}") from None
        except httpx.HTTPError as error:
            raise self._unavailable(error) from error
        if not answer.is_success:
            raise read_error(answer)
        return answer

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            return answer.json()
        except ValueError:
            raise UnavailableError(
                f"the server at {self._address.url} is not a Lockstep service", action=f"see {URL_VARIABLE}"
            ) from None

    def _unavailable(self, error: Exception) -> UnavailableError:
        if (reason := untrusted(error)) is not None:
            return UnavailableError(
                f"the certificate of {self._address.url} is not trusted: {reason}",
                action=f"name its authority's certificate with {AUTHORITY_VARIABLE}",
            )
        found = UnavailableError(
            f"the service at {self._address.url} does not respond: {str(error) or type(error).__name__}",
            action="see `lockstep status`",
        )
        found.retry_after_s = 0.0
        return found
