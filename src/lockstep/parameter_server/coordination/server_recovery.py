"""Recovery from the loss of a server: its successor receives its part of the last checkpoint."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from lockstep.errors import LockstepError, UnavailableError, counted
from lockstep.parameter_server import protocol
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.dispatching import Dispatcher
from lockstep.parameter_server.coordination.open_step import OpenStep
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.protocol import Mode, Setup
from lockstep.parameter_server.servers import Servers, is_missing_values

LOGGER: Final = logging.getLogger(__name__)
CLOSE_TIMEOUT_S: Final = 2.0
MAX_LOSSES: Final = 10
"""The number of times in a row that servers may be lost before all of them are there again."""
STOP_WITHIN_S: Final = 10.0
"""How long workers may take to notice that a server is lost, in seconds. Until then, steps may end that its successor
lacks.
"""


class _CannotRecoverError(UnavailableError):
    """A server does not come back in time, or there is no checkpoint of its state."""


@final
@dataclass(frozen=True, kw_only=True)
class CutAt:
    """The position at which a checkpoint was cut.

    Attributes:
        closure: the checkpoint has the effects of all closures below this one.
        round: the next synchronous step after the checkpoint.
        epoch: the number of epochs that had ended.
    """

    closure: int
    round: int
    epoch: int


@final
class ServerRecovery:
    """Watches the servers, with a thread for each.

    Workers may be lost together with a server, so nobody else may notice.

    Args:
        cluster: the cluster with the servers.
        setup: what the servers keep. They already have their values.
        dispatcher: the dispatcher of closures.
        open_step: the current synchronous step.
        restore_rates: a function that sends the current learning rates over a link to a server.

    Attributes:
        restore_server: a function that restores a server from the last checkpoint, given its index and the synchronous
            step. It returns the position of the checkpoint; None if there is no checkpoint. Called from any thread.

    Raises:
        UnavailableError: a server cannot be reached.
    """

    def __init__(
        self,
        cluster: Cluster,
        setup: Setup,
        *,
        dispatcher: Dispatcher,
        open_step: OpenStep,
        restore_rates: Callable[[Link], object],
    ) -> None:
        self._cluster = cluster
        self._setup = setup
        self._dispatcher = dispatcher
        self._open_step = open_step
        self._restore_rates = restore_rates
        self.restore_server: Callable[..., CutAt | None] | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._watchers: list[threading.Thread] = []
        for index in range(cluster.num_servers):
            link = cluster.reach_server(index)
            watcher = threading.Thread(target=self._watch, args=(index, link), name=f"watching ps {index}", daemon=True)
            watcher.start()
            self._watchers.append(watcher)

    def recover(self) -> None:
        """Waits until all servers are there, and restores new ones from the last checkpoint.

        Raises:
            UnavailableError: a server does not start in time, or there is no checkpoint, now or in an earlier call.
        """
        with self._lock:
            self._dispatcher.raise_end()
            unfinished: set[int] = set()  # servers that may have only a part of the checkpoint
            for num_left in reversed(range(MAX_LOSSES)):
                try:
                    self._recover_once(unfinished)
                    return
                except _CannotRecoverError as error:
                    self._dispatcher.fail(error)  # so that nobody waits for the server again
                    raise
                except UnavailableError as error:
                    if not num_left:
                        raise
                    LOGGER.warning("a parameter server was lost while others were waited for: %s", error)

    def recover_in_background(self) -> None:
        """Calls `recover` in a thread of its own. If it fails, the cluster cannot go on."""
        threading.Thread(target=self._recover_or_fail, name="server recovery", daemon=True).start()

    def end(self) -> None:
        """Stops recovery: a server that ends from now on is not replaced. Idempotent."""
        self._is_over.set()

    def close(self) -> None:
        """Waits briefly for the threads. The servers must have been told that the training is over."""
        for watcher in self._watchers:
            watcher.join(CLOSE_TIMEOUT_S)

    def _watch(self, index: int, link: Link) -> None:
        while True:
            with contextlib.closing(link):
                try:
                    link.request(Message(kind=protocol.WATCH))  # answered when the training is done
                    return
                except (UnavailableError, RemoteError) as error:  # RemoteError: from its successor
                    if self._is_over.is_set():
                        return
                    LOGGER.warning("ps %d is lost: %s", index, error)
            if not self._recover_or_fail():
                return
            try:
                link = self._cluster.reach_server(index)
            except UnavailableError as error:
                self._dispatcher.fail(error)
                return

    def _recover_or_fail(self) -> bool:
        """Calls `recover`; returns whether the cluster can go on. If it cannot, all waiting calls raise the error."""
        try:
            self.recover()
        except LockstepError as error:
            self._dispatcher.fail(error)
        except Exception as error:  # callers that wait must get the error
            LOGGER.exception("a parameter server's successor could not be given what it lacks")
            self._dispatcher.fail(UnavailableError(f"a parameter server's successor cannot be set up: {error!r}"))
        else:
            return True
        return False

    def _recover_once(self, unfinished: set[int]) -> None:
        with contextlib.ExitStack() as stack:
            links = [
                stack.enter_context(contextlib.closing(self._reach(index)))
                for index in range(self._cluster.num_servers)
            ]
            for index, link in enumerate(links):
                if index in unfinished or not _has_values(link, self._setup):
                    unfinished.add(index)
                    self._restore(index, link)
                    unfinished.remove(index)
            self._announce_step(links)

    def _reach(self, index: int) -> Link:
        try:
            return self._cluster.reach_server(index)
        except UnavailableError as error:  # it was waited for as long as allowed
            raise _CannotRecoverError(str(error)) from error

    def _announce_step(self, links: Sequence[Link]) -> None:
        self._open_step.renew(self._cluster.reach_servers())
        step = self._open_step.number  # read first: messages about an ended step are ignored
        if self._open_step.is_open:
            self._open_step.announce(Servers(links), step=step)

    def _restore(self, index: int, link: Link) -> None:
        LOGGER.warning("ps %d was lost; its successor has no state yet", index)
        is_synchronous = self._setup.mode is Mode.SYNCHRONOUS
        # Running closures may have answers of the lost server. In a synchronous step, those of other servers may be
        # late.
        num_running = 0 if is_synchronous else self._dispatcher.wait_until_none_runs(timeout_s=STOP_WITHIN_S)
        ended = self._dispatcher.ended()  # before any worker goes on
        step = self._open_step.number
        cut = None if self.restore_server is None else self.restore_server(index, step=step)
        if cut is None:
            raise _CannotRecoverError(
                f"ps {index} was lost with its part of the parameters, and there is no checkpoint to begin from",
                action="save checkpoints, and train again: by fit's callback lockstep.training.BackupAndRestore, or "
                "ClusterCoordinator.create_checkpoints",
            )
        self._restore_rates(link)
        lost = counted(step - cut.round if is_synchronous else ended.num_since(cut.closure), "step")
        others = f", and maybe of {counted(num_running, 'closure')} that workers still run" if num_running else ""
        LOGGER.warning(
            "ps %d has its part of the checkpoint after epoch %d: %s since then are lost to it%s",
            index,
            cut.epoch,
            lost,
            others,
        )


def _has_values(link: Link, setup: Setup) -> bool:
    """Whether a server keeps the model and has values, rather than being new."""
    try:
        link.request(Message(kind=protocol.JOIN, fields={"signature": setup.signature}))
    except RemoteError as error:
        if not is_missing_values(error):
            raise
        return False
    return True
