"""Keeps a prediction server beside every deployed version: started, watched, started again, ended."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lockstep import serving
from lockstep.errors import LockstepError, UnavailableError
from lockstep.service.store import ModelStore, VersionRecord, VersionState
from lockstep.serving import ServerFailed, ServerHandle, ServerReady

LOGGER: Final = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.2
MAX_RESTARTS: Final = 5


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """Where a version's prediction server answers.

    Attributes:
        url: its base URL, on loopback.
        token: its own bearer token.
    """

    url: str
    token: str


@final
class Deployments:
    """Moves versions through their lives: CREATING, READY or FAILED, DELETING, gone.

    Servers outlive the service; a handle in the database lets the next one adopt them.

    Args:
        store: models and versions.
        folder: where servers keep their logs and tokens.
    """

    def __init__(self, *, store: ModelStore, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def run(self, stop: threading.Event) -> None:
        """Passes over the versions until told to stop."""
        while not stop.wait(POLL_INTERVAL_S):
            try:
                self.step()
            except Exception:  # one bad pass must not end the loop that keeps every server alive
                LOGGER.exception("a pass over the deployments failed")

    def step(self) -> None:
        """Makes one pass."""
        for version in self._store.list_versions():
            try:
                self._follow(version)
            except LockstepError as error:
                LOGGER.error("version %s of %s: %s", version.name, version.model, error)

    def address(self, *, project: str, model: str, version: str | None) -> ServerAddress:
        """Returns where a version's server answers; the default version's, if none is named.

        Raises:
            NotFoundError: there is no such model or version.
            UnavailableError: its server is not ready.
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
        """Ends every server; the versions stay, and get new ones when the service comes up again."""
        for version in self._store.list_versions():
            if version.server is not None:
                serving.stop(ServerHandle.from_json(version.server))
                self._store.update_version(version, server=None)

    def _follow(self, version: VersionRecord) -> None:
        handle = None if version.server is None else ServerHandle.from_json(version.server)
        if version.state is VersionState.DELETING:
            if handle is not None:
                serving.stop(handle)
            self._store.remove_version(version)
            return
        if version.state is VersionState.FAILED:
            return
        if handle is None:
            self._start(version)
            return
        status = serving.poll(handle)
        if isinstance(status, ServerFailed):
            self._restart_or_fail(version, status)
        elif isinstance(status, ServerReady) and version.state is VersionState.CREATING:
            self._store.update_version(version, state=VersionState.READY)

    def _start(self, version: VersionRecord) -> None:
        folder = self._folder / version.project / version.model / version.name
        handle = serving.start_server(model_url=version.deployment_uri, folder=folder)
        self._store.update_version(version, server=handle.to_json())

    def _restart_or_fail(self, version: VersionRecord, status: ServerFailed) -> None:
        """A server that never was ready has a model that cannot be served; one that was is started again."""
        if version.state is VersionState.CREATING or version.num_restarts >= MAX_RESTARTS:
            self._store.update_version(version, state=VersionState.FAILED, error_message=status.reason, server=None)
            return
        LOGGER.warning("the server of version %s of %s ended: %s", version.name, version.model, status.reason)
        self._store.update_version(version, server=None, num_restarts=version.num_restarts + 1)
