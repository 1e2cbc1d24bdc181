"""Backups of a training with parameter servers, for ``fit`` and for loops of the user's own."""

# Keras is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import keras
import numpy as np
from typing_extensions import override

from lockstep.checkpoints import Position, TrainingState
from lockstep.checkpoints.backups import AbstractBackups
from lockstep.checkpoints.run_state import RunState
from lockstep.checkpoints.turnover import Ranking
from lockstep.errors import LockstepError, UnavailableError
from lockstep.parameter_server.checkpointing.cluster_checkpoints import ClusterCheckpoints
from lockstep.parameter_server.coordination.chief import Chief
from lockstep.parameter_server.coordination.closures import Mark
from lockstep.parameter_server.coordination.server_recovery import CutAt
from lockstep.parameter_server.links.client import RemoteError
from lockstep.upstream.keras_variables import learning_rate_of

LOGGER: Final = logging.getLogger(__name__)


@final
class ServedBackups(AbstractBackups):
    """Backups of a model whose state is on the servers.

    Args:
        directory: a local path, a ``file://`` or a ``gs://`` URL.
        keep: the number of checkpoints to keep.
        chief: the coordinator's control of its cluster.
        step: the synchronous step that the coordinator is at.
        others: variables that the servers keep and that do not belong to the model.
        on_server_restored: a function that is called with the index of a server before that server goes on from the
            last checkpoint. It may be called from any thread.
        waits: whether `save` waits until the previous checkpoint is written. Otherwise, it skips the new one in that
            case; `close` then saves it, if no closure has been scheduled since.
        send_changes: a function that sends the servers what this process has changed in the model. It is called before
            each `save`.

    Raises:
        InvalidInputError: the URL is of an unsupported kind, or ``keep`` is not positive.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int,
        chief: Chief,
        step: int = 0,
        others: Sequence[Any] = (),
        on_server_restored: Callable[[int], object] = lambda _: None,
        waits: bool = True,
        send_changes: Callable[[], object] = lambda: None,
    ) -> None:
        self._url = os.fspath(directory)
        self._chief = chief
        self._step = step
        self._on_server_restored = on_server_restored
        self._waits = waits
        self._send_changes = send_changes
        self._left_out: tuple[int, Position, RunState | None] | None = None
        self._model: Any = None
        self._failure: LockstepError | None = None
        self._lock = threading.Lock()
        # By the closures at which checkpoints were cut: the last complete one, and the one that was begun after it.
        self._rounds: dict[int, int] = {}
        self._marks: dict[int, Mark] = {}
        self._checkpoints = ClusterCheckpoints(
            directory,
            setup=chief.served.setup,
            connect=chief.reach_server,
            watching=self._watching,
            others=others,
            keep=keep,
        )

    @property
    @override
    def url(self) -> str:
        return self._url

    @property
    @override
    def saves_only_between_epochs(self) -> bool:
        return True

    @property
    @override
    def needs_initial_checkpoint(self) -> bool:
        return True

    @override
    def restore(self, model: Any) -> TrainingState | None:
        dispatcher = self._chief.dispatcher
        with self._lock:
            restored = self._checkpoints.restore(
                model, step=self._step, next_closure=dispatcher.next_closure, set_next_number=dispatcher.set_next_number
            )
        self._register(model)
        if restored is None:
            return None
        self._rounds[restored.closure] = self._step
        self._chief.note_restored()
        rate = learning_rate_of(model.optimizer) if self._chief.served.optimizers else None
        if isinstance(rate, keras.Variable):  # table rows follow it, and began with the script's rate
            self._chief.set_learning_rate(float(np.asarray(rate.value)), group=0)
        return restored.state

    @override
    def rank(self, ranking: Ranking) -> None:
        self._checkpoints.rank(ranking)

    @override
    def save(self, model: Any, *, position: Position, run: RunState | None = None) -> None:
        self._register(model)
        try:
            self._send_changes()
        except (UnavailableError, RemoteError) as error:
            self._note_failure(error, position=position)
            return
        if not self._waits and self.is_running:
            self._left_out = self._chief.dispatcher.next_closure, position, run
            LOGGER.info("epoch %d has no checkpoint: the one before is still being written", position.epoch)
            return
        self._left_out = None
        self._begin(model, position=position, run=run)

    def _begin(self, model: Any, *, position: Position, run: RunState | None) -> None:
        try:
            with self._lock:
                mark = self._chief.dispatcher.mark()
                self._forget_cuts()
                self._rounds[mark.closure], self._marks[mark.closure] = self._chief.round, mark
                self._checkpoints.begin(mark.closure, model=model, position=position, run=run)
        except (UnavailableError, RemoteError) as error:
            self._note_failure(error, position=position)

    def _note_failure(self, error: LockstepError, *, position: Position) -> None:
        self._failure = error
        LOGGER.warning("epoch %d has no checkpoint, and training goes on: %s", position.epoch, error)

    @override
    def close(self) -> None:
        self._close()
        if self._left_out is not None and self._left_out[0] == self._chief.dispatcher.next_closure:
            (_, position, run), self._left_out = self._left_out, None
            self._begin(self._model, position=position, run=run)
            self._close()
        if self._chief.recovery.restore_server == self._restore_server:
            self._chief.recovery.restore_server = None

    def _close(self) -> None:
        with self._lock, contextlib.suppress(LockstepError):  # it was logged when it happened, and training went on
            self._checkpoints.close()

    def wait(self) -> None:
        """Waits until the last checkpoint is written.

        Raises:
            StorageWriteError: this checkpoint, or an earlier one that was not waited for, could not be written.
            LockstepError: a server could not be read, or an earlier closure has failed.
        """
        with self._lock:
            self._checkpoints.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @property
    def is_running(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._checkpoints.is_running

    def _watching(self, closure: int) -> Callable[[], int]:
        dispatcher, mark = self._chief.dispatcher, self._marks[closure]

        def watermark() -> int:
            found = dispatcher.watermark
            if mark.num_not_run:
                raise UnavailableError("a closure of before it has failed, which it would lack")
            return found

        return watermark

    def _forget_cuts(self) -> None:
        """Forgets all cuts except the last complete checkpoint's and the last begun one's: only these are needed."""
        last = max(self._marks, default=None)
        kept = {self._checkpoints.last_whole, last}
        self._rounds = {closure: number for closure, number in self._rounds.items() if closure in kept}
        self._marks = {closure: mark for closure, mark in self._marks.items() if closure in kept}

    def _register(self, model: Any) -> None:
        """Makes this object restore the successors of lost servers from now on."""
        self._model = model
        self._chief.recovery.restore_server = self._restore_server

    def _restore_server(self, index: int, *, step: int) -> CutAt | None:
        """Restores the successor of a lost server from the last checkpoint. May be called from any thread.

        Returns:
            The position at which the checkpoint was cut; None if there is no checkpoint.
        """
        self._checkpoints.give_up()
        with self._lock:
            restored = self._checkpoints.restore_server(index, model=self._model, step=step)
        self._on_server_restored(index)
        if restored is None:
            return None
        # If another process has written this checkpoint meanwhile, its synchronous step is unknown here.
        number = self._rounds.get(restored.closure, self._step)
        return CutAt(closure=restored.closure, round=number, epoch=restored.position.epoch)
