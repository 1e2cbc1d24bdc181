"""Finds the prediction server that answers a request."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from lockstep.errors import LockstepError, NotFoundError, UnavailableError
from lockstep.service.prediction.decks import Deck, Shuffle
from lockstep.service.prediction.deployments import is_ready
from lockstep.service.prediction.shared_reads import SharedReads
from lockstep.service.security.vault import Vault
from lockstep.service.store import JobRecord, JobStore, ModelStore, VersionRecord, VersionState
from lockstep.serving import SERVER_TOKEN

MAX_AGE_S: Final = 0.5
"""How old the list of servers, and the traffic, may be that a request is routed by, in seconds."""
FORGET_S: Final = 600.0
"""After this time without a request, the deck of a model is forgotten, in seconds."""


@final
@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The address of a prediction server.

    Attributes:
        uid: the uid of the server's job.
        version_uid: the uid of the version that it serves.
        url: the base URL.
        token: the bearer token of the server.
    """

    uid: str
    version_uid: str
    url: str
    token: str = field(repr=False)


@final
@dataclass(frozen=True, kw_only=True)
class Route:
    """Where a request is sent.

    Attributes:
        version: the name of the version that answers it.
        servers: the servers of this version that accept requests, those with the fewest open requests first.
    """

    version: str
    servers: Sequence[ServerAddress]


@final
class NoServerReadyError(UnavailableError):
    """No prediction server of a version is ready.

    Args:
        version: the version.
    """

    def __init__(self, version: VersionRecord) -> None:
        # Before it fails, why it waits is for those who may read the version, and not for every caller.
        reason = version.error_message if version.state is VersionState.FAILED else None
        super().__init__(
            f"version {version.name} of model {version.model} is {version.state}, and none of its servers is ready",
            action=reason or "try again soon",
        )
        self.version = version


@final
class Routes:
    """Chooses the versions and servers that requests are sent to. Every service over the database has its own.

    Thread-safe, apart from the coroutines, which are for one event loop.

    Args:
        models: the store of models and versions.
        jobs: the store of jobs, and so of prediction servers.
        vault: derives the tokens of servers.
        clock: a monotonic clock, in seconds.
        shuffle: brings the versions into a random order by which the traffic is split.
    """

    def __init__(
        self,
        *,
        models: ModelStore,
        jobs: JobStore,
        vault: Vault,
        clock: Callable[[], float] = time.monotonic,
        shuffle: Shuffle = random.shuffle,
    ) -> None:
        self._models = models
        self._jobs = jobs
        self._vault = vault
        self._clock = clock
        self._shuffle = shuffle
        self._shared = SharedReads()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._read_time = -MAX_AGE_S
        self._servers: dict[str, list[ServerAddress]] = {}
        self._found: dict[tuple[str, str, str], tuple[float, str]] = {}
        self._decks: dict[tuple[str, str], tuple[float, Deck]] = {}
        self._num_open: dict[str, int] = {}
        self._used: set[str] = set()

    async def route(self, *, project: str, model: str, version: str | None, kept: str | None = None) -> Route:
        """Chooses the version and the servers for a request, from memory if that is recent enough.

        Requests that need the database at the same time share one read of it.

        Args:
            project: the project.
            model: the model.
            version: the name of the version; None for one that has traffic, in the shares of the traffic.
            kept: the version that was chosen for this request before. It is chosen again if it still has traffic.

        Raises:
            NotFoundError: If there is no such model or version.
            UnavailableError: If no version has traffic.
            NoServerReadyError: If no server of the version is ready.
        """
        if version is not None:
            return await self._route_to(version, project=project, model=model)
        chosen = await self._choose(project=project, model=model, kept=kept)
        try:
            return await self._route_to(chosen, project=project, model=model)
        except (NotFoundError, NoServerReadyError):
            # The traffic may have left the version since it was read, before the version was deleted.
            another = await self._choose(project=project, model=model, kept=chosen, anew=True)
            if another == chosen:
                raise
            return await self._route_to(another, project=project, model=model)

    async def _choose(self, *, project: str, model: str, kept: str | None, anew: bool = False) -> str:
        with self._lock:
            read_s, deck = self._decks.get((project, model), (-MAX_AGE_S, None))
        if deck is None or anew or self._clock() - read_s >= MAX_AGE_S:
            share = self._shared.read_anew if anew else self._shared.read
            deck = await share((project, model), partial(self._read_traffic, project=project, model=model))
        with self._lock:
            return kept if kept is not None and kept in deck else deck.deal()

    async def _route_to(self, version: str, *, project: str, model: str) -> Route:
        find = {"project": project, "model": model, "version": version}
        found = self.find_again(**find)
        if found is None:
            found = await self._shared.read((project, model, version), partial(self.find, **find))
            found = self.find_again(**find) or found  # others that have shared the read may have got servers since
        return Route(version=version, servers=found)

    def find(self, *, project: str, model: str, version: str) -> list[ServerAddress]:
        """Returns the servers of a version that accept requests, those with the fewest open requests first.

        Args:
            project: the project.
            model: the model.
            version: the name of the version.

        Raises:
            NotFoundError: If there is no such model or version.
            NoServerReadyError: If no server is ready.
        """
        asked_s = self._clock()
        record = self._models.get_version(project=project, model=model, name=version)
        found: Sequence[ServerAddress] = ()
        if record.state is VersionState.READY:
            # It may have become READY after the servers were read.
            found = self._read().get(record.uid) or self._read(since_s=asked_s).get(record.uid, ())
        if not found:
            raise NoServerReadyError(record)
        with self._lock:
            self._found[project, model, version] = (min(asked_s, self._read_time), record.uid)
            return self._sorted(found, version_uid=record.uid)

    def find_again(self, *, project: str, model: str, version: str) -> list[ServerAddress] | None:
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
            version: the name of the version; None for the one with the largest share of the traffic.

        Raises:
            NotFoundError: If there is no such model or version.
            UnavailableError: If no version has traffic.
            NoServerReadyError: If it does not answer requests.
        """
        if version is None:
            version = self._models.get_traffic(project=project, model=model)[0].version
        record = self._models.get_version(project=project, model=model, name=version)
        if record.state is not VersionState.READY or not (
            record.scaling or self._read(since_s=self._clock() - MAX_AGE_S).get(record.uid)
        ):
            raise NoServerReadyError(record)

    def ready_servers(self, version: VersionRecord) -> list[ServerAddress]:
        """Returns the servers of a version that are ready now. Unlike `find`, this is no use of the version. Blocks."""
        return list(self._read().get(version.uid, ()))

    def _read_traffic(self, *, project: str, model: str) -> Deck:
        """Reads the traffic of a model. A traffic that stays keeps its deck, so that its shares hold exactly."""
        read_s = self._clock()
        try:
            traffic = self._models.get_traffic(project=project, model=model)
        except LockstepError:
            with self._lock:
                self._decks.pop((project, model), None)
            raise
        with self._lock:
            _, deck = self._decks.get((project, model), (read_s, None))
            if deck is None or deck.traffic != traffic:
                deck = Deck(traffic, shuffle=self._shuffle)
            self._decks[project, model] = (read_s, deck)
            return deck

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

    def _read(self, *, since_s: float = -math.inf) -> dict[str, list[ServerAddress]]:
        """Returns the servers by the uids of their versions, not older than `MAX_AGE_S`, and read since a time."""
        with self._reading:  # one thread reads, and the others take what it has read
            with self._lock:
                if self._clock() - self._read_time < MAX_AGE_S and self._read_time >= since_s:
                    return self._servers
            read_s = self._clock()
            servers: dict[str, list[ServerAddress]] = {}
            for job in self._jobs.servers():
                if is_ready(job) and job.drain_time_s is None:
                    servers.setdefault(str(job.version_uid), []).append(self._address(job))
            with self._lock:
                self._servers, self._read_time = servers, read_s
                self._found.clear()  # of versions that may be gone
                self._decks = {key: deck for key, deck in self._decks.items() if read_s - deck[0] < FORGET_S}
            return servers

    def _address(self, job: JobRecord) -> ServerAddress:
        return ServerAddress(
            uid=job.uid,
            url=f"http://{job.replicas[0].status.address}",
            token=self._vault.derive(job.uid, purpose=SERVER_TOKEN),
            version_uid=str(job.version_uid),
        )
