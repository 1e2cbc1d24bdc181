"""Custom training loops over workers and parameter servers, with the interface of ``tf.distribute.coordinator``."""

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
    """Schedules functions of the script to run in workers, as ``tf.distribute.coordinator.ClusterCoordinator`` does.

    Every process runs the same script. In a worker, the first call of `schedule`, `join`, `done`, `fetch` or
    `staleness` does not return, nor does the first restore or save of a checkpoint. From then on, the worker runs what
    the coordinator schedules, and ends with `SystemExit` when the coordinator's script has ended. So everything that
    closures need must be created before that call: the model, its optimizer (built:
    ``optimizer.build(model.trainable_variables)``) and metrics within the strategy's scope, the functions, and
    per-worker data sets and values.

    A call of a function in a worker is a **closure**. In a closure, the script's variables have the servers' values.
    When the function returns, its changes are sent to the servers in one push: the gradients that an optimizer applies,
    which the servers apply, and the changes of other variables (metrics, moving statistics), which are added. So within
    a closure, an optimizer is applied at most once, and the variables keep their former values after that. Each worker
    has its own random states.

    In the coordinator, variables have the servers' values as of the last `join`, or the last `done` that returned True.
    Values that you assign there, and an optimizer's learning rate, are sent to the servers before the next closure.

    Closures may follow ``fit``. Then a worker's calls of ``fit`` return the coordinator's results, and the worker's
    script runs on to the first closure too.

    Another coordinator for the same strategy shares everything with the first one. Not thread-safe.

    Args:
        strategy: the strategy whose cluster runs the functions.

    Raises:
        InvalidInputError: the strategy is of another class, or its steps are synchronous (``num_backup_workers``).
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
        """Schedules a call of a function in a worker. Does not block.

        The function is called at least once: if its worker is lost, another one calls it again. Its push is still
        applied only once. If a function that was scheduled before has failed, its error is raised here, after the
        running functions have ended and those that had not begun were cancelled.

        Args:
            fn: a function that `lockstep.function` decorates, or a function of a module, because workers find it by
                name. For a decorated function, one batch is taken from each iterator among its arguments before it
                runs; ``next`` in the function returns that batch.
            args: the positional arguments, with their current values: numbers, texts, None, arrays and structures of
                these; and per-worker data sets, iterators over them, and per-worker values.
            kwargs: the arguments by name, of the same kinds.

        Returns:
            The future result: a structure of numbers, texts, None and arrays (NumPy's, when fetched).

        Raises:
            ClosureError: a function that was scheduled before has failed.
            InvalidInputError: workers cannot find the function by name, or an argument cannot be sent; or, in the first
                call, an `Embedding` whose table is on the servers has no optimizer of its own, and none trains it.
            UnavailableError: there was no worker, or a server was unavailable, for too long.
            SystemExit: in a worker, the training is over.
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
        """Waits until all scheduled functions have ended, and updates the variables with the servers' values.

        Raises:
            ClosureError: a function failed. No function is running any more, and those that had not begun were
                cancelled. Raised once, with the worker's stack as a note.
            UnavailableError: there was no worker, or a server was unavailable, for too long.
            SystemExit: in a worker, the training is over.
        """
        self._scheduler.join()

    def done(self) -> bool:
        """Returns whether all scheduled functions have ended. Does not wait for them.

        Raises:
            ClosureError: as for `join`.
            UnavailableError: as for `join`.
            SystemExit: in a worker, the training is over.
        """
        return self._scheduler.done()

    def fetch(self, val: Any) -> Any:
        """Waits for the results of functions.

        Args:
            val: a `RemoteValue`, or a structure that has some.

        Returns:
            The same structure with the results in place of the `RemoteValue` objects. Everything else is unchanged.

        Raises:
            ClosureError: a function failed.
            ClosureAbortedError: a function was cancelled.
            SystemExit: in a worker, the training is over.
        """
        return self._scheduler.fetch(val)

    def staleness(self) -> float | None:
        """Returns the mean staleness of closures since the last call: what `fit` logs as "staleness".

        Returns:
            The mean number of pushes that the servers had applied between a closure's pull and its push; None if no
            closure has pushed.

        Raises:
            SystemExit: in a worker, the training is over.
        """
        return self._scheduler.staleness()

    def create_checkpoints(self, directory: str | os.PathLike[str], model: Any, *, keep: int = 2) -> LoopCheckpoints:
        """Opens a directory of checkpoints of a model, its optimizer, and other variables that closures change.

        After the first save or restore, a server that is lost is replaced by one that is restored from the last
        checkpoint.

        Args:
            directory: a local path, a ``file://`` or a ``gs://`` URL. Use one directory for each training.
            model: the model. Its optimizer (``model.compile(optimizer)``) must be the one that closures apply.
            keep: the number of checkpoints to keep.

        Raises:
            InvalidInputError: ``keep`` is not positive.
        """
        if keep < 1:
            raise InvalidInputError("keep", received=keep, allowed="1 or more")
        return LoopCheckpoints(self._scheduler, directory, model=model, keep=keep)

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Lets each worker create a data set for itself, when a closure first uses it there.

        Args:
            dataset_fn: a function that returns an iterable of batches. If it takes an argument, it is passed the
                worker's `lockstep.strategies.InputContext`. Or the data set itself; then each worker reads all of it.

        Returns:
            An object that stands for these data sets as an argument of scheduled functions. So does ``iter`` of it.

        Raises:
            WrongStateError: this is called after the first closure, when the workers have left the script.
        """
        return self._scheduler.add_dataset(dataset_fn)

    def create_per_worker_values(self, fn: Callable[..., Any]) -> PerWorkerValues:
        """Lets each worker create a value for itself, when a closure first uses it there. The value may be any object.

        Args:
            fn: a function that returns the value. If it takes an argument, it is passed the worker's
                `lockstep.strategies.InputContext`.

        Returns:
            An object that stands for these values as an argument of scheduled functions.

        Raises:
            InvalidInputError: `fn` is not a function.
            WrongStateError: this is called after the first closure, when the workers have left the script.
        """
        if not callable(fn):
            raise InvalidInputError("a per-worker value's function", received=type(fn).__name__, allowed="a function")
        return self._scheduler.add_values(fn)
