"""Calls of the service's REST interface."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, final
from urllib.parse import quote

import httpx
from websockets.exceptions import InvalidHandshake, InvalidStatus

from lockstep import errors
from lockstep.client.addresses import AUTHORITY_VARIABLE, URL_VARIABLE, ServiceAddress, find_address
from lockstep.client.shell_connection import ShellConnection
from lockstep.client.tls import ssl_context, untrusted
from lockstep.errors import InvalidInputError, LockstepError, UnavailableError
from lockstep.home import Home
from lockstep.jobs.running.shell_frames import ShellRequest

TIMEOUT_S: Final = 30.0
PREDICT_TIMEOUT_S: Final = 120.0


_CLASSES: Final = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LockstepError)]
_BY_REASON: Final = {kind.reason(): kind for kind in _CLASSES}
_BY_HTTP_STATUS: Final = {
    **{kind.http_status: kind for kind in reversed(_CLASSES)},
    errors.NotFoundError.http_status: errors.NotFoundError,  # of the service, rather than a file
}
"""For answers that name no reason, as a prediction server's; the first class of a status stands for it."""


@final
class Client:
    """Calls the service. Thread-safe, but for `find_again`; each method is one request unless it says otherwise.

    Args:
        address: where the service is.
        project: whose jobs and models.
        locate: where `find_again` looks; None where it stays where it is.

    Raises:
        LockstepError: what the service refused, as the class that it raised there.
        ConfigError: what its certificate is to be verified with cannot be read, or a proxy cannot be used.
        UnavailableError: it does not answer, or its certificate is not trusted.
    """

    def __init__(
        self,
        address: ServiceAddress,
        *,
        project: str = "local",
        locate: Callable[[], ServiceAddress] | None = None,
    ) -> None:
        self._locate = locate
        self._prefix = f"/v1/projects/{_segment(project, what='project')}"
        self._address = address
        self._http = _connect(address)

    @classmethod
    def from_home(cls, home: Home, *, project: str = "local") -> Self:
        """Returns a client of a home's running service, opened by the home's own token.

        Raises:
            UnavailableError: none runs.
        """
        return cls._located(lambda: find_address(home, env={}), project=project)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, *, project: str = "local") -> Self:
        """Returns a client of the service that the environment names, or of the home's: see `find_address`.

        Raises:
            ConfigError: a variable is not usable, or one is missing.
            UnavailableError: none is named, and none runs.
        """
        variables = dict(os.environ if env is None else env)
        return cls._located(lambda: find_address(Home.from_env(variables), env=variables), project=project)

    @classmethod
    def _located(cls, locate: Callable[[], ServiceAddress], *, project: str) -> Self:
        return cls(locate(), project=project, locate=locate)

    @property
    def url(self) -> str:
        """Base of the service's REST paths."""
        return self._address.url

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the service is, so that paths mean the same to both."""
        return self._address.is_on_this_machine

    def find_again(self) -> None:
        """Looks for the service anew: another one may run on the home by now, with another port and another token.

        Sends nothing.

        Raises:
            UnavailableError: none runs; whoever has its old port by now is not asked, and gets no token.
        """
        address = self._address if self._locate is None else self._locate()
        if address != self._address:
            self._http.close()
            self._address, self._http = address, _connect(address)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_health(self) -> None:
        """Returns if the service answers."""
        self._call("GET", "/healthz")

    def whoami(self) -> dict[str, Any]:
        """Returns what this client's key is for, and which bucket code is staged in."""
        return self._call("GET", "/v1/whoami")

    def create_key(self, *, label: str, scope: str, project: str, valid_s: float | None) -> dict[str, Any]:
        """Makes a key; returns it with its secret, which nobody can find out again."""
        body = {"label": label, "scope": scope, "project": project, "validSeconds": valid_s}
        return self._call("POST", "/v1/keys", body=body)

    def keys(self) -> list[dict[str, Any]]:
        """Returns all keys, the oldest first."""
        return self._call("GET", "/v1/keys")["keys"]

    def revoke_key(self, key_id: str) -> dict[str, Any]:
        """Revokes a key; returns it."""
        return self._call("POST", f"/v1/keys/{_segment(key_id, what='key')}:revoke")

    def set_secret(self, name: str, *, value: str) -> None:
        """Sets a secret of the project, new or not."""
        self._call("PUT", self._secret(name), body={"value": value})

    def secrets(self) -> list[dict[str, Any]]:
        """Returns the project's secrets by name, without their values, which nobody reads back."""
        return self._call("GET", f"{self._prefix}/secrets")["secrets"]

    def remove_secret(self, name: str) -> None:
        """Removes a secret of the project."""
        self._call("DELETE", self._secret(name))

    def service(self) -> dict[str, Any]:
        """Returns how the service is."""
        return self._call("GET", "/v1/service")

    def nodes(self, *, everything: bool = False) -> dict[str, Any]:
        """Returns the nodes of a cluster whose machines come and go.

        Args:
            everything: those that are gone, too.
        """
        return self._call("GET", "/v1/nodes" + ("?all=true" if everything else ""))

    def create_job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Submits a job, in the contract's JSON; returns it as created."""
        return self._call("POST", f"{self._prefix}/jobs", body=job)

    def preview_job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what a job would be, without submitting it."""
        return self._call("POST", f"{self._prefix}/jobs", query={"validateOnly": "true"}, body=job)

    def update_labels(self, job_id: str, *, labels: Mapping[str, str], etag: str) -> dict[str, Any]:
        """Replaces a job's labels, if it has not changed since it was read with this etag; returns it."""
        body = {"labels": dict(labels), "etag": etag}
        return self._call("PATCH", self._job(job_id), query={"updateMask": "labels"}, body=body)

    def job(self, job_id: str) -> dict[str, Any]:
        """Returns a job."""
        return self._call("GET", self._job(job_id))

    def jobs(self, *, filter_text: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Returns jobs, the newest first; as many requests as the limit needs."""
        found: list[dict[str, Any]] = []
        token = ""
        while len(found) < limit:
            page = self.job_page(filter_text=filter_text, size=min(100, limit - len(found)), token=token)
            found += page["jobs"]
            token = page.get("nextPageToken", "")
            if not token:
                break
        return found

    def job_page(self, *, filter_text: str = "", size: int = 0, token: str = "") -> dict[str, Any]:
        """Returns a page of jobs, the newest first.

        Args:
            filter_text: those that this holds for.
            size: how many at the most; 0 leaves it to the service.
            token: the one of the page before; empty for the first page.

        Returns:
            ``{"jobs", "nextPageToken"}``; the token is there where more follow.
        """
        query = {"filter": filter_text, "pageSize": size, "pageToken": token}
        return self._call("GET", f"{self._prefix}/jobs", query=query)

    def cancel_job(self, job_id: str) -> None:
        """Asks for a job's end."""
        self._call("POST", f"{self._job(job_id)}:cancel")

    def job_events(self, job_id: str) -> list[dict[str, Any]]:
        """Returns a job's events, the oldest first."""
        return self._call("GET", f"{self._job(job_id)}/events")["events"]

    def job_models(self, job_id: str) -> list[dict[str, Any]]:
        """Returns the ``.keras`` files that a job left, each with ``url`` and ``sizeBytes``."""
        return self._call("GET", f"{self._job(job_id)}/models")["models"]

    def costs(self, *, by: str = "job", since: str = "", until: str = "", all_projects: bool = False) -> dict[str, Any]:
        """Returns what the project's jobs cost, or everything: ``{"rows": [...], "total": {...}}``."""
        path = "/v1/costs" if all_projects else f"{self._prefix}/costs"
        return self._call("GET", path, query={"by": by, "since": since, "until": until})

    def log_page(self, job_id: str, *, cursor: str = "", filter_text: str = "") -> dict[str, Any]:
        """Returns the next entries of a job's log for which a filter holds.

        Args:
            job_id: the job.
            cursor: the one of the page before.
            filter_text: a filter in Cloud Logging's query language; see docs/logs.md.

        Returns:
            ``{"entries", "cursor", "more", "complete", "numMissing"}``. A page may be empty and yet have more behind
            it: the service looks for a bounded time.
        """
        query = {"cursor": cursor, "filter": filter_text}
        return self._call("GET", f"{self._job(job_id)}/logEntries", query=query)

    def log_entries(self, job_id: str, *, filter_text: str = "") -> Iterator[dict[str, Any]]:
        """Yields what a job's log holds now, as Cloud Logging's ``LogEntry``; as many requests as it needs.

        Args:
            job_id: the job.
            filter_text: a filter in Cloud Logging's query language; see docs/logs.md.
        """
        cursor, more = "", True
        while more:
            page = self.log_page(job_id, cursor=cursor, filter_text=filter_text)
            yield from page["entries"]
            cursor, more = page["cursor"], page["more"]

    def metric_pages(self, job_id: str, *, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields what a job's replicas used over time, page by page; as many requests as it needs.

        Args:
            job_id: the job.
            query: ``name`` (a list), ``replica``, ``attempt``, ``since``, ``until``, ``maxPoints``;
                see docs/watching.md.

        Yields:
            ``{"series": [{"replica", "attempt", "name", "unit", "points"}], "intervalSeconds"}``.
        """
        token = ""
        while True:
            page = self._call("GET", f"{self._job(job_id)}/metrics", query={**query, "pageToken": token})
            yield page
            token = page.get("nextPageToken", "")
            if not token:
                return

    def open_shell(self, job_id: str, *, replica: str, request: ShellRequest) -> ShellConnection:
        """Opens a shell in a replica of a running job; see docs/watching.md.

        Args:
            job_id: the job.
            replica: the replica's name.
            request: what to run.
        """
        path = f"{self._job(job_id)}/replicas/{_segment(replica, what='replica')}:exec"
        try:
            return ShellConnection(self._address, path=path, request=request)
        except InvalidStatus as error:
            refused = httpx.Response(error.response.status_code, content=bytes(error.response.body or b""))
            if refused.status_code == errors.PermissionDeniedError.http_status and not refused.content:
                raise errors.PermissionDeniedError(
                    "the service refuses this key", action="see `lockstep whoami`"
                ) from None
            raise _error(refused) from None
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise self._unavailable(error) from error

    def create_model(self, name: str, *, description: str = "") -> dict[str, Any]:
        """Creates a model."""
        return self._call("POST", f"{self._prefix}/models", body={"name": name, "description": description})

    def model(self, name: str) -> dict[str, Any]:
        """Returns a model."""
        return self._call("GET", self._model(name))

    def create_version(
        self,
        model: str,
        *,
        name: str,
        deployment_uri: str,
        package_uris: Sequence[str] = (),
        python_module: str | None = None,
    ) -> dict[str, Any]:
        """Starts the deployment of a version; returns its operation.

        Args:
            model: the model.
            name: the version's name.
            deployment_uri: URL of the ``.keras`` file, or of the folder that holds it.
            package_uris: URLs of packages with classes of the model.
            python_module: the module that the model's job ran.
        """
        body: dict[str, Any] = {"name": name, "deploymentUri": deployment_uri}
        if package_uris:
            body["packageUris"] = list(package_uris)
        if python_module is not None:
            body["lockstep"] = {"pythonModule": python_module}
        return self._call("POST", f"{self._model(model)}/versions", body=body)

    def version(self, model: str, *, name: str) -> dict[str, Any]:
        """Returns a version of a model."""
        return self._call("GET", self._version(model, name))

    def versions(self, model: str) -> list[dict[str, Any]]:
        """Returns a model's versions, the oldest first."""
        return self._call("GET", f"{self._model(model)}/versions")["versions"]

    def set_default_version(self, model: str, *, name: str) -> dict[str, Any]:
        """Makes a version the one that answers where none is named."""
        return self._call("POST", f"{self._version(model, name)}:setDefault")

    def operation(self, name: str) -> dict[str, Any]:
        """Returns an operation by its whole name."""
        return self._call("GET", f"/v1/{quote(name)}")

    def predict(self, model: str, instances: Sequence[Any], *, version: str | None = None) -> list[Any]:
        """Returns a model's predictions, one an instance."""
        resource = self._model(model) if version is None else self._version(model, version)
        body = {"instances": instances}
        return self._call("POST", f"{resource}:predict", body=body, timeout_s=PREDICT_TIMEOUT_S)["predictions"]

    def _secret(self, name: str) -> str:
        return f"{self._prefix}/secrets/{_segment(name, what='secret')}"

    def _job(self, job_id: str) -> str:
        return f"{self._prefix}/jobs/{_segment(job_id, what='job')}"

    def _model(self, name: str) -> str:
        return f"{self._prefix}/models/{_segment(name, what='model')}"

    def _version(self, model: str, name: str) -> str:
        return f"{self._model(model)}/versions/{_segment(name, what='version')}"

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, params=query, json=body, timeout=timeout_s)
        except ValueError as error:  # a NaN, say, for which JSON has no word
            raise errors.InvalidInputError(f"the request cannot be written as JSON: {error}") from None
        except httpx.HTTPError as error:
            raise self._unavailable(error) from error
        if not answer.is_success:
            raise _error(answer)
        try:
            return answer.json()
        except ValueError:
            raise UnavailableError(
                f"what answers at {self._address.url} is no service of Lockstep's", action=f"see {URL_VARIABLE}"
            ) from None

    def _unavailable(self, error: Exception) -> UnavailableError:
        if (reason := untrusted(error)) is not None:
            return UnavailableError(
                f"the certificate of {self._address.url} is not trusted: {reason}",
                action=f"name its authority's certificate with {AUTHORITY_VARIABLE}",
            )
        return UnavailableError(
            f"the service at {self._address.url} does not answer: {str(error) or type(error).__name__}",
            action="see `lockstep status`",
        )


def _connect(address: ServiceAddress) -> httpx.Client:
    verify = ssl_context(address) if address.url.startswith("https:") else False  # plain HTTP: loopback alone
    try:
        return httpx.Client(
            base_url=address.url,
            headers={"authorization": f"Bearer {address.token}"},
            timeout=TIMEOUT_S,
            verify=verify,
            trust_env=not address.is_on_this_machine,  # proxies; whatever they are, loopback needs none
        )
    except (ImportError, ValueError):  # a SOCKS proxy takes a package that httpx does not bring
        raise errors.ConfigError(
            "the proxy that HTTPS_PROXY or ALL_PROXY names cannot be used",
            allowed="http://HOST:PORT, or socks5://HOST:PORT with the package httpx[socks]",
            action="change it, or name the service's host in NO_PROXY",
        ) from None


def _segment(name: str, *, what: str) -> str:
    """Returns a name as one part of a path, whatever is in it."""
    if name in ("", ".", "..") or "/" in name:  # what quoting does not make one part
        raise InvalidInputError(f"not the name of a {what}", received=name, allowed="letters, digits and underscores")
    return quote(name, safe="")


def _error(answer: httpx.Response) -> LockstepError:
    try:
        problem = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return UnavailableError(f"the service answered {answer.status_code} without a reason")
    if isinstance(problem, str):  # a prediction server's form
        return _BY_HTTP_STATUS.get(answer.status_code, LockstepError)(problem)
    try:
        message = str(problem["message"])
        reasons = [str(detail["reason"]) for detail in problem.get("details", ()) if "reason" in detail]
    except (AttributeError, KeyError, TypeError):  # somebody else's form: a proxy's, say
        return UnavailableError(f"the service answered {answer.status_code} without a reason")
    kind = _BY_REASON.get(reasons[0], LockstepError) if reasons else _BY_HTTP_STATUS.get(answer.status_code)
    return (kind or LockstepError)(message)
