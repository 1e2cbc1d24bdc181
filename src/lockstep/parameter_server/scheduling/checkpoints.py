"""Checkpoints of loops of the user's own: of a model, its optimizer and all else that closures change."""

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
    """Saves what the servers have, and gives it back; `ClusterCoordinator.create_checkpoints` makes it.

    In a worker no method but `close` returns, as of the coordinator. Not safe for several threads.

    Args:
        scheduler: of the closures.
        directory: a local path, a ``file://`` or a ``gs://`` URL.
        model: whose state is saved.
        keep: how many checkpoints are kept.
    """

    def __init__(self, scheduler: Scheduler, directory: str | os.PathLike[str], *, model: Any, keep: int) -> None:
        self._scheduler = scheduler
        self._directory = directory
        self._model = model
        self._keep = keep
        self._opened: ServedBackups | None = None
        self._take_back: Callable[[], None] | None = None

    def restore(self) -> Position | None:
        """Gives the servers and this process the latest checkpoint; waits for closures that were scheduled before.

        Any strategy may have written it, with any number of servers. Variables that are not the model's, such as a
        metric of the loop's, are in those of a `ClusterCoordinator` alone, and stay as they are otherwise.

        Returns:
            Where the training stood; None where there is no checkpoint.

        Raises:
            ClosureError: a function that was scheduled before has failed.
            CorruptDataError: the latest checkpoint cannot be read.
            InvalidInputError: it is of another model; or closures train by something else than the model's optimizer.
            UnavailableError: a server is gone.
            SystemExit: (in a worker) the training is over.
        """
        backups = self._backups
        state = self._scheduler.restore(lambda: backups.restore(self._model))
        return None if state is None else state.position

    def save(self, position: Position) -> None:
        """Begins a checkpoint, of all that functions do which were scheduled before, and of nothing else.

        Waits for the checkpoint before this one, and, where variables were assigned here, for closures that run. Where
        it cannot be written, that is said in the log, and by `wait`; the loop goes on. Where a function that was
        scheduled before fails, there is no checkpoint.

        Args:
            position: where the training stands: what `restore` will return, but for the step, which is the number of
                the optimizer's updates where there is one.

        Raises:
            ClosureError: a function that was scheduled before has failed.
            InvalidInputError: closures train by something else than the model's optimizer.
            SystemExit: (in a worker) the training is over.
        """
        backups = self._backups
        self._scheduler.raise_failure()
        self._scheduler.flush()
        backups.save(self._model, position=position)

    def wait(self) -> None:
        """Waits until what was saved is written.

        Raises:
            StorageWriteError: it could not be written, or something that was saved since the last call.
            LockstepError: a server could not be read, or a function that was scheduled before has failed.
            SystemExit: (in a worker) the training is over.
        """
        self._backups.wait()

    def close(self) -> None:
        """Waits until what was saved is written, but not for long for closures that do not end. Idempotent.

        What a server has that is lost after this is lost. ``with`` calls it, and waits for closures too where no error
        was raised. A script that ends without it waits for a checkpoint that is being written.
        """
        if self._opened is not None:
            if self._take_back is not None:
                self._take_back()
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._opened is not None:
            with contextlib.suppress(LockstepError):  # the log has it
                self._opened.wait()
        self.close()

    def _finish(self) -> None:
        """Waits for a checkpoint that is being written where the script ends."""
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
            self._take_back = finish_at_exit(self._finish, what=f"the last checkpoint in {self._directory}")
        return self._opened
