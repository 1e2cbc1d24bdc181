"""Starts, watches, restarts and ends the prediction server of each deployed version."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lockstep import serving
from lockstep.errors import LockstepError, UnavailableError
from lockstep.processes.confinement import SEARCHABLE
from lockstep.service.prediction.version_code import CodeRules
from lockstep.service.store import DATABASE_FAULTS, LeaseLostError, ModelStore, VersionRecord, VersionState
from lockstep.serving import ServerFailed, ServerHandle, ServerReady

LOGGER: Final = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.2

MAX_RESTARTS: Final = 5
"""The number of consecutive restarts of a server before its version fails."""
RESTART_PAUSE_S: Final = 1.0
"""The pause before the first restart of a server. Each further pause is twice as long."""
RECOVERED_AFTER_S: Final = 300.0
"""How long a server must be ready before its count of restarts is reset."""


@final
@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The address of a version's prediction server.

    Attributes:
        url: the base URL, on loopback.
        token: the bearer token of the server.
    """

    url: str
    token: str


@final
class Deployments:
    """Advances versions through their states: CREATING, then READY or FAILED, then DELETING, then removed.

    Servers outlive the service. Their handles are in the database, so the next service can adopt them.

    Args:
        store: the store of models and versions.
        folder: the folder for the servers' logs and tokens.
        rules: the rules for code of packages in servers.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(
        self,
        *,
        store: ModelStore,
        folder: Path,
        rules: CodeRules = CodeRules(),  # noqa: B008 (frozen)
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._folder = folder
        self._rules = rules
        self._clock = clock

    def run(self, stop: threading.Event, *, has_lease: Callable[[], bool]) -> None:
        """Makes passes over the versions until `stop` is set.

        Args:
            stop: the event that ends the loop.
            has_lease: returns whether this service holds the lease.
        """
        while not stop.wait(POLL_INTERVAL_S):
            try:
                if has_lease():
                    self.step()
            except DATABASE_FAULTS:  # the controller reports it
                continue
            except LeaseLostError as error:
                LOGGER.warning("%s", error)
            except Exception:  # a failed pass must not end the loop that keeps every server alive
                LOGGER.exception("a pass over the deployments failed")

    def step(self) -> None:
        """Makes one pass over the versions.

        Raises:
            LeaseLostError: If another service has acquired the lease. The pass ends, since all its writes would fail.
        """
        for version in self._store.list_versions():
            try:
                self._advance(version)
            except LeaseLostError:
                raise
            except LockstepError as error:
                LOGGER.error("version %s of %s: %s", version.name, version.model, error)

    def address(self, *, project: str, model: str, version: str | None) -> ServerAddress:
        """Returns the address of a version's server, or of the default version's server if `version` is None.

        Raises:
            NotFoundError: If there is no such model or version.
            UnavailableError: If the server is not ready.
        """
        record = self._store.get_version(project=project, model=model, name=version)
        status = None if record.server is None else serving.poll(ServerHandle.from_json(record.server))
        if record.state is not VersionState.READY or not isinstance(status, ServerReady):
            raise UnavailableError(
                f"version {record.name} of model {model} is {record.state}, its server is not ready",
                action=record.error_message or "try again soon",
            )
        return ServerAddress(url=status.url, token=status.token)

    def end_all(self) -> None:
        """Ends every server. The versions stay, and get new servers when the service starts again.

        Also ends servers that no version refers to, because the service died before it recorded them.
        """
        for version in self._store.list_versions():
            if version.server is not None:
                serving.stop(ServerHandle.from_json(version.server))
                self._store.update_version(version, server=None, server_ready_time_s=None)
        serving.stop_all(folder=self._folder)

    def _advance(self, version: VersionRecord) -> None:
        """Advances one version by one step.

        The version may have changed since it was read. An update applies only if the state has not changed; otherwise
        a later pass handles the new state.
        """
        handle = None if version.server is None else ServerHandle.from_json(version.server)
        if version.state is VersionState.DELETING:
            if handle is not None:
                serving.stop(handle)
            serving.stop_all(folder=self._server_folder(version))
            self._store.remove_version(version)
        elif version.state is VersionState.FAILED:
            return
        elif handle is None:
            if not self._is_in_backoff(version):
                self._start(version)
        else:
            status = serving.poll(handle)
            if isinstance(status, ServerFailed):
                serving.stop(handle)  # its process may still run: its files cannot be read
                if handle.process.is_of_this_boot:
                    self._restart_or_fail(version, status)
                else:  # it ended with its machine, or is on another service's machine: no sign of a bad model
                    self._store.update_version(version, server=None, server_ready_time_s=None)
            elif isinstance(status, ServerReady):
                self._note_ready(version)

    def _server_folder(self, version: VersionRecord) -> Path:
        return self._folder / version.project / version.model / version.name

    def _is_in_backoff(self, version: VersionRecord) -> bool:
        if version.server_end_time_s is None or version.num_restarts == 0:
            return False
        pause_s = RESTART_PAUSE_S * 2.0 ** (version.num_restarts - 1)
        # A clock that was set back must not make the pause longer.
        return 0 <= self._clock() - version.server_end_time_s < pause_s

    def _start(self, version: VersionRecord) -> None:
        code = self._rules.server_code(version, taken=self._users())
        folder = self._server_folder(version)
        if code.user is not None:
            self._make_traversable(folder)
        handle = serving.start_server(model_url=version.deployment_uri, folder=folder, code=code)
        try:
            self._store.update_version(version, server=handle.to_json())
        except LeaseLostError:
            serving.stop(handle)
            raise

    def _users(self) -> set[int]:
        """Returns the user ids that servers run as."""
        servers = [version.server for version in self._store.list_versions() if version.server is not None]
        users = {ServerHandle.from_json(server).user for server in servers}
        return {user for user in users if user is not None}

    def _make_traversable(self, folder: Path) -> None:
        """Lets a server's user reach its folder, but list none of the folders above it."""
        folder.mkdir(parents=True, exist_ok=True)
        for part in (folder, *folder.parents):
            if part.is_relative_to(self._folder):
                part.chmod(SEARCHABLE)

    def _note_ready(self, version: VersionRecord) -> None:
        now_s = self._clock()
        if version.state is VersionState.CREATING:
            self._store.update_version(version, state=VersionState.READY, server_ready_time_s=now_s)
        elif version.server_ready_time_s is None:
            self._store.update_version(version, server_ready_time_s=now_s)
        elif version.num_restarts > 0 and now_s - version.server_ready_time_s >= RECOVERED_AFTER_S:
            self._store.update_version(version, num_restarts=0)

    def _restart_or_fail(self, version: VersionRecord, status: ServerFailed) -> None:
        """Schedules a restart of a server that was ready before; fails a version whose server never became ready.

        A server that never became ready has a model that cannot be served. After `MAX_RESTARTS` restarts, the version
        fails too.
        """
        ended = {"server": None, "server_ready_time_s": None, "server_end_time_s": self._clock()}
        if version.state is VersionState.CREATING or version.num_restarts >= MAX_RESTARTS:
            self._store.update_version(version, state=VersionState.FAILED, error_message=status.reason, **ended)
            return
        LOGGER.warning("the server of version %s of %s ended: %s", version.name, version.model, status.reason)
        self._store.update_version(version, num_restarts=version.num_restarts + 1, **ended)
