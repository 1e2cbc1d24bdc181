"""A worker's exchange with the servers, the same for steps of ``fit`` and for closures: pull, compute, push, settle."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import numpy as np

from lockstep.errors import LockstepError, UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.working import GiveBackError
from lockstep.parameter_server.exchanging.compressing import ErrorFeedback, Rests
from lockstep.parameter_server.links.client import RemoteError, Waiting
from lockstep.parameter_server.protocol import Part, Push, Setup
from lockstep.parameter_server.servers import Pulled, Servers, lacks_values

RETRY_S: Final = 0.2
LOOK_EVERY_S: Final = 3.0


@final
@dataclass(frozen=True, kw_only=True)
class Gradients:
    """What was computed for the servers; maybe it is still being computed.

    Attributes:
        arrays: for each server its arrays, by kind and dtype, as a push has them.
        parts: for each server, what they are of.
        rows: gradients of rows by table, in the order of their ids; rows after these are of no id.
        ids: the ids of these rows by table: int64[rows], rising.
        rests: what earlier pushes had left of their gradients, and what this one leaves.
    """

    arrays: list[dict[str, Any]]
    parts: list[tuple[Part, ...]]
    rows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ids: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])
    rests: tuple[Rests, Rests]

    def to_host(self) -> list[dict[str, np.ndarray[Any, Any]]]:
        """Waits for the servers' arrays, and returns them."""
        return [{name: np.asarray(array) for name, array in own.items()} for own in self.arrays]


@final
class Exchange:
    """Pulls values from the servers, and pushes gradients that were computed with them.

    Belongs to one thread, but for `awaits_servers`. All methods that talk to the servers block.

    Args:
        cluster: where the servers are.
        setup: what they keep.
        feedback: keeps what pushes leave out; emptied, since another coordinator's servers have other values.
        copies: whether dense values are copied as they come, and may be read for as long as they are held; else until
            the exchange after the next one begins.

    Attributes:
        pulled: the values that came last; None where newer ones have to be pulled.
        awaits_servers: whether gradients were pushed, and the servers' answer is waited for.

    Raises:
        RemoteError: this process runs another model than the servers keep.
        UnavailableError: a server is not there in time.
    """

    def __init__(self, cluster: Cluster, setup: Setup, *, feedback: ErrorFeedback, copies: bool = False) -> None:
        self.pulled: Pulled | None = None
        self.awaits_servers = False
        self._cluster = cluster
        self._setup = setup
        self._feedback = feedback
        self._copies = copies
        self._num_writes = self._num_restores = 0
        feedback.forget()
        self._servers = join_servers(cluster, setup)

    def follow(self, *, num_writes: int, num_restores: int) -> None:
        """Forgets what is no longer valid after the coordinator has set the servers' values.

        Args:
            num_writes: how often it has set them.
            num_restores: how often it has set them to a checkpoint's, after which what pushes have left out is void.
        """
        if num_restores != self._num_restores:
            self._feedback.forget()
        if num_writes != self._num_writes:
            self.pulled = None
        self._num_writes, self._num_restores = num_writes, num_restores

    def pull(self, wanted: Mapping[str, np.ndarray[Any, Any]] | None = None) -> Pulled:
        """Pulls all dense values, and rows of tables.

        Args:
            wanted: int64[rows] of ids by table, rising.

        Raises:
            GiveBackError: a server is out of reach, or has no values yet.
        """
        with _giving_back():
            return self._keep(self._servers.pull(wanted=wanted))

    def pull_rows(self, wanted: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Pulls rows of tables alone; they may be read until the exchange after the next one begins.

        Args:
            wanted: int64[rows] of ids by table, rising.

        Returns:
            float32[rows, columns] for each.

        Raises:
            GiveBackError: a server is out of reach, or has no values yet.
        """
        with _giving_back():
            return self._servers.pull(wanted=wanted, is_answered_by_values=False).rows

    def push(
        self,
        push: Push,
        gradients: Gradients,
        *,
        of: Pulled,
        wanted: Mapping[str, np.ndarray[Any, Any]] | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Pulled:
        """Pushes gradients, and returns the values that the servers answer with.

        What servers have not applied of the gradients that earlier pushes had left out is left out again.

        Args:
            push: what the gradients are of.
            gradients: the gradients.
            of: the values that they were computed with.
            wanted: ids by table whose rows are to come back.
            meanwhile: called while the push is on its way.

        Raises:
            GiveBackError: a server is out of reach, or has no values yet.
            RemoteError: the servers refuse what was pushed.
        """
        arrays = gradients.to_host()
        rows = {
            name: (gradients.ids[name], np.asarray(values)[: len(gradients.ids[name])])
            for name, values in gradients.rows.items()
        }
        before, after = gradients.rests
        with _giving_back():
            try:
                self._servers.begin_push(
                    push,
                    gradients=arrays,
                    parts=gradients.parts,
                    versions=[state.version for state in of.states],
                    rows=rows,
                    wanted=wanted,
                )
                meanwhile()
                pulled = self._end_push()
            except LockstepError:
                if self._feedback.is_used:
                    self._feedback.settle(push, before=before, after=after, outcomes=self._servers.outcomes())
                raise
        self._feedback.settle(push, before=before, after=after, outcomes=pulled.states)
        return pulled

    def take_back(self, gradients: Gradients) -> None:
        """Has gradients that earlier pushes had left out travel later: these ones are never pushed."""
        self._feedback.take_back(*gradients.rests)

    def recover(self, meanwhile: Callable[[], None]) -> None:
        """Connects to the servers again; waits until all of them are there.

        Args:
            meanwhile: called again and again while it waits; what it raises ends the wait.

        Raises:
            RemoteError: this process runs another model than the servers keep.
            UnavailableError: a server is not there in time.
        """
        self._servers.close()
        self.pulled = None
        self._servers = join_servers(self._cluster, self._setup, meanwhile=meanwhile)

    def close(self) -> None:
        """Hangs up. Idempotent."""
        self._servers.close()

    def _end_push(self) -> Pulled:
        self.awaits_servers = True
        try:
            return self._keep(self._servers.end_push())
        finally:
            self.awaits_servers = False

    def _keep(self, pulled: Pulled) -> Pulled:
        if self._copies:
            dense = tuple({dtype: np.array(array) for dtype, array in own.items()} for own in pulled.dense)
            pulled = replace(pulled, dense=dense)
        self.pulled = pulled
        return pulled


def join_servers(cluster: Cluster, setup: Setup, *, meanwhile: Callable[[], None] = lambda: None) -> Servers:
    """Connects to the servers, and shows them that this process runs the same model.

    A server that has just been started waits for the coordinator to tell it what it keeps.

    Args:
        cluster: where they are.
        setup: what they keep.
        meanwhile: called again and again while they are not there; what it raises ends the wait.

    Raises:
        RemoteError: this process runs another model.
        UnavailableError: a server is not there in time.
    """
    deadline, waiting = time.monotonic() + cluster.start_within_s, Waiting()
    while True:
        servers: Servers | None = None
        try:
            servers = cluster.reach_servers(within_s=LOOK_EVERY_S)
            servers.join(setup)
        except (RemoteError, UnavailableError) as error:
            if servers is not None:
                servers.close()
            has_time = time.monotonic() < deadline
            if not has_time or (isinstance(error, RemoteError) and not lacks_values(error)):
                raise
            waiting.log(f"{cluster.who} waits for the parameter servers: {error}")
            meanwhile()
            time.sleep(RETRY_S)
        except BaseException:
            if servers is not None:
                servers.close()
            raise
        else:
            return servers


@contextmanager
def _giving_back() -> Generator[None]:
    """Within, a server that is gone, or is just being given its state back, has the closure run later."""
    try:
        yield
    except UnavailableError as error:
        raise GiveBackError(str(error)) from error
    except RemoteError as error:
        if not lacks_values(error):
            raise
        raise GiveBackError(str(error)) from error
