"""``fit`` over several workers that go on together, or wait for the slowest of them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.fitting.trainings import (
    BATCH_SIZE,
    AllThere,
    make_model,
    make_rows,
    wait_until,
)
from tests.parameter_server.role_threads import TIMEOUT_S, RoleThreads

from lockstep.parameter_server import DatasetCreator, ParameterServerStrategy
from lockstep.parameter_server.checkpointing.cluster_checkpoints import ClusterCheckpoints
from lockstep.parameter_server.coordination.dispatching import Dispatcher
from lockstep.parameter_server.coordination.working import Worker
from lockstep.strategies import InputContext, OneDeviceStrategy
from lockstep.training import BackupAndRestore

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


def test_a_synchronous_step_is_one_of_all_workers_batches_together(run_roles: RoleThreads) -> None:
    num_steps = 10
    inputs, targets = make_rows()
    halves = [(array[:BATCH_SIZE], array[BATCH_SIZE : 2 * BATCH_SIZE]) for array in (inputs, targets)]

    def dataset(context: InputContext) -> Iterator[Any]:
        while True:
            yield tuple(half[context.input_pipeline_id] for half in halves)

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model()
        callbacks = [AllThere(strategy, told=[])]
        model.fit(DatasetCreator(dataset), steps_per_epoch=num_steps, epochs=1, verbose=0, callbacks=callbacks)
        return model.get_weights()

    weights = run_roles(script, num_workers=2, num_servers=2, num_backup_workers=0)
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        expected = make_model()
    for _ in range(num_steps):
        expected.train_on_batch(inputs[: 2 * BATCH_SIZE], targets[: 2 * BATCH_SIZE])
    for value, other in zip(weights, expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_each_row_of_a_synchronous_step_counts_as_much_where_a_batch_is_shorter(run_roles: RoleThreads) -> None:
    num_rows, num_epochs = BATCH_SIZE + BATCH_SIZE // 4, 3
    inputs, targets = (array[:num_rows] for array in make_rows())

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model()
        model.fit(
            inputs,
            targets,
            batch_size=BATCH_SIZE,
            shuffle=False,
            steps_per_epoch=1,
            epochs=num_epochs,
            verbose=0,
            callbacks=[AllThere(strategy, told=[])],
        )
        return model.get_weights()

    weights = run_roles(script, num_workers=2, num_servers=2, num_backup_workers=0)
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        expected = make_model()
    for _ in range(num_epochs):
        expected.train_on_batch(inputs, targets)
    for value, other in zip(weights, expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_a_step_does_not_wait_for_a_worker_that_may_be_left_out_and_takes_nothing_of_it_later(
    run_roles: RoleThreads,
) -> None:
    is_asked, is_released = threading.Event(), threading.Event()
    num_steps, told, num_taken = 12, list[Any](), [0, 0]
    batch = tuple(array[:BATCH_SIZE] for array in make_rows())

    def dataset(context: InputContext) -> Iterator[Any]:
        while True:
            if context.input_pipeline_id == 1 and told:  # the first batch is looked at before
                is_asked.set()
                assert is_released.wait(TIMEOUT_S), "the others wait for this one"
            num_taken[context.input_pipeline_id] += 1
            yield batch

    class Releasing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == num_steps - 2:
                assert is_asked.is_set()
                is_released.set()

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model()
        callbacks = [AllThere(strategy, told=told), Releasing()]
        model.fit(DatasetCreator(dataset), steps_per_epoch=num_steps, epochs=1, verbose=0, callbacks=callbacks)
        return model.get_weights(), int(model.optimizer.iterations)

    weights, num_counted = run_roles(script, num_workers=2, num_backup_workers=1)
    assert num_counted == num_steps
    assert num_taken[0] <= num_steps + 2, "and the one looked at by the coordinator: nobody computes what is too late"
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        expected = make_model()
    for _ in range(num_steps):
        expected.train_on_batch(*batch)
    for value, other in zip(weights, expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_an_epochs_checkpoint_waits_for_one_batch_of_each_worker_that_is_left_out(
    run_roles: RoleThreads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, written = list[Any](), list[int]()
    is_asked = {1: threading.Event(), 2: threading.Event()}
    may_read = {worker: threading.Semaphore(0) for worker in is_asked}  # one each: a fast one takes no other's
    is_over = threading.Event()
    batch = tuple(array[:BATCH_SIZE] for array in make_rows())
    write = ClusterCheckpoints._write

    def write_and_note(self: ClusterCheckpoints, begun: Any) -> None:
        write(self, begun)
        written.append(begun.state.position.epoch)

    def dataset(context: InputContext) -> Iterator[Any]:
        while True:
            if told and context.input_pipeline_id == 0:
                assert all(one.wait(TIMEOUT_S) for one in is_asked.values())
            elif told:
                is_asked[context.input_pipeline_id].set()
                wait_until(lambda: is_over.is_set() or may_read[context.input_pipeline_id].acquire(blocking=False))
            yield batch

    class Releasing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            wait_until(lambda: written)  # an epoch has no checkpoint while the one before is still being written

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:  # the checkpoint of the first epoch has begun, after the end of all other callbacks
                assert written == [0], "the two stand still, each with a step of the first epoch"
                for one in may_read.values():
                    one.release()
                wait_until(lambda: written == [0, 1])

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                is_over.set()

    def script(strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = make_model()
        callbacks = [BackupAndRestore(tmp_path)]
        if strategy.is_chief:
            callbacks += [AllThere(strategy, told=told, num_workers=3), Releasing()]
        model.fit(DatasetCreator(dataset), steps_per_epoch=6, epochs=2, verbose=0, callbacks=callbacks)

    monkeypatch.setattr(ClusterCheckpoints, "_write", write_and_note)
    run_roles(script, num_workers=3, num_servers=2, num_backup_workers=2)
    assert written == [0, 1, 2]


@pytest.mark.parametrize("max_staleness", [pytest.param(0, marks=pytest.mark.heavy), 2])
def test_a_worker_waits_for_the_slowest_once_it_is_so_many_steps_ahead(
    run_roles: RoleThreads, max_staleness: int
) -> None:
    told, leads = list[Any](), list[int]()
    inputs, targets = make_rows()

    def is_held() -> bool:
        """Whether a closure waits although a worker does, too: it may not have it. Notes by how much it leads then."""
        (dispatcher,) = told
        with dispatcher._changed:
            held = "worker 0" in dispatcher._idle and dispatcher._book.first_waiting is not None
            if held:
                leads.append(dispatcher._pace._begun["worker 0"] - dispatcher._pace._ended["worker 1"])
        return held

    def dataset(context: InputContext) -> Iterator[Any]:
        while True:
            if context.input_pipeline_id == 1 and told and not leads:  # the slow one
                wait_until(is_held)
            yield inputs[:BATCH_SIZE], targets[:BATCH_SIZE]

    def script(strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = make_model()
        callbacks = [AllThere(strategy, told=told)]
        model.fit(DatasetCreator(dataset), steps_per_epoch=30, epochs=1, verbose=0, callbacks=callbacks)

    run_roles(script, num_workers=2, max_staleness=max_staleness)
    assert leads == [max_staleness + 1], "by the step that it has ended last, or just begun"


@pytest.mark.parametrize(
    "options",
    [
        {"num_backup_workers": 0},
        pytest.param({"max_staleness": 1}, marks=pytest.mark.heavy),
        pytest.param({}, marks=pytest.mark.heavy),
    ],
    ids=str,
)
def test_a_worker_whose_data_hang_is_named_when_the_others_can_only_wait(
    run_roles: RoleThreads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    told, passed_s = list[Any](), [0.0]
    assert Worker.__init__.__kwdefaults__ is not None
    assert Dispatcher.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(Worker.__init__.__kwdefaults__, "poll_interval_s", 0.01)
    monkeypatch.setitem(Dispatcher.__init__.__kwdefaults__, "clock", lambda: time.monotonic() + passed_s[0])
    batch = tuple(array[:BATCH_SIZE] for array in make_rows())

    def can_only_wait() -> bool:
        """Whether worker 0 has pushed for the step, is too far ahead, or has nothing left to begin."""
        with told[0]._changed:
            stay, book = told[0]._wait_logger._stall_detector._stays.get("worker 0"), told[0]._book
            if "num_backup_workers" in options:
                return stay is not None and stay.awaits_servers
            all_begun = book.first_waiting is None and book.next == 20
            return "worker 0" in told[0]._idle and (all_begun or not told[0]._pace.may_begin("worker 0"))

    def dataset(context: InputContext) -> Iterator[Any]:
        while True:
            if context.input_pipeline_id == 1 and told and not passed_s[0]:
                wait_until(can_only_wait)
                passed_s[0] = 61.0
                wait_until(lambda: "the others wait for it" in caplog.text)
            yield batch

    def script(strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = make_model()
        callbacks = [AllThere(strategy, told=told)]
        model.fit(DatasetCreator(dataset), steps_per_epoch=20, epochs=1, verbose=0, callbacks=callbacks)

    run_roles(script, num_workers=2, **options)
    said = [text for text in caplog.messages if "the others wait" in text]
    assert len(said) == 1
    assert re.fullmatch(r"worker 1 has been at closure \d+ \(fit\) for 6\d s; the others wait for it", said[0])
