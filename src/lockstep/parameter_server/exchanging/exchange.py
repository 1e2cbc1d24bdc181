"""A worker's exchange with the servers, for steps of ``fit`` and for closures: pull, push, settle."""

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
from lockstep.parameter_server.exchanging.compressing import ErrorFeedback, Residuals
from lockstep.parameter_server.links.client import RemoteError, Waiting
from lockstep.parameter_server.protocol import Part, Push, Setup
from lockstep.parameter_server.servers import Pulled, Servers, is_missing_values

RETRY_S: Final = 0.2
ATTEMPT_TIMEOUT_S: Final = 3.0


@final
@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Gradients for the servers. They may still be being computed.

    Attributes:
        arrays: for each server, the arrays of the push by kind and dtype.
        parts: for each server, the groups that its arrays are for.
        rows: the gradients of rows by table, in the order of `ids`. Any rows after these are padding.
        ids: the ids of these rows by table: int64[rows], ascending.
        residuals: what was left out of the gradients before this push, and after it.
    """

    arrays: list[dict[str, Any]]
    parts: list[tuple[Part, ...]]
    rows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ids: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, "np.ndarray[Any, Any]"])
    residuals: tuple[Residuals, Residuals]

    def to_host(self) -> list[dict[str, np.ndarray[Any, Any]]]:
        """Waits until the arrays for the servers are computed, and returns them."""
        return [{name: np.asarray(array) for name, array in own.items()} for own in self.arrays]


@final
class Exchange:
    """Pulls values from the servers, and pushes gradients that were computed with them.

    Belongs to one thread, except `awaits_servers`. All methods that talk to the servers block.

    Args:
        cluster: the cluster with the servers.
        setup: what the servers keep.
        feedback: keeps what pushes leave out. It is emptied, because another coordinator's servers have other values.
        copies: whether to copy dense values on arrival, so that they stay valid; otherwise they are valid until the
            exchange after the next one begins.

    Attributes:
        pulled: the last values that arrived; None if newer ones must be pulled.
        awaits_servers: whether gradients were pushed, and the answers of the servers are awaited.

    Raises:
        RemoteError: this process runs another model than the servers keep.
        UnavailableError: a server does not start in time.
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

    def forget_outdated(self, *, num_writes: int, num_restores: int) -> None:
        """Forgets what is no longer valid after the coordinator has set the values of the servers.

        Args:
            num_writes: how many times the coordinator has set them.
            num_restores: how many times it has set them to those of a checkpoint. After a restore, what pushes left out
                is void.
        """
        if num_restores != self._num_restores:
            self._feedback.forget()
        if num_writes != self._num_writes:
            self.pulled = None
        self._num_writes, self._num_restores = num_writes, num_restores

    def pull(self, wanted: Mapping[str, np.ndarray[Any, Any]] | None = None) -> Pulled:
        """Pulls all dense values, and rows of tables.

        Args:
            wanted: the ids of the rows by table: int64[rows], ascending.

        Raises:
            GiveBackError: a server is lost, or has no values yet.
        """
        with _giving_back():
            return self._keep(self._servers.pull(wanted=wanted))

    def pull_rows(self, wanted: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Pulls only rows of tables. They are valid until the exchange after the next one begins.

        Args:
            wanted: the ids of the rows by table: int64[rows], ascending.

        Returns:
            float32[rows, columns] for each table.

        Raises:
            GiveBackError: a server is lost, or has no values yet.
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
        """Pushes gradients, and returns the values in the servers' answers.

        If a server does not apply the push, what it carried of earlier left-out gradients is kept for a later push.

        Args:
            push: the header of the push.
            gradients: the gradients.
            of: the values that the gradients were computed with.
            wanted: the ids, by table, of the rows to pull.
            meanwhile: a function that is called after the push is sent, before the answers are awaited.

        Raises:
            GiveBackError: a server is lost, or has no values yet.
            RemoteError: the servers reject what was pushed.
        """
        arrays = gradients.to_host()
        rows = {
            name: (gradients.ids[name], np.asarray(values)[: len(gradients.ids[name])])
            for name, values in gradients.rows.items()
        }
        before, after = gradients.residuals
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

    def restore_residuals(self, gradients: Gradients) -> None:
        """Keeps what earlier pushes left out for later, because these gradients are never pushed."""
        self._feedback.restore_residuals(*gradients.residuals)

    def recover(self, meanwhile: Callable[[], None]) -> None:
        """Connects to the servers again; waits until all of them are there.

        Args:
            meanwhile: a function that is called repeatedly during the wait. An exception that it raises ends the wait.

        Raises:
            RemoteError: this process runs another model than the servers keep.
            UnavailableError: a server does not start in time.
        """
        self._servers.close()
        self.pulled = None
        self._servers = join_servers(self._cluster, self._setup, meanwhile=meanwhile)

    def close(self) -> None:
        """Closes the links to the servers. Idempotent."""
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
    """Connects to the servers, and shows that this process runs the same model.

    A server that has just started waits for the coordinator's setup.

    Args:
        cluster: the cluster with the servers.
        setup: what the servers keep.
        meanwhile: a function that is called repeatedly while a server is missing. An exception that it raises ends the
            wait.

    Raises:
        RemoteError: this process runs another model.
        UnavailableError: a server does not start in time.
    """
    deadline, waiting = time.monotonic() + cluster.start_within_s, Waiting()
    while True:
        servers: Servers | None = None
        try:
            servers = cluster.reach_servers(within_s=ATTEMPT_TIMEOUT_S)
            servers.join(setup)
        except (RemoteError, UnavailableError) as error:
            if servers is not None:
                servers.close()
            has_time = time.monotonic() < deadline
            if not has_time or (isinstance(error, RemoteError) and not is_missing_values(error)):
                raise
            waiting.log(f"{cluster.process_name} waits for the parameter servers: {error}")
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
    """Within, if a server is lost or is being restored, the closure is given back, to run later."""
    try:
        yield
    except UnavailableError as error:
        raise GiveBackError(str(error)) from error
    except RemoteError as error:
        if not is_missing_values(error):
            raise
        raise GiveBackError(str(error)) from error
