"""Finds the prediction server that answers a request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, final

from lockstep.errors import UnavailableError
from lockstep.service.prediction.deployments import is_ready
from lockstep.service.security.vault import Vault
from lockstep.service.store import JobRecord, JobStore, ModelStore, VersionRecord, VersionState
from lockstep.serving import SERVER_TOKEN

MAX_AGE_S: Final = 0.5
"""How old the list of servers may be that a request is routed by, in seconds."""


@final
@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The address of a prediction server.

    Attributes:
        uid: the uid of the server's job.
        url: the base URL.
        token: the bearer token of the server.
    """

    uid: str
    url: str
    token: str = field(repr=False)


@final
class NoServerReadyError(UnavailableError):
    """No prediction server of a version is ready.

    Args:
        version: the version.
    """

    def __init__(self, version: VersionRecord) -> None:
        super().__init__(
            f"version {version.name} of model {version.model} is {version.state}, and none of its servers is ready",
            action=version.error_message or "try again soon",
        )
        self.version = version


@final
class Routes:
    """Chooses the servers that requests are sent to. Thread-safe. Every service over the database has its own.

    Args:
        models: the store of models and versions.
        jobs: the store of jobs, and so of prediction servers.
        vault: derives the tokens of servers.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, *, models: ModelStore, jobs: JobStore, vault: Vault, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._models = models
        self._jobs = jobs
        self._vault = vault
        self._clock = clock
        self._lock = threading.Lock()
        self._read_time = -MAX_AGE_S
        self._servers: dict[str, list[ServerAddress]] = {}
        self._found: dict[tuple[str, str, str | None], tuple[float, str]] = {}
        self._num_open: dict[str, int] = {}
        self._used: set[str] = set()

    def find(self, *, project: str, model: str, version: str | None) -> list[ServerAddress]:
        """Returns the servers of a version that accept requests, those with the fewest open requests first.

        Args:
            project: the project.
            model: the model.
            version: the name of the version; None for the model's default version.

        Raises:
            NotFoundError: If there is no such model or version.
            NoServerReadyError: If no server is ready.
        """
        asked_s = self._clock()
        record = self._models.get_version(project=project, model=model, name=version)
        found = self._read().get(record.uid, ()) if record.state is VersionState.READY else ()
        if not found:
            raise NoServerReadyError(record)
        with self._lock:
            self._found[project, model, version] = (min(asked_s, self._read_time), record.uid)
            return self._sorted(found, version_uid=record.uid)

    def find_again(self, *, project: str, model: str, version: str | None) -> list[ServerAddress] | None:
        """Returns what `find` returned for the same version if that is recent enough, without reading the database.

        Returns:
            The servers; None if `find` has to be called.
        """
        with self._lock:
            found_s, uid = self._found.get((project, model, version), (-MAX_AGE_S, ""))
            if self._clock() - found_s < MAX_AGE_S:
                return self._sorted(self._servers.get(uid, ()), version_uid=uid) or None
            return None

    def check_ready(self, *, project: str, model: str, version: str | None) -> None:
        """Checks that a version answers requests. Unlike `find`, this is no use of the version.

        A version without servers answers requests if they have one started.

        Args:
            project: the project.
            model: the model.
            version: the name of the version; None for the model's default version.

        Raises:
            NotFoundError: If there is no such model or version.
            NoServerReadyError: If it does not answer requests.
        """
        record = self._models.get_version(project=project, model=model, name=version)
        if record.state is not VersionState.READY or not (record.scaling or self._read().get(record.uid)):
            raise NoServerReadyError(record)

    def _sorted(self, servers: Iterable[ServerAddress], *, version_uid: str) -> list[ServerAddress]:
        self._used.add(version_uid)
        return sorted(servers, key=lambda server: self._num_open.get(server.uid, 0))

    def take_used(self) -> set[str]:
        """Returns the uids of the versions that `find` has found servers of since the previous call."""
        with self._lock:
            used, self._used = self._used, set()
        return used

    def begin(self, server: ServerAddress) -> None:
        """Counts a request that is sent to a server."""
        with self._lock:
            self._num_open[server.uid] = self._num_open.get(server.uid, 0) + 1

    def end(self, server: ServerAddress) -> None:
        """Stops counting a request that `begin` counted."""
        with self._lock:
            left = self._num_open.pop(server.uid) - 1
            if left:
                self._num_open[server.uid] = left

    def _read(self) -> dict[str, list[ServerAddress]]:
        with self._lock:
            if self._clock() - self._read_time < MAX_AGE_S:
                return self._servers
        read_s = self._clock()
        servers: dict[str, list[ServerAddress]] = {}
        for job in self._jobs.servers():
            if is_ready(job) and job.drain_time_s is None:
                servers.setdefault(str(job.version_uid), []).append(self._address(job))
        with self._lock:
            self._servers, self._read_time = servers, read_s
            self._found.clear()  # of versions that may be gone
        return servers

    def _address(self, job: JobRecord) -> ServerAddress:
        return ServerAddress(
            uid=job.uid,
            url=f"http://{job.replicas[0].status.address}",
            token=self._vault.derive(job.uid, purpose=SERVER_TOKEN),
        )
