"""One call of ``fit``, ``evaluate`` or ``predict``: its progress, and the iterator over the batches of its epochs.

Keras's iterator uses the first batch's layout for all batches, which fails on an uneven last batch. If the data ends
before an epoch does, it warns and ends the epoch. The iterator of this module places each batch by its own number of
rows, limits the steps in flight over several CPU devices, can start in the middle of an epoch, and restarts data that
ends within an epoch.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

import itertools
import time
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import keras

from lockstep.errors import InvalidInputError
from lockstep.strategies import programs
from lockstep.strategies.data_arguments import ClassWeights, comes_in_batches
from lockstep.strategies.input import ChangedBatches, GlobalBatches, ResumableData, UnevenBatches, rows_of_batch
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.observing import AbstractStepObserver, Execution, Wait
from lockstep.strategies.peers import agreement
from lockstep.strategies.shares import ShareLayer
from lockstep.strategies.step_guard import StepGuard
from lockstep.strategies.tracing import wait_for
from lockstep.upstream.keras_data import skip_epochs
from lockstep.upstream.keras_trainer import AbstractEpochIterator, running_state

_END: Final = object()


@final
@dataclass(kw_only=True)
class KerasCall:
    """One call of ``fit``, ``evaluate`` or ``predict``.

    Attributes:
        model: the model.
        method: the name of the method.
        data: the argument ``x``.
        first_step: the step at which the first epoch starts. It is used, and set to 0, when that epoch begins.
        num_skipped_epochs: the number of epochs that an earlier run has trained. The data must skip their orders.
        num_steps: the number of steps of an epoch, once it is known.
        num_examples: the number of rows of all batches placed so far, over all processes.
        num_begun: the number of steps of all epochs that have begun in this call.
        num_rows: the number of rows of the first batch of the current execution, over all processes.
        observers: are told about the steps of ``fit``.
        num_taken: the number of steps of the current epoch that have begun, including those before `first_step`.
        is_epoch_over: whether the current epoch has no further step.
        is_building: whether Keras is reading a batch to build the model, which is no step.
        is_alone: whether this process runs the call without the strategy, in a callback of another model's run.
        reads_one_by_one: whether the function of a step takes the batches of an execution one by one. Keras's own
            function may not.
        has_iterator: whether the iterator over the data was created. In ``fit``, later iterators are for validation.
        apply_class_weights: the function that weighs a batch by its classes, if ``class_weight`` was given beside
            batches.
        guard: checks each step of ``fit``; None if no callback has asked for it.
        checks: are called before the state is saved, and raise an error if it should not be.
        callbacks: the callbacks of ``fit``, in the order in which Keras calls them.
        exit_stack: the callbacks for the end of the call, whether it succeeds or fails. Keras only calls its own
            callbacks after a success.
        open_backups: a function of a directory and ``keep`` that returns the object that saves a run whose state is not
            in this process (`lockstep.checkpoints.backups`); None if the state is in this process.
    """

    model: Any
    method: str
    data: Any
    first_step: int = 0
    num_skipped_epochs: int = 0
    num_steps: int | None = None
    num_examples: int = 0
    num_begun: int = 0
    num_rows: int = 0
    observers: list[AbstractStepObserver] = field(default_factory=list[AbstractStepObserver])
    num_taken: int = 0
    is_epoch_over: bool = False
    is_building: bool = False
    is_alone: bool = False
    reads_one_by_one: bool = False
    has_iterator: bool = False
    apply_class_weights: ClassWeights | None = None
    guard: StepGuard | None = None
    checks: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    callbacks: list[Any] = field(default_factory=list[Any])
    exit_stack: ExitStack = field(default_factory=ExitStack)
    open_backups: Callable[..., Any] | None = None

    def observe(self, observer: AbstractStepObserver) -> None:
        """Tells an observer about the steps from now on, and about the end of the call.

        Args:
            observer: the observer.
        """
        self.observers.append(observer)
        self.exit_stack.callback(lambda: observer.end(self.num_begun, settle=self.settle))

    def begin_execution(self, *, num_steps: int) -> None:
        """Tells the observers that an execution begins.

        Args:
            num_steps: the number of its steps.
        """
        if self.observers:
            execution = Execution(
                num_before=self.num_begun, num_steps=num_steps, num_rows=self.num_rows, settle=self.settle
            )
            for observer in self.observers:
                observer.before_execution(execution)
        self.num_begun += num_steps

    @contextmanager
    def waiting(self, kind: Wait) -> Generator[None]:
        """Tells the observers about a wait, which is the time within a ``with`` block.

        Args:
            kind: what this thread waits for.
        """
        began_s = time.monotonic()
        try:
            yield
        finally:
            ended_s = time.monotonic()
            for observer in self.observers:
                observer.waited(kind, began_s=began_s, ended_s=ended_s)

    def timed(self, batches: Iterator[Any]) -> Generator[Any]:
        """Yields batches, and tells the observers about the waits for them.

        Args:
            batches: the batches.
        """
        while True:
            with self.waiting(Wait.DATA):
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch

    @contextmanager
    def building(self) -> Generator[None]:
        """Says within a ``with`` block that batches are read to build the model."""
        self.is_building = True
        try:
            yield
        finally:
            self.is_building = False

    def settle(self) -> None:
        """Waits until all steps that have begun are computed."""
        wait_for(running_state(self.model))

    @property
    def is_epoch_cut(self) -> bool:
        """Whether the current epoch has further steps, so that training that stops now stops within an epoch."""
        return not self.is_epoch_over and self.num_taken != self.num_steps


_call: ContextVar[KerasCall | None] = ContextVar("lockstep_call", default=None)


def current_layout() -> AbstractLayout | None:
    """Returns the layout of the current strategy of this thread; None if there is none."""
    current = keras.distribution.distribution()
    return current if isinstance(current, AbstractLayout) else None


def current_call() -> KerasCall | None:
    """Returns the innermost call of ``fit``, ``evaluate`` or ``predict`` in which this code runs, or None.

    Callbacks use it to find the data of their ``fit``.
    """
    return _call.get()


@contextmanager
def running(call: KerasCall) -> Generator[KerasCall]:
    """Makes a call the current one within a ``with`` block, and runs its `KerasCall.exit_stack` when the block ends.

    Args:
        call: the call.
    """
    token = _call.set(call)
    try:
        with call.exit_stack:
            yield call
    finally:
        _call.reset(token)


def place_for_step(layout: AbstractLayout, batch: Any, *, num_rows: int | None = None) -> Any:
    """Places a batch on the devices, for a step of the current call.

    Args:
        layout: the strategy's layout.
        batch: a structure of arrays whose first dim is the rows.
        num_rows: the number of rows of the global batch, if `batch` is this process's share of it.
    """
    call = _call.get()
    is_compiled = call is None or (call.model.jit_compile and not call.model.run_eagerly)
    if is_compiled and layout.places_within_steps and not programs.is_watched():
        return layout.check(batch)
    placed = layout.place(batch, num_rows=num_rows)
    if is_compiled:
        return placed

    def lay(leaf: Any) -> Any:
        rows = leaf.shape[0] if leaf is not None and leaf.ndim else layout.num_replicas
        return leaf if rows % layout.num_replicas == 0 else jax.jit(jnp.copy, out_shardings=layout.replicated)(leaf)

    # If operations run one at a time (not compiled as a step), JAX describes the sharding that the compiler chose on
    # one operand's mesh only. The variables' mesh cannot describe a batch that is divided over some of the devices.
    return keras.tree.map_structure(lay, placed)


def reads_batches_one_by_one(data: Any) -> bool:
    """Whether data is of a kind of Lockstep's own, whose batches are read one by one even without a strategy."""
    return isinstance(data, GlobalBatches | ResumableData)


def wrap_epoch_iterator(iterator: type) -> type:
    """Returns `PlacingEpochIterator`, which replaces Keras's iterator."""
    assert issubclass(PlacingEpochIterator, iterator), "its base is what it replaces"
    return PlacingEpochIterator


@final
class PlacingEpochIterator(AbstractEpochIterator):
    """Keras's iterator over the batches of an epoch, with each batch placed by the current strategy.

    For a model without a strategy, it behaves as Keras's own iterator, unless the call reads batches one by one.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._data = kwargs.get("x")
        call = self._lockstep_call = _call.get()
        self._is_ours = current_layout() is not None or (call is not None and call.reads_one_by_one)
        self._weigh: ClassWeights | None = None
        if self._is_ours and kwargs.get("class_weight") is not None and comes_in_batches(self._data):
            self._weigh = ClassWeights(kwargs.pop("class_weight"))  # Keras cannot weigh most data of this kind
        super().__init__(**kwargs)
        self._is_read_once = isinstance(self._data, types.GeneratorType)
        self._has_ended = False
        self._trains = call is not None and call.method == "fit" and not call.has_iterator
        if call is not None:
            call.has_iterator = True
            call.apply_class_weights = call.apply_class_weights or self._weigh
            if call.num_steps is None:
                call.num_steps = self.steps_per_epoch or self.num_batches

    def read(self) -> Iterator[Any]:
        """Begins a pass over the data. The current strategy places each batch."""
        layout = current_layout()
        if layout is None:
            return self._weighed() if self._is_ours else super().read()
        placed = self._place(layout)
        return placed if layout.devices[0].platform == "cpu" else _one_ahead(placed)

    def _place(self, layout: AbstractLayout) -> Generator[Any]:
        if self._is_read_once and self._has_ended:
            raise self._ran_out()
        shared = self._data if isinstance(self._data, GlobalBatches) else None
        uneven = shared if isinstance(shared, UnevenBatches) else None
        number = uneven.position[1] if uneven is not None else 0
        layer = ShareLayer(layout)
        bounded = layout.devices[0].platform == "cpu" and len(layout.devices) > 1
        is_first = True
        for values in self._weighed():
            if is_first and shared is None and layout.num_processes > 1:
                agreement.agree_on_batch(values)
            is_first = False
            shares = uneven.shares_of_batch(number) if uneven is not None else None
            if shares is not None:
                placed = place_for_step(layout, layer.place(values, shares=shares))
            else:
                placed = place_for_step(layout, values, num_rows=rows_of_batch(shared, number) if shared else None)
            if self._lockstep_call is not None:
                rows = rows_of_batch(shared, number) if shared else leading_dim(values) * layout.num_processes
                self._lockstep_call.num_examples += rows
            if bounded:
                self._await_last_step()
            yield placed
            number += 1
        self._has_ended = True

    def _weighed(self) -> Iterator[Any]:
        batches = self._unplaced()
        return batches if self._lockstep_call is None or not self._trains else self._lockstep_call.timed(batches)

    def _unplaced(self) -> Iterator[Any]:
        if self._weigh is None:
            return self.read_batches()
        if isinstance(self._data, ChangedBatches):
            return self._data.iterate_mapped(self._weigh)
        return map(self._weigh, self.read_batches())

    def _await_last_step(self) -> None:
        # Collectives of several steps in flight can deadlock in XLA's thread pool. Keras keeps the state that the last
        # step returned until it passes the state to the next step.
        if self._lockstep_call is not None:
            self._lockstep_call.settle()

    def run_epoch(self) -> Generator[Any]:
        """Yields the executions of an epoch, and records its progress."""
        layout = current_layout()
        is_read_by_workers = self._trains and layout is not None and layout.runs is not None
        if is_read_by_workers or not self._is_ours:
            executions = super().run_epoch()
        else:
            executions = self._training_epoch() if self._trains else self._whole_pass()
        if not self._trains:
            yield from executions
            return
        call = self._lockstep_call
        assert call is not None, "fit has begun"
        num_skipped, call.num_skipped_epochs = call.num_skipped_epochs, 0
        skip_epochs(self.data_adapter, num_skipped)
        call.num_taken, call.is_epoch_over = call.first_step, False
        try:
            for step, last_step, batches in executions:
                call.num_taken = min(last_step + 1, call.num_steps or last_step + 1)
                if not call.is_building:
                    call.begin_execution(num_steps=call.num_taken - step)
                yield step, last_step, batches
            call.is_epoch_over = True
        finally:
            for observer in call.observers:
                observer.after_epoch()

    def warn_of_end(self) -> None:
        """Warns that the data has ended before the epoch, and records that the epoch is over."""
        if self._trains and self._lockstep_call is not None:
            self._lockstep_call.is_epoch_over = True  # Keras ends the epoch
        super().warn_of_end()

    def _training_epoch(self) -> Generator[Any]:
        """Yields the executions of an epoch of ``fit``: ``steps_per_epoch`` steps, or a pass over the data."""
        call = self._lockstep_call
        assert call is not None, "fit has begun"
        first_step, call.first_step = call.first_step, 0
        self.data_adapter.on_epoch_begin()
        if self.steps_per_epoch:
            # An epoch continues in the data where the previous one ended.
            if self.endless is None:
                self.endless = self._endless()
            num_taken = yield from self._executions(self.endless, first_step, self.steps_per_epoch)
            if num_taken < self.steps_per_epoch:
                raise self._ran_out()
        else:
            num_taken = yield from self._executions(iter(self.read()), first_step, self.num_batches)
            if self.num_batches and num_taken < self.num_batches:
                super().warn_of_end()
        self.data_adapter.on_epoch_end()

    def _whole_pass(self) -> Generator[Any]:
        """Yields the executions of an evaluation or a prediction: a pass over the data, or its first steps."""
        num_steps = self.steps_per_epoch or self.num_batches
        self.data_adapter.on_epoch_begin()
        num_taken = yield from self._executions(iter(self.read()), 0, num_steps)
        if num_steps and num_taken < num_steps:
            if self._is_read_once:
                raise self._ran_out()
            super().warn_of_end()  # all of the data was read
        self.data_adapter.on_epoch_end()

    def _endless(self) -> Generator[Any]:
        """Yields the batches of pass after pass. Ends if the data is empty or cannot be read again."""
        is_empty = False
        while not is_empty:
            is_empty = True
            for batch in self.read():
                is_empty = False
                yield batch
            if self._is_read_once:
                return

    def _executions(self, batches: Iterator[Any], first_step: int, num_steps: int | None) -> Generator[Any, None, int]:
        """Yields the item of Keras's loop for each execution, after reading its first batch. Returns the steps taken.

        Keras removes the values from the model before it requests the step's batch. Because the batch is read first, an
        error of the data leaves the model intact.
        """
        step = first_step
        while num_steps is None or step < num_steps:
            first = list(itertools.islice(batches, 1))
            if not first:
                break
            if self._lockstep_call is not None:
                self._lockstep_call.num_rows = leading_dim(first[0])
            most = self.steps_per_execution if num_steps is None else min(self.steps_per_execution, num_steps - step)
            yield step, step + self.steps_per_execution - 1, itertools.chain(first, itertools.islice(batches, most - 1))
            step += most
        return step

    def _ran_out(self) -> InvalidInputError:
        return InvalidInputError(
            "the data ran out before the last step",
            received="a generator that has ended, and cannot be restarted"
            if self._is_read_once
            else "data without a batch",
            allowed="as many batches as all steps take",
            action="have the generator repeat itself without end, with steps_per_epoch; or give data that can be read "
            "again, such as arrays, lockstep.data.Batches or a keras.utils.PyDataset",
        )


def leading_dim(batch: Any) -> int:
    """Returns the number of rows of the first array of a structure that has rows; 0 if none has."""
    shapes = (getattr(leaf, "shape", ()) for leaf in keras.tree.flatten(batch))
    return next((int(shape[0]) for shape in shapes if shape), 0)


def _one_ahead(batches: Iterator[Any]) -> Generator[Any]:
    """Yields each batch once the next one is on its way to the devices."""
    following = next(batches, None)
    while following is not None:
        current, following = following, next(batches, None)
        yield current
