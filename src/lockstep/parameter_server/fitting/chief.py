"""The coordinator's part of ``fit``: it makes workers run the steps, and gives Keras's own loop their results."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

import itertools
import queue
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import keras
import numpy as np

from lockstep.errors import LockstepError, UnavailableError
from lockstep.parameter_server.coordination.chief import Chief
from lockstep.parameter_server.coordination.remote_values import ClosureError, RemoteValue
from lockstep.parameter_server.fitting.allocation import BatchAllocation
from lockstep.strategies import fitting
from lockstep.upstream.keras_trainer import restore_variables
from lockstep.upstream.keras_variables import learning_rate_of

NUM_AHEAD: Final = 4
"""The number of closures that are scheduled ahead per worker, so that no worker waits for the coordinator."""
STALENESS: Final = "staleness"
FUNCTION: Final = "fit"


@final
class Steps(keras.utils.PyDataset):
    """The data that Keras's loop counts steps with in the coordinator. The coordinator reads no data.

    Args:
        num_steps: the number of steps in an epoch.
    """

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self._num_steps = num_steps

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the workers read the data")


@final
class EpochCallback(keras.callbacks.Callback):
    """Reports the beginning of each epoch, because a restored run does not begin with the first one; and the last end.

    Args:
        begin: a function that is called with the epoch that begins.
        end: a function that is called after the last epoch, before Keras or a callback uses the final weights.
    """

    def __init__(self, begin: Callable[[int], None], *, end: Callable[[], None]) -> None:
        super().__init__()
        self._begin = begin
        self._end = end

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Calls `begin`."""
        self._begin(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Calls `end` if this is the last epoch."""
        model: Any = self.model
        if model.stop_training or epoch + 1 == (self.params or {}).get("epochs"):
            self._end()


@final
class _Served(Sequence[Any]):
    """Values of variables, pulled from the servers only when they are read, because Keras seldom reads them."""

    def __init__(self, variables: Sequence[Any], read: Callable[[], dict[int, Any]]) -> None:
        self._variables = list(variables)
        self._read = read

    def __len__(self) -> int:
        return len(self._variables)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[Any]:
        values = self._read()
        return iter([values[id(variable)] for variable in self._variables])


@final
@dataclass(frozen=True, kw_only=True)
class _Result:
    """The results of a closure's steps.

    Attributes:
        metrics: the changes of the metrics' variables, by dtype.
        num_steps: the number of steps.
        num_rows: the number of rows in their batches.
        staleness: the sum, over the steps, of the pushes that were applied between pull and push.
        is_applied: whether any server accepted a push in time. Each server accepts the first ones that reach it.
        step: the servers' synchronous step.
    """

    metrics: dict[str, np.ndarray[Any, Any]]
    num_steps: int
    num_rows: int
    staleness: int
    is_applied: bool
    step: int


@final
class CoordinatedFit:
    """One call of ``fit``.

    Args:
        chief: the coordinator's control of its cluster.
        model: the model.
        num_steps: the number of steps in an epoch.
        seed: the seed of the order of the data.
        is_synchronous: whether all workers do each step together.
        max_lead: the number of steps that a worker may be ahead of the slowest one; None for no limit.
        num_workers: the number of workers that the cluster is to have.
        first_round: the servers' synchronous step.
    """

    def __init__(
        self,
        chief: Chief,
        model: Any,
        *,
        num_steps: int,
        seed: int,
        is_synchronous: bool,
        max_lead: int | None,
        num_workers: int,
        first_round: int,
    ) -> None:
        self._chief = chief
        self._model = model
        self._num_steps = num_steps
        self._seed = seed
        self._is_synchronous = is_synchronous
        self.round = first_round
        self._is_open = False  # a synchronous step has begun, and has not ended
        self._ended: queue.SimpleQueue[RemoteValue] = queue.SimpleQueue()
        self._num_under_way = 0
        self._num_to_schedule = 0
        self._num_to_await = 0
        num_steps_each = max(1, num_steps // num_workers)
        self._closure_steps = _closure_steps(
            model.steps_per_execution, most=num_steps_each if max_lead is None else min(num_steps_each, max_lead + 1)
        )
        self._results: deque[RemoteValue] = deque()
        self._choose_batch: Callable[[str], int] = lambda _worker: 0
        self._pulled_values: dict[int, Any] | None = None
        self._has_late = False  # whether steps have ended since the values were read
        self._optimizer_values: list[Any] = []
        self._local: dict[int, Any] = {}
        self._staleness, self._num_ended = 0, 0
        self._fold: Any = jax.jit(self._add_metrics)

    def begin_epoch(self, epoch: int) -> None:
        """Divides the batches of an epoch among the workers."""
        self._num_to_schedule = self._num_to_await = self._num_steps
        first, num_workers = epoch * self._num_steps, self._chief.num_workers
        if self._is_synchronous:  # each step then has as many batches as there are workers
            numbers = itertools.count(first * num_workers)
            self._choose_batch = lambda _worker: next(numbers)
        else:
            allocation = BatchAllocation(first=first, num_batches=self._num_steps, num_workers=num_workers)
            self._choose_batch = allocation.take
        self._staleness, self._num_ended = 0, 0

    def train(self, state: Any, _iterator: Any) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Waits for steps of the workers: as many as Keras's loop runs in one execution.

        Returns:
            The logs and the state.

        Raises:
            ClosureError: a step failed in its worker.
            UnavailableError: the cluster cannot go on.
        """
        trainable, non_trainable, optimizer_values, metrics = state
        self._collect_changes(trainable, non_trainable, optimizer_values)
        self._pulled_values = None
        try:
            metrics, logs = self._train(metrics)
        except ClosureError:  # a caller that catches it may continue to use the model
            with suppress(UnavailableError):
                restore_variables(self._model, self._state(metrics))
            raise
        return logs, self._state(metrics)

    def _train(self, metrics: Any) -> tuple[Any, dict[str, Any]]:
        num_steps = min(self._model.steps_per_execution, self._num_to_await)
        self._num_to_await -= num_steps
        results = self._synchronous_steps(num_steps) if self._is_synchronous else self._next_steps(num_steps)
        metrics, logs = self._fold(list(metrics), _sums([result.metrics for result in results]))
        run = fitting.current_call()
        for result in results:
            if run is not None:
                run.num_examples += result.num_rows
            self._staleness += result.staleness
            self._num_ended += result.num_steps
        return metrics, {**logs, STALENESS: self._staleness / self._num_ended}

    def _state(self, metrics: Any) -> tuple[Any, ...]:
        model = self._model
        return (
            _Served(model.trainable_variables, self._values),
            _Served(model.non_trainable_variables, self._values),
            _Served(model.optimizer.variables, self._optimizer_state),
            metrics,
        )

    def end(self) -> None:
        """After the last epoch, waits until no closure is running, and sets the model to the servers' values.

        Values that callbacks have set are sent to the servers first.
        """
        self.drain()
        if self._has_late:
            model = self._model
            variables = (*model.trainable_variables, *model.non_trainable_variables)
            self._send_changes({id(variable): variable.value for variable in variables})
            self._update_model()

    def send_changes(self) -> None:
        """Sends the servers what callbacks have changed in the model between two epochs, before a checkpoint is cut."""
        model = self._model
        variables = (*model.trainable_variables, *model.non_trainable_variables)
        self._send_changes({id(variable): variable.value for variable in variables})
        rate = learning_rate_of(model.optimizer)
        if isinstance(rate, keras.Variable):
            self._chief.set_learning_rate(float(np.asarray(rate.value)), group=0)

    def stop_after_error(self) -> None:
        """Waits and sets the model as `end` does, after an error. Values in the model are not sent to the servers."""
        self.drain(is_last=True)
        if self._has_late:
            self._update_model()

    def _update_model(self) -> None:
        values = {**self._values(), **self._optimizer_state()}
        for variable in (*self._chief.served.variables, *self._model.optimizer.variables):
            variable.assign(values[id(variable)])

    def drain(self, *, is_last: bool = False) -> None:
        """Waits until no closure is running.

        Closures that no worker has begun are cancelled, to be scheduled again later.

        Args:
            is_last: whether the run ends here, for any reason. Then no other worker is waited for to run again what a
                lost worker had begun.
        """
        # A synchronous step that is over accepts no pushes. Otherwise, a begun closure may have pushed and keeps its
        # batch.
        keeps_begun = not (is_last or self._is_synchronous)
        self._num_to_schedule += self._chief.dispatcher.cancel_waiting(keeps_begun=keeps_begun)
        if self._is_open:  # after an error, workers would wait for the end of the step forever
            self._is_open = False
            self.round += 1
            self._chief.leave_round(self.round)
        elif self._is_synchronous and not self._chief.dispatcher.is_settled:
            self._chief.begin_round(self.round)  # a server that was lost stops waiting for pushes of the last step
            self._chief.end_round(self.round)
        while self._num_under_way:
            self._num_under_way -= 1
            value = self._ended.get()
            if not value.is_cancelled:
                self._results.append(value)
                self._pulled_values, self._has_late = None, True

    def _next_steps(self, num_steps: int) -> list[_Result]:
        """Waits for as many closures as have this number of steps.

        Which closures these are, and their order, is not fixed.
        """
        results: list[_Result] = []
        for _ in range(-(-num_steps // self._closure_steps)):
            wanted = NUM_AHEAD * self._chief.num_workers
            while self._num_to_schedule and self._num_under_way < wanted:
                self._schedule(min(self._closure_steps, self._num_to_schedule))
            result = self._await()
            assert result is not None, "nobody cancels steps that are waited for"
            results.append(result)
        return results

    def _synchronous_steps(self, num_steps: int) -> list[_Result]:
        results: list[_Result] = []
        num_done = 0
        while num_done < num_steps:
            found = self._synchronous_step()
            num_done += bool(found)  # else the servers were ahead: their step is now known
            results += found
        return results

    def _synchronous_step(self) -> list[_Result]:
        self._chief.dispatcher.cancel_waiting()  # of the last step: too slow a worker did not take it
        num_closures = self._chief.begin_round(self.round)
        self._is_open = True
        with self._chief.dispatcher.together():  # the first may be all that the step needs: it cancels the rest
            for _ in range(num_closures):
                self._schedule(1)
        results: list[_Result] = []
        following = self.round + 1
        # The servers may have gone on with a push whose own answer has not arrived yet.
        while (self.round < following or not results) and (self._num_under_way or self._results):
            result = self._await()
            if result is None:
                break
            self.round = max(self.round, result.step)
            if result.is_applied:
                results.append(result)
        self._is_open = False
        self._chief.end_round(self.round)
        return results

    def _schedule(self, num_steps: int) -> None:
        choose_batch = self._choose_batch
        self._chief.schedule(
            FUNCTION,
            [
                {
                    "seed": self._seed,
                    "round": self.round,
                    "num_writes": self._chief.num_writes,
                    "num_restores": self._chief.num_restores,
                }
            ],
            choose=lambda worker: {"batches": [choose_batch(worker) for _ in range(num_steps)]},
            on_end=self._note_end,
            num_steps=num_steps,
        )
        self._num_under_way += 1
        self._num_to_schedule -= num_steps

    def _note_end(self, value: RemoteValue) -> None:
        """Records that a closure has ended. Called from the dispatcher's thread.

        When a synchronous step is over, cancels its closures that no worker has begun, because they would not count.
        """
        self._ended.put(value)
        if self._is_synchronous and value.is_returned and value.fetch()["step"] > self.round:
            self._chief.dispatcher.cancel_waiting()

    def _await(self) -> _Result | None:
        """Waits for one of the running closures, and returns its result; None if all of them were cancelled."""
        while True:
            if self._results:
                value = self._results.popleft()
            elif self._num_under_way:
                value = self._ended.get()
                self._num_under_way -= 1
            else:
                return None
            if not value.is_cancelled:
                break
        try:
            return _Result(**value.fetch())
        except LockstepError:
            self.drain()
            self._chief.dispatcher.join()  # raises the first error, which may be another one
            raise

    def _add_metrics(self, values: list[Any], changes: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        new: list[Any] = []
        starts = dict.fromkeys(changes, 0)
        for value in values:
            dtype = value.dtype.name
            start = starts[dtype]
            starts[dtype] = start + value.size
            new.append(value + changes[dtype][start : start + value.size].reshape(value.shape))
        with keras.StatelessScope(state_mapping=zip(self._model.metrics_variables, new, strict=True)):
            logs = self._model.get_metrics_result()
        return new, logs

    def _values(self) -> dict[int, Any]:
        """Returns the servers' values. When an epoch ends, or is stopped, all its steps have ended before."""
        if self._pulled_values is None:
            if self._model.stop_training:
                self.drain()
            self._has_late = False
            self._pulled_values = {**self._chief.pull(), **self._local}
        return self._pulled_values

    def _optimizer_state(self) -> dict[int, Any]:
        optimizer = self._model.optimizer
        own = zip(self._chief.read_optimizer(optimizer), self._optimizer_values, strict=True)
        self._optimizer_values = [before if value is None else jnp.asarray(value) for value, before in own]
        return dict(zip(map(id, optimizer.variables), self._optimizer_values, strict=True))

    def _collect_changes(self, trainable: Any, non_trainable: Any, optimizer_values: Any) -> None:
        """Sends the servers what callbacks have changed.

        Keras passes plain lists after callbacks may have changed values.
        """
        model = self._model
        if not isinstance(optimizer_values, _Served):
            self._optimizer_values = list(optimizer_values)
            self._take_learning_rate()
        if isinstance(trainable, _Served):
            return
        values = {
            id(variable): value
            for variables, own in (
                (model.trainable_variables, trainable),
                (model.non_trainable_variables, non_trainable),
            )
            for variable, value in zip(variables, own, strict=True)
        }
        served = {id(variable) for variable in self._chief.served.variables}
        self._local = {key: value for key, value in values.items() if key not in served}
        self._send_changes(values)

    def _send_changes(self, values: Mapping[int, Any]) -> None:
        """Sends the servers the values that were set here since they were read. All others may be outdated."""
        changed = {key: value for key, value in values.items() if self._chief.differs({key: value})}
        if changed:
            self.drain()
            self._chief.write({**self._chief.pull(), **changed})

    def _take_learning_rate(self) -> None:
        optimizer = self._model.optimizer
        rate = learning_rate_of(optimizer)
        if not isinstance(rate, keras.Variable):
            return
        index = next(index for index, one in enumerate(optimizer.variables) if one is rate)
        self._chief.set_learning_rate(float(np.asarray(self._optimizer_values[index])), group=0)


def _closure_steps(steps_per_execution: int, *, most: int) -> int:
    """Returns the number of steps per closure: the largest one that divides an execution into whole closures.

    Args:
        steps_per_execution: the number of steps in an execution of the model.
        most: the maximum number of steps per closure.
    """
    return max(steps for steps in range(1, min(steps_per_execution, most) + 1) if steps_per_execution % steps == 0)


def _sums(changes: Sequence[dict[str, np.ndarray[Any, Any]]]) -> dict[str, np.ndarray[Any, Any]]:
    found = dict(changes[0])
    for change in changes[1:]:
        found = {dtype: found[dtype] + array for dtype, array in change.items()}
    return found
