"""The HTTP client of the service: what the command line, and any program on this machine, talks through."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, final
from urllib.parse import quote

import httpx

from lockstep import errors
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, StorageError, UnavailableError
from lockstep.home import HOME_VARIABLE, Home
from lockstep.processes import ProcessIdentity

TIMEOUT_S: Final = 30.0
PREDICT_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class ServiceAddress:
    """Where a service is.

    Attributes:
        url: base of its REST paths.
        token: its bearer token.
        process: its process.
    """

    url: str
    token: str = field(repr=False)
    process: ProcessIdentity

    @property
    def pid(self) -> int:
        """The service's process id."""
        return self.process.pid


def find_service(home: Home) -> ServiceAddress | None:
    """Returns the running service of a home, None if there is none.

    Raises:
        StorageError: the home's files are there, but may not be read.
    """
    try:
        document = json.loads(home.address.read_text())
        address = ServiceAddress(
            url=str(document["url"]),
            token=home.token.read_text().strip(),
            process=ProcessIdentity.from_json(document["process"]),
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, CorruptDataError):
        return None
    except OSError as error:
        raise StorageError(
            f"the home {home.path} cannot be read: {error.strerror}",
            action=f"set {HOME_VARIABLE} to a folder that is yours",
        ) from error
    return address if address.process.is_alive else None


def _error_classes() -> dict[tuple[int, str], type[LockstepError]]:
    """Maps what an answer says to the class that the service raised; the first class of a pair stands for it."""
    classes: dict[tuple[int, str], type[LockstepError]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, LockstepError):
            classes.setdefault((kind.http_status, kind.rpc_status), kind)
    # A resource of the service that is not there, rather than a file.
    classes[errors.NotFoundError.http_status, errors.NotFoundError.rpc_status] = errors.NotFoundError
    return classes


_ERRORS: Final = _error_classes()


@final
class Client:
    """Calls the service. Thread-safe, but for `find_again`; each method is one request unless it says otherwise.

    Args:
        address: where the service is.
        project: whose jobs and models.
        home: where `find_again` looks.

    Raises:
        LockstepError: what the service refused, as the class that it raised there.
        UnavailableError: it does not answer.
    """

    def __init__(self, address: ServiceAddress, *, project: str = "local", home: Home | None = None) -> None:
        self._home = home
        self._prefix = f"/v1/projects/{_segment(project, what='project')}"
        self._address = address
        self._http = _connect(address)

    @classmethod
    def from_home(cls, home: Home, *, project: str = "local") -> Self:
        """Returns a client of a home's running service.

        Raises:
            UnavailableError: none runs.
        """
        return cls(_find(home), project=project, home=home)

    def find_again(self) -> None:
        """Looks for the home's service anew: another one may run by now, with another port and another token.

        Sends nothing. Without a home, the address stays what it is.

        Raises:
            UnavailableError: none runs; whoever has its old port by now is not asked, and gets no token.
        """
        address = self._address if self._home is None else _find(self._home)
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

    def service(self) -> dict[str, Any]:
        """Returns how the service is."""
        return self._call("GET", "/v1/service")

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
            query = {"filter": filter_text, "pageSize": min(100, limit - len(found)), "pageToken": token}
            page = self._call("GET", f"{self._prefix}/jobs", query=query)
            found += page["jobs"]
            token = page.get("nextPageToken", "")
            if not token:
                break
        return found

    def cancel_job(self, job_id: str) -> None:
        """Asks for a job's end."""
        self._call("POST", f"{self._job(job_id)}:cancel")

    def job_events(self, job_id: str) -> list[dict[str, Any]]:
        """Returns a job's events, the oldest first."""
        return self._call("GET", f"{self._job(job_id)}/events")["events"]

    def costs(self, *, by: str = "job", since: str = "", until: str = "") -> dict[str, Any]:
        """Returns what the project's jobs cost: ``{"rows": [...], "total": {...}}``."""
        return self._call("GET", f"{self._prefix}/costs", query={"by": by, "since": since, "until": until})

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

    def create_model(self, name: str, *, description: str = "") -> dict[str, Any]:
        """Creates a model."""
        return self._call("POST", f"{self._prefix}/models", body={"name": name, "description": description})

    def model(self, name: str) -> dict[str, Any]:
        """Returns a model."""
        return self._call("GET", self._model(name))

    def create_version(self, model: str, *, name: str, deployment_uri: str) -> dict[str, Any]:
        """Starts the deployment of a version; returns its operation."""
        body = {"name": name, "deploymentUri": deployment_uri}
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
            raise UnavailableError(
                f"the service at {self._address.url} does not answer: {type(error).__name__}",
                action="see `lockstep status`",
            ) from error
        if answer.is_success:
            return answer.json()
        raise _error(answer)


def _find(home: Home) -> ServiceAddress:
    address = find_service(home)
    if address is None:
        raise UnavailableError(f"no service runs on {home.path}", action="start one with `lockstep up`")
    return address


def _connect(address: ServiceAddress) -> httpx.Client:
    return httpx.Client(
        base_url=address.url,
        headers={"authorization": f"Bearer {address.token}"},
        timeout=TIMEOUT_S,
        trust_env=False,  # the service is on loopback, whatever proxies the environment names
    )


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
        statuses = [status for code, status in _ERRORS if code == answer.status_code]
        kind = _ERRORS[answer.status_code, statuses[0]] if statuses else LockstepError
        return kind(problem)
    return _ERRORS.get((problem["code"], problem["status"]), LockstepError)(problem["message"])
