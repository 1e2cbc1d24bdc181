"""Loops of the user's own over workers and parameter servers, by the names of ``tf.distribute.coordinator``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.coordination.remote_values import RemoteValue
from lockstep.parameter_server.scheduling.checkpoints import LoopCheckpoints
from lockstep.parameter_server.scheduling.per_worker import PerWorkerDataset, PerWorkerValues
from lockstep.parameter_server.strategy import ParameterServerStrategy


@final
class ClusterCoordinator:
    """Has workers run functions of the script, and waits for them, as ``tf.distribute.coordinator`` does.

    The same script runs in every process. In a worker the first call of `schedule`, `join`, `done`, `fetch` or
    `staleness`, or the first that restores or saves a checkpoint, does not return: from there on the worker runs what
    the coordinator schedules, and ends with `SystemExit` when the coordinator's script has ended. So all that closures
    need is made before: the model, its optimizer (built: ``optimizer.build(model.trainable_variables)``) and metrics
    within the strategy's scope, the functions, and what each worker has of its own.

    A function that a worker runs (a **closure**) sees in the script's variables what the servers have. What it does to
    them goes to the servers in one push when it returns: gradients that an optimizer applies, which the servers apply,
    and by how much other variables have changed (metrics, moving statistics), which is added. So within a closure an
    optimizer is applied once, and a variable has its former value after that. Random states are each worker's own.

    In the coordinator variables have the servers' values as of the last `join` (or `done` that was true). What is
    assigned there, and an optimizer's learning rate, goes to the servers before the next closure does.

    Closures may follow ``fit``: a worker's calls of it then return what the coordinator's have returned, and its script
    runs on to the first closure, too.

    A coordinator made again for the same strategy is the same one. Not safe for several threads.

    Args:
        strategy: whose cluster it is.

    Raises:
        InvalidInputError: the strategy is another one, or its steps are synchronous (``num_backup_workers``).
    """

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        if not isinstance(strategy, ParameterServerStrategy):  # pyright: ignore[reportUnnecessaryIsInstance]  # whatever a script gives
            raise InvalidInputError(
                "ClusterCoordinator's strategy",
                received=type(strategy).__name__,
                allowed="a ParameterServerStrategy",
            )
        if strategy.member.options.is_synchronous:
            raise InvalidInputError(
                "closures do not wait for each other's workers, and this strategy's steps do",
                received="num_backup_workers",
                allowed="fit; or a strategy without num_backup_workers",
            )
        self._strategy = strategy
        self._scheduler = strategy.scheduler

    @property
    def strategy(self) -> ParameterServerStrategy:
        """The strategy."""
        return self._strategy

    def schedule(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> RemoteValue:
        """Has some worker call a function, some time; does not wait.

        It is called at least once: where its worker is lost another one calls it again. What it pushes is applied once
        all the same. Where one that was scheduled before has failed, its error is raised here, once nothing runs any
        more, and what had not begun was cancelled.

        Args:
            fn: a function that `lockstep.function` decorates, or one of a module: workers find it by its name. A
                decorated one takes one batch from each iterator that it is given, before it runs: the ``next`` in it
                returns that batch.
            args: its arguments, as they are now: numbers, texts, None, arrays and structures of them, and what each
                worker has its own of: per-worker data sets, iterators over them, per-worker values.
            kwargs: the same by name.

        Returns:
            What it will return: a structure of numbers, texts, None and arrays (of NumPy, when they are fetched).

        Raises:
            ClosureError: a function that was scheduled before has failed.
            InvalidInputError: workers cannot find the function by its name, or an argument cannot travel; or (at the
                first call) no optimizer trains an `Embedding` whose table lies on the servers, and it has none itself.
            UnavailableError: no worker, or a server, was there for too long.
            SystemExit: (in a worker) the training is over.
        """
        if args is not None and not isinstance(args, list | tuple):
            raise InvalidInputError(
                "schedule's args", received=type(args).__name__, allowed="a tuple or list: args=(iterator,)"
            )
        if kwargs is not None and not isinstance(kwargs, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInputError(
                "schedule's kwargs", received=type(kwargs).__name__, allowed='arguments by name: kwargs={"rate": 0.1}'
            )
        return self._scheduler.schedule(fn, args or (), kwargs or {})

    def join(self) -> None:
        """Waits until every function that was scheduled has ended, and brings the servers' values.

        Raises:
            ClosureError: one of them failed; nothing runs any more then, and what had not begun was cancelled. Raised
                once, with the worker's stack as a note.
            UnavailableError: no worker, or a server, was there for too long.
            SystemExit: (in a worker) the training is over.
        """
        self._scheduler.join()

    def done(self) -> bool:
        """Returns whether every function that was scheduled has ended; does not wait for them.

        Raises:
            ClosureError: as of `join`.
            UnavailableError: as of `join`.
            SystemExit: (in a worker) the training is over.
        """
        return self._scheduler.done()

    def fetch(self, val: Any) -> Any:
        """Waits for what functions return.

        Args:
            val: a `RemoteValue`, or a structure with some.

        Returns:
            The same structure with the values in their indices; what is none stays as it is.

        Raises:
            ClosureError: one of the functions failed.
            ClosureAbortedError: one of them was cancelled.
            SystemExit: (in a worker) the training is over.
        """
        return self._scheduler.fetch(val)

    def staleness(self) -> float | None:
        """Returns how stale closures were that have ended since this was called last: what `fit` logs as "staleness".

        Returns:
            How many pushes the servers had applied between a closure's pull and its push, at the mean; None where none
            has pushed.

        Raises:
            SystemExit: (in a worker) the training is over.
        """
        return self._scheduler.staleness()

    def create_checkpoints(self, directory: str | os.PathLike[str], model: Any, *, keep: int = 2) -> LoopCheckpoints:
        """Opens a directory of checkpoints: of a model with its optimizer, and of other variables that closures change.

        Once something has been saved or restored, a server that is lost is replaced by one that begins from the last
        checkpoint.

        Args:
            directory: a local path, a ``file://`` or a ``gs://`` URL; one directory for one training.
            model: whose optimizer (``model.compile(optimizer)``) is the one that closures apply.
            keep: how many checkpoints are kept.

        Raises:
            InvalidInputError: ``keep`` is not positive.
        """
        if keep < 1:
            raise InvalidInputError("keep", received=keep, allowed="1 or more")
        return LoopCheckpoints(self._scheduler, directory, model=model, keep=keep)

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Has each worker make a data set for itself, when it is first used there.

        Args:
            dataset_fn: a function that returns what can be iterated for batches; it is given the worker's
                `lockstep.strategies.InputContext` if it takes an argument. Or the data set itself, of which then each
                worker reads all.

        Returns:
            What stands for them: an argument of functions that are scheduled, and so is ``iter`` of it.

        Raises:
            WrongStateError: it comes after the first closure, where the workers have left the script.
        """
        return self._scheduler.add_dataset(dataset_fn)

    def create_per_worker_values(self, fn: Callable[..., Any]) -> PerWorkerValues:
        """Has each worker make a value for itself, when it is first used there; it may be any object.

        Args:
            fn: returns it; it is given the worker's `lockstep.strategies.InputContext` if it takes an argument.

        Returns:
            What stands for them: an argument of functions that are scheduled.

        Raises:
            InvalidInputError: it is no function.
            WrongStateError: it comes after the first closure, where the workers have left the script.
        """
        if not callable(fn):
            raise InvalidInputError("a per-worker value's function", received=type(fn).__name__, allowed="a function")
        return self._scheduler.add_values(fn)
