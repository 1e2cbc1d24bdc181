"""Checkpoints of custom training loops: a model, its optimizer, and all other variables that closures change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

from lockstep.checkpoints import Position
from lockstep.errors import InvalidInputError, LockstepError
from lockstep.parameter_server.checkpointing.backups import ServedBackups
from lockstep.processes.exits import finish_at_exit

if TYPE_CHECKING:
    from lockstep.parameter_server.scheduling.scheduler import Scheduler


@final
class LoopCheckpoints:
    """Saves and restores the state of the servers. Created by `ClusterCoordinator.create_checkpoints`.

    In a worker, no method except `close` returns, as for the coordinator. Not thread-safe.

    Args:
        scheduler: the scheduler of the closures.
        directory: a local path, a ``file://`` or a ``gs://`` URL.
        model: the model whose state is saved.
        keep: the number of checkpoints to keep.
    """

    def __init__(self, scheduler: Scheduler, directory: str | os.PathLike[str], *, model: Any, keep: int) -> None:
        self._scheduler = scheduler
        self._directory = directory
        self._model = model
        self._keep = keep
        self._opened: ServedBackups | None = None
        self._cancel_exit_hook: Callable[[], None] | None = None

    def restore(self) -> Position | None:
        """Restores the servers and this process from the latest checkpoint.

        Waits first for closures that were scheduled.

        Any strategy may have written the checkpoint, with any number of servers. Variables that do not belong to the
        model, such as a metric of the loop, are only in the checkpoints of a `ClusterCoordinator`. Otherwise, they are
        not changed.

        Returns:
            The position of the training in the checkpoint; None if there is no checkpoint.

        Raises:
            ClosureError: a function that was scheduled before has failed.
            CorruptDataError: the latest checkpoint cannot be read.
            InvalidInputError: it belongs to another model, or closures train with an optimizer that is not the model's.
            UnavailableError: a server is lost.
            SystemExit: in a worker, the training is over.
        """
        backups = self._backups
        state = self._scheduler.restore(lambda: backups.restore(self._model))
        return None if state is None else state.position

    def save(self, position: Position) -> None:
        """Begins a checkpoint with the effects of all functions that were scheduled before, and of no others.

        Waits until the previous checkpoint is written. If variables were assigned here, also waits for running
        closures. If the checkpoint cannot be written, this is logged and raised by `wait`, and the loop goes on. If a
        function that was scheduled before fails, there is no checkpoint.

        Args:
            position: the position of the training, as `restore` will return it. If there is an optimizer, the step is
                replaced by its number of updates.

        Raises:
            ClosureError: a function that was scheduled before has failed.
            InvalidInputError: closures train with an optimizer that is not the model's.
            SystemExit: in a worker, the training is over.
        """
        backups = self._backups
        self._scheduler.raise_failure()
        self._scheduler.flush()
        backups.save(self._model, position=position)

    def wait(self) -> None:
        """Waits until the last checkpoint is written.

        Raises:
            StorageWriteError: a checkpoint that was saved since the last call could not be written.
            LockstepError: a server could not be read, or a function that was scheduled before has failed.
            SystemExit: in a worker, the training is over.
        """
        self._backups.wait()

    def close(self) -> None:
        """Waits until the last checkpoint is written, but only briefly for closures that do not end. Idempotent.

        If a server is lost after this, its state is lost. ``with`` calls this method and, if no error was raised, waits
        for closures first. A script that ends without calling it waits for a checkpoint that is being written.
        """
        if self._opened is not None:
            if self._cancel_exit_hook is not None:
                self._cancel_exit_hook()
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._opened is not None:
            with contextlib.suppress(LockstepError):  # it is in the log
                self._opened.wait()
        self.close()

    def _finish(self) -> None:
        """At the end of the script, waits for a checkpoint that is being written."""
        if self._opened is not None and self._opened.is_running:
            self._opened.wait()

    @property
    def _backups(self) -> ServedBackups:
        if self._opened is None:
            chief = self._scheduler.chief
            served = chief.served
            known = getattr(self._model, "optimizer", None)  # Keras makes it when a model is compiled
            optimizers = [one for one in served.optimizers if one is not known]
            if optimizers:
                raise InvalidInputError(
                    "a checkpoint has the state of the model's own optimizer, and closures train by another one",
                    received=optimizers[0].name,
                    allowed="one optimizer, which the model knows",
                    action="give it to the model: model.compile(optimizer)",
                )
            own = {id(variable) for variable in self._model.variables}
            self._opened = ServedBackups(
                self._directory,
                keep=self._keep,
                chief=chief,
                others=[variable for variable in served.variables if id(variable) not in own],
                on_server_restored=self._scheduler.forget_version,
            )
            self._cancel_exit_hook = finish_at_exit(self._finish, what=f"the last checkpoint in {self._directory}")
        return self._opened
