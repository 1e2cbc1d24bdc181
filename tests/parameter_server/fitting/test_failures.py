"""What fails in a worker, a server, a callback or the data under ``fit``: who hears of it, and what the model has."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.fitting.trainings import (
    BATCH_SIZE,
    STEPS,
    AllThere,
    HasHeard,
    Total,
    make_model,
    make_rows,
    wait_until,
)
from tests.parameter_server.role_threads import TIMEOUT_S, RoleThreads

from lockstep.parameter_server import DatasetCreator, ParameterServerStrategy
from lockstep.parameter_server.coordination.remote_values import ClosureError
from lockstep.strategies import InputContext

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


@pytest.mark.parametrize("steps_per_execution", [1, pytest.param(2, marks=pytest.mark.heavy), 4])
def test_data_that_ends_before_the_training_is_said_with_the_worker(
    run_roles: RoleThreads, steps_per_execution: int
) -> None:
    def dataset(_: InputContext) -> Iterator[Any]:
        inputs, targets = make_rows()
        yield from [(inputs[:BATCH_SIZE], targets[:BATCH_SIZE])] * 7

    def script(strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = make_model()
            model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
        model.fit(DatasetCreator(dataset), steps_per_epoch=20, epochs=1, verbose=0)

    with pytest.raises(ClosureError, match=r"the data of worker 0 ended .*; received '7 batches'.*repeat itself"):
        run_roles(script)


def test_an_error_of_one_worker_ends_a_synchronous_step_for_all(run_roles: RoleThreads) -> None:
    inputs, targets = make_rows()

    def dataset(context: InputContext) -> Iterator[Any]:
        for step in itertools.count():
            if context.input_pipeline_id == 1 and step == 4:
                raise ValueError("this worker's file is broken")
            yield inputs[:BATCH_SIZE], targets[:BATCH_SIZE]

    def script(strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = make_model()
        callbacks = [AllThere(strategy, told=[])]
        model.fit(DatasetCreator(dataset), steps_per_epoch=10, epochs=1, verbose=0, callbacks=callbacks)

    with pytest.raises(ClosureError, match="this worker's file is broken"):
        run_roles(script, num_workers=2, num_servers=2, num_backup_workers=0)


@keras.saving.register_keras_serializable(package="tests_of_fit")
class Broken(keras.optimizers.SGD):
    """An optimizer that does not update on a server."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        raise ZeroDivisionError("this optimizer is broken")


def test_an_error_of_a_server_ends_a_synchronous_step_for_all(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = make_model(optimizer=Broken(0.1))
        callbacks = [AllThere(strategy, told=[])]
        model.fit(*make_rows(), batch_size=BATCH_SIZE, steps_per_epoch=10, verbose=0, callbacks=callbacks)

    with pytest.raises(ClosureError, match="this optimizer is broken"):
        run_roles(script, num_workers=2, num_servers=2, num_backup_workers=0)


def make_other(what: str) -> Any:
    layers = keras.layers
    hidden = layers.Dense(6 if what == "shape" else 5, dtype="bfloat16" if what == "dtype" else None)
    model = keras.Sequential([keras.Input((4,)), hidden, layers.Dense(1)])
    model.compile("adam" if what == "optimizer" else "sgd", "mse")
    return model


@pytest.mark.parametrize(
    "what",
    ["shape", pytest.param("dtype", marks=pytest.mark.heavy), pytest.param("optimizer", marks=pytest.mark.heavy)],
)
def test_a_worker_with_another_model_is_told_so_and_the_others_train(
    run_roles: RoleThreads, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    losses: list[float] = []

    def script(strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = make_other(what if threading.current_thread().name == "worker 1" else "")
        options = {"batch_size": BATCH_SIZE, "steps_per_epoch": STEPS, "verbose": 0}
        history = model.fit(*make_rows(), callbacks=[HasHeard(caplog)], epochs=2, **options)
        losses.extend(history.history["loss"])

    with pytest.raises(AssertionError, match="worker 1 has another model, optimizer or partitioner than the coord"):
        run_roles(script, num_workers=2)  # that is what the worker has raised
    assert losses[1] < losses[0]


def test_what_a_worker_raises_comes_to_fit_with_its_stack(run_roles: RoleThreads) -> None:
    def dataset(_: InputContext) -> Iterator[Any]:
        inputs, targets = make_rows()
        yield from [(inputs[:BATCH_SIZE], targets[:BATCH_SIZE])] * 2
        raise FileNotFoundError("shard 3 has gone")

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model()
        before = model.get_weights()
        with pytest.raises(ClosureError, match="failed in worker 0: FileNotFoundError: shard 3 has gone") as caught:
            model.fit(DatasetCreator(dataset), steps_per_epoch=20, epochs=1, verbose=0)
        assert "in dataset" in caught.value.__notes__[0]
        assert model.optimizer.iterations.numpy() == 2
        return before, model.get_weights()

    before, after = run_roles(script)
    assert all(np.any(one != other) for one, other in zip(before, after, strict=True))  # what it has learned is there


class Losing(keras.utils.PyDataset):
    """Holds worker 0 at one of its batches until it is let go, and ends worker 1 at the one before when that is held.

    Args:
        told: has something once the training begins: batches that are looked at before do not count.
        held_at: at which batch worker 0 is held.
    """

    def __init__(self, told: list[Any], *, held_at: int) -> None:
        super().__init__()
        self.told = told
        self.held_at = held_at
        self.num_read = dict.fromkeys(["worker 0", "worker 1"], 0)
        self.is_held, self.is_let_go = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        name = threading.current_thread().name
        if self.told and name in self.num_read:
            self.num_read[name] += 1
            if name == "worker 0" and self.num_read[name] == self.held_at:
                self.is_held.set()
                assert self.is_let_go.wait(TIMEOUT_S)
            if name == "worker 1" and self.num_read[name] == self.held_at - 1:
                assert self.is_held.wait(TIMEOUT_S)
                raise SystemExit
        return tuple(array[index * BATCH_SIZE : (index + 1) * BATCH_SIZE] for array in make_rows())


@pytest.mark.parametrize(("steps_per_execution", "held_at"), [pytest.param(1, 4, marks=pytest.mark.heavy), (2, 5)])
def test_weights_set_while_a_worker_is_lost_leave_each_batch_to_be_trained_once(
    run_roles: RoleThreads, steps_per_execution: int, held_at: int
) -> None:
    told: list[Any] = []
    data = Losing(told, held_at=held_at)

    class Setting(AllThere):
        """Sets the weights when worker 1 is lost; worker 0 is let go once what nobody had begun was taken back."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not data.is_let_go.is_set():
                wait_until(lambda: data.is_held.is_set() and told[0].workers == ["worker 0"])
                threading.Thread(target=self.let_go, daemon=True).start()
                self.model.set_weights([0.5 * value for value in self.model.get_weights()])

        def let_go(self) -> None:
            def is_taken_back() -> bool:
                with told[0]._changed:
                    return all(number in told[0]._chosen for number in told[0]._book._waiting)

            wait_until(is_taken_back)
            data.is_let_go.set()

    def script(strategy: ParameterServerStrategy) -> tuple[list[float], int]:
        with strategy.scope():
            model = make_model()
            model.compile("sgd", "mse", metrics=[Total()], steps_per_execution=steps_per_execution)
        options = {"steps_per_epoch": 2 * STEPS, "epochs": 2, "shuffle": False, "verbose": 0}
        history = model.fit(data, callbacks=[Setting(strategy, told=told)], **options)
        return history.history["rows"], int(model.optimizer.iterations.numpy())

    rows, num_steps = run_roles(script, num_workers=2)
    np.testing.assert_allclose(rows, [2 * make_rows()[1].sum()] * 2, rtol=1e-5)
    assert num_steps == 4 * STEPS, "what the lost worker had pushed counts, and not again"


class Deadly(keras.utils.PyDataset):
    """Ends each worker that reads one of its batches, without a word."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        if index == 6 and threading.current_thread().name.startswith("worker"):
            raise SystemExit
        return tuple(array[index * BATCH_SIZE : (index + 1) * BATCH_SIZE] for array in make_rows())


@pytest.mark.heavy
def test_a_step_that_ends_worker_after_worker_ends_fit_and_the_model_is_what_the_servers_have(
    run_roles: RoleThreads,
) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model(optimizer="sgd")
        before = model.get_weights()
        with pytest.raises(ClosureError, match=r"\(fit\) was given up: 6 workers were lost with it"):
            model.fit(Deadly(), steps_per_epoch=STEPS, epochs=5, shuffle=False, verbose=0)
        chief = strategy.member.chief
        assert chief is not None
        served = chief.pull()
        for variable in model.trainable_variables:
            np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(served[id(variable)]))
        return before, model.get_weights()

    before, after = run_roles(script, num_workers=6)
    assert all(np.any(one != other) for one, other in zip(before, after, strict=True)), "it has learned until then"


@pytest.mark.heavy
def test_an_error_of_a_callback_leaves_the_model_whole(run_roles: RoleThreads) -> None:
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 4 and not failed:
                failed.append(batch)
                raise OSError("the disk is full")

    failed: list[int] = []
    data = make_rows()

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model(optimizer="sgd")
        options = {"batch_size": BATCH_SIZE, "steps_per_epoch": STEPS, "verbose": 0}
        with pytest.raises(OSError, match="the disk is full"):
            model.fit(*data, **options, callbacks=[Fails()])
        steps = int(model.optimizer.iterations.numpy())
        assert steps >= 5
        loss = model.evaluate(*data, verbose=0)[0]
        model.fit(*data, **options, epochs=3)
        assert int(model.optimizer.iterations.numpy()) == steps + 3 * STEPS
        assert model.evaluate(*data, verbose=0)[0] < loss

    run_roles(script)
