"""What ``fit`` under parameter servers is backed up by: `lockstep.training.BackupAndRestore` asks for it."""

# Keras is partly without types: what comes from it is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import Any, Final, final

import keras
import numpy as np
from typing_extensions import override

from lockstep.checkpoints import Position, TrainingState
from lockstep.checkpoints.backups import AbstractBackups
from lockstep.errors import LockstepError, UnavailableError
from lockstep.parameter_server.checkpointing.cluster_checkpoints import ClusterCheckpoints
from lockstep.parameter_server.coordination.chief import Chief
from lockstep.parameter_server.links.client import RemoteError

LOGGER: Final = logging.getLogger(__name__)


@final
class ServedBackups(AbstractBackups):
    """Backups of a model whose state is on the servers.

    Args:
        directory: a local path, a ``file://`` or a ``gs://`` URL.
        keep: how many checkpoints are kept.
        chief: the coordinator's hold of its cluster.
        step: the synchronous step that the coordinator is at.

    Raises:
        InvalidInputError: the URL is of another kind, or ``keep`` is not positive.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int, chief: Chief, step: int) -> None:
        self._url = os.fspath(directory)
        self._chief = chief
        self._step = step
        self._model: Any = None
        self._lock = threading.Lock()
        self._checkpoints = ClusterCheckpoints(
            directory,
            setup=chief.served.setup,
            connect=chief.reach_server,
            watermark=lambda: chief.dispatcher.watermark,
            keep=keep,
        )

    @property
    @override
    def url(self) -> str:
        return self._url

    @property
    @override
    def is_for_epochs_alone(self) -> bool:
        return True

    @override
    def restore(self, model: Any) -> TrainingState | None:
        self._model = model
        dispatcher = self._chief.dispatcher
        restored = self._checkpoints.restore(model, step=self._step, next_closure=dispatcher.next_closure)
        self._chief.restore_server = self._restore_server
        if restored is None:
            return None
        dispatcher.begin_at(restored.first_closure)
        self._chief.pull()  # what the servers have is what the model has: nothing of it is a callback's change
        rate = model.optimizer._learning_rate
        if isinstance(rate, keras.Variable):  # rows of tables follow it, which began with the script's
            self._chief.set_learning_rate(float(np.asarray(rate.value)), group=0)
        return restored.state

    @override
    def save(self, model: Any, *, position: Position) -> None:
        try:
            with self._lock:
                self._checkpoints.begin(self._chief.dispatcher.next_closure, model=model, position=position)
        except (UnavailableError, RemoteError) as error:
            LOGGER.warning("epoch %d has no checkpoint, and training goes on: %s", position.epoch, error)

    @override
    def close(self) -> None:
        with self._lock:
            self._chief.restore_server = None
            with contextlib.suppress(LockstepError):  # it was said when it happened, and training went on
                self._checkpoints.close()

    def _restore_server(self, index: int, *, step: int) -> int | None:
        """Gives the successor of a lost server what the last checkpoint has for it; any thread may call it.

        Returns:
            The closure that the checkpoint was cut at; None where there is none.
        """
        self._checkpoints.give_up()
        with self._lock:
            restored = self._checkpoints.restore_server(index, model=self._model, step=step)
        return None if restored is None else restored.closure
