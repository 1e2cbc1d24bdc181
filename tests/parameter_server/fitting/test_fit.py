"""``fit`` over coordinator, workers and servers, each a thread: what one device gives."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.role_threads import TIMEOUT_S, RoleThreads
from tests.training.test_tensorboard import scalars

from lockstep.parameter_server import DatasetCreator, ParameterServerStrategy
from lockstep.parameter_server.coordination.dispatching import ClosureError, Dispatcher
from lockstep.parameter_server.coordination.working import Worker
from lockstep.parameter_server.roles import ServedRuns
from lockstep.strategies import InputContext, OneDeviceStrategy
from lockstep.training import TensorBoard

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

NUM_ROWS, BATCH_SIZE = 150, 16
STEPS = -(-NUM_ROWS // BATCH_SIZE)


class Total(keras.metrics.Metric):
    """Adds the first column of the targets up: each row is known by it."""

    def __init__(self, name: str = "rows") -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y_true, "float32")))

    def result(self) -> Any:
        return self.total.value


def make_rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    inputs = np.random.default_rng(0).normal(size=(NUM_ROWS, 4)).astype(np.float32)
    return inputs, np.arange(NUM_ROWS, dtype=np.float32)[:, None] / NUM_ROWS


def make_model(*, metrics: Any = ("mae",), optimizer: Any = None) -> Any:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
    random = np.random.default_rng(2)  # Keras's own numbers are all threads'
    model.set_weights([0.5 * random.normal(size=value.shape) for value in model.get_weights()])
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse", metrics=list(metrics))
    return model


def train_here(**options: Any) -> tuple[dict[str, list[float]], list[np.ndarray[Any, Any]]]:
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        model = make_model()
    history = model.fit(*make_rows(), batch_size=BATCH_SIZE, epochs=3, shuffle=False, verbose=0, **options)
    return history.history, model.get_weights()


def fit(strategy: ParameterServerStrategy, **options: Any) -> tuple[dict[str, list[float]], Any]:
    with strategy.scope():
        model = make_model()
    defaults = {"batch_size": BATCH_SIZE, "epochs": 3, "shuffle": False, "steps_per_epoch": STEPS, "verbose": 0}
    history = model.fit(*make_rows(), **{**defaults, **options})
    return history.history, model


@pytest.mark.parametrize("num_servers", [1, pytest.param(2, marks=pytest.mark.heavy)])
def test_a_model_that_was_trained_before_goes_on_with_its_optimizers_state(
    run_roles: RoleThreads, tmp_path: Path, num_servers: int
) -> None:
    path, options = tmp_path / "model.keras", {"batch_size": BATCH_SIZE, "shuffle": False, "verbose": 0}
    decay = keras.optimizers.schedules.ExponentialDecay(0.05, 8, 0.5)
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        model = make_model(optimizer=keras.optimizers.Adam(decay, amsgrad=True))
    model.fit(*make_rows(), **options)
    model.save(path)
    expected: Any = keras.models.load_model(path)
    expected.fit(*make_rows(), epochs=2, **options)

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model: Any = keras.models.load_model(path)
        model.fit(*make_rows(), epochs=2, steps_per_epoch=STEPS, **options)
        return model.get_weights(), int(model.optimizer.iterations)

    weights, num_steps = run_roles(script, num_servers=num_servers, num_backup_workers=0)
    assert num_steps == 3 * STEPS
    for value, other in zip(weights, expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_averages_of_weights_are_the_models_once_it_is_trained(run_roles: RoleThreads) -> None:
    def make() -> Any:
        return make_model(optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8))

    rows, options = make_rows(), {"batch_size": BATCH_SIZE, "shuffle": False, "verbose": 0, "epochs": 2}
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        expected = make()
    for _ in range(2):
        expected.fit(*rows, **options)

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make()
        for _ in range(2):
            model.fit(*rows, steps_per_epoch=STEPS, **options)
        return model.get_weights()

    for value, other in zip(run_roles(script, num_backup_workers=0), expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def test_what_nobody_sets_is_not_written_over_what_workers_train(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> int:
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
            model.compile("sgd", "mse")  # the dropout's state is each process's own
        model.fit(*make_rows(), batch_size=BATCH_SIZE, epochs=4, steps_per_epoch=STEPS, verbose=0)
        runs = strategy.layout.runs
        assert isinstance(runs, ServedRuns)
        assert runs._chief is not None
        return runs._chief.num_writes

    assert run_roles(script) == 1, "the first values"


def test_history_validation_and_the_model_are_those_of_one_device(run_roles: RoleThreads) -> None:
    inputs, targets = make_rows()
    options = {"validation_data": (inputs[:20], targets[:20])}
    expected, weights = train_here(**options)
    found, model = run_roles(lambda strategy: fit(strategy, **options), num_backup_workers=0)
    assert found.pop("staleness") == [0.0] * 3
    assert found.keys() == expected.keys()
    for name, numbers in expected.items():
        np.testing.assert_allclose(found[name], numbers, rtol=1e-4)
    for own, other in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)
    assert int(model.optimizer.iterations.numpy()) == 3 * STEPS
    assert np.any(model.optimizer.variables[2].numpy()), "moments come back from the servers"


def test_what_callbacks_change_reaches_the_servers(run_roles: RoleThreads) -> None:
    class Shrinking(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.set_weights([0.5 * value for value in self.model.get_weights()])

    def callbacks() -> list[Any]:
        return [keras.callbacks.LearningRateScheduler(lambda epoch, _: 0.02 / (epoch + 1)), Shrinking()]

    expected, weights = train_here(callbacks=callbacks())
    found, model = run_roles(lambda strategy: fit(strategy, callbacks=callbacks()), num_backup_workers=0)
    np.testing.assert_allclose(found["learning_rate"], expected["learning_rate"])
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-4)
    for own, other in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"max_staleness": 1}], ids=["free", "bounded"])
def test_each_row_is_trained_once_an_epoch_whoever_takes_it(run_roles: RoleThreads, options: dict[str, Any]) -> None:
    def script(strategy: ParameterServerStrategy) -> list[float]:
        with strategy.scope():
            model = make_model(metrics=[Total()])
        rows = make_rows()
        history = model.fit(*rows, batch_size=BATCH_SIZE, epochs=2, steps_per_epoch=STEPS, verbose=0)
        return history.history["rows"]

    found = run_roles(script, num_workers=3, num_servers=2, **options)
    np.testing.assert_allclose(found, [make_rows()[1].sum()] * 2, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{}, {"max_staleness": 1}, {"max_staleness": 4}, {"num_backup_workers": 0}],
    ids=["free", "close", "bounded", "synchronous"],
)
def test_an_execution_of_several_steps_takes_all_of_them(run_roles: RoleThreads, options: dict[str, Any]) -> None:
    class Calls(keras.callbacks.Callback):
        num_calls = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.num_calls += 1

    def script(strategy: ParameterServerStrategy) -> tuple[list[float], int, int]:
        with strategy.scope():
            model = make_model(metrics=[Total()])
            model.compile(model.optimizer, "mse", metrics=[Total()], steps_per_execution=4)
        calls = Calls()
        arguments = {"batch_size": BATCH_SIZE, "epochs": 2, "steps_per_epoch": STEPS, "verbose": 0}
        history = model.fit(*make_rows(), callbacks=[calls], **arguments).history
        return history["rows"], int(model.optimizer.iterations.numpy()), calls.num_calls

    num_workers = 1 if "num_backup_workers" in options else 3
    rows, num_steps, num_calls = run_roles(script, num_workers=num_workers, num_servers=2, **options)
    np.testing.assert_allclose(rows, [make_rows()[1].sum()] * 2, rtol=1e-5)
    assert num_steps == 2 * STEPS
    assert num_calls == 2 * -(-STEPS // 4), "callbacks are told of executions"


def test_executions_of_several_steps_give_what_single_steps_give(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> tuple[dict[str, list[float]], list[np.ndarray[Any, Any]]]:
        with strategy.scope():
            model = make_model()
            model.compile(model.optimizer, "mse", metrics=["mae"], steps_per_execution=4)
        arguments = {"batch_size": BATCH_SIZE, "epochs": 3, "steps_per_epoch": STEPS, "shuffle": False, "verbose": 0}
        return model.fit(*make_rows(), **arguments).history, model.get_weights()

    expected, weights = train_here()
    found, own_weights = run_roles(script, overlaps=False)
    for name, numbers in expected.items():
        np.testing.assert_allclose(found[name], numbers, rtol=1e-4)
    for own, other in zip(own_weights, weights, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)


def test_staleness_is_in_the_history_and_in_tensorboard(run_roles: RoleThreads, tmp_path: Path) -> None:
    history, _ = run_roles(lambda strategy: fit(strategy, callbacks=[TensorBoard(tmp_path)]), num_workers=2)
    assert len(history["staleness"]) == 3
    assert all(0 < number < 10 for number in history["staleness"]), "two workers, each of which begins a step ahead"
    written = scalars(tmp_path / "train")
    found = [written["epoch_staleness", epoch] for epoch in range(3)]
    np.testing.assert_allclose(found, history["staleness"], rtol=1e-6)


def test_a_training_that_is_stopped_has_the_steps_that_it_says(run_roles: RoleThreads) -> None:
    class Stopping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 3

    def script(strategy: ParameterServerStrategy) -> tuple[int, Any]:
        history, model = fit(strategy, callbacks=[Stopping()], epochs=5)
        first = int(model.optimizer.iterations.numpy())
        model.stop_training = False
        again = model.fit(*ROWS, batch_size=BATCH, steps_per_epoch=STEPS, epochs=1, verbose=0, shuffle=False)
        return len(history["loss"]), (first, int(model.optimizer.iterations.numpy()), len(again.history["loss"]))

    # The same objects for both calls: the workers know the first one's data alone.
    ROWS, BATCH = make_rows(), BATCH_SIZE

    def fit(strategy: ParameterServerStrategy, **options: Any) -> tuple[dict[str, list[float]], Any]:
        with strategy.scope():
            model = make_model()
        history = model.fit(*ROWS, batch_size=BATCH, steps_per_epoch=STEPS, verbose=0, shuffle=False, **options)
        return history.history, model

    num_epochs, (first, second, again) = run_roles(script)
    assert (num_epochs, again) == (1, 1)
    assert 4 <= first <= STEPS, "what had begun is part of it"
    assert second == first + STEPS


def test_each_worker_makes_its_own_data_with_a_creator(run_roles: RoleThreads) -> None:
    contexts: list[InputContext] = []

    def dataset(context: InputContext) -> Iterator[Any]:
        contexts.append(context)
        inputs, targets = make_rows()
        while True:
            yield inputs[context.input_pipeline_id :: 2][:BATCH_SIZE], targets[:BATCH_SIZE]

    def script(strategy: ParameterServerStrategy) -> float:
        with strategy.scope():
            model = make_model()
        return model.fit(DatasetCreator(dataset), steps_per_epoch=20, epochs=1, verbose=0).history["loss"][0]

    assert np.isfinite(run_roles(script, num_workers=2))
    assert {context.num_input_pipelines for context in contexts} == {2}
    assert {context.input_pipeline_id for context in contexts} == {0, 1}


class BothThere(keras.callbacks.Callback):
    """Has training begin once two workers are there; gives the coordinator's dispatcher to `told`."""

    def __init__(self, strategy: ParameterServerStrategy, *, told: list[Any]) -> None:
        super().__init__()
        self._strategy = strategy
        self._told = told

    def on_train_begin(self, logs: Any = None) -> None:
        runs = self._strategy.layout.runs
        assert isinstance(runs, ServedRuns)
        assert runs._chief is not None
        dispatcher = runs._chief.dispatcher
        self._told.append(dispatcher)
        wait_until(lambda: len(dispatcher.workers) == 2)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


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
        callbacks = [BothThere(strategy, told=[])]
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


def test_a_step_does_not_wait_for_a_worker_that_may_be_left_out_and_takes_nothing_of_it_later(
    run_roles: RoleThreads,
) -> None:
    is_asked, is_released = threading.Event(), threading.Event()
    num_steps, told = 12, list[Any]()
    batch = tuple(array[:BATCH_SIZE] for array in make_rows())

    def dataset(context: InputContext) -> Iterator[Any]:
        while True:
            if context.input_pipeline_id == 1 and told:  # the first batch is looked at before
                is_asked.set()
                assert is_released.wait(TIMEOUT_S), "the others wait for this one"
            yield batch

    class Releasing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == num_steps - 2:
                assert is_asked.is_set()
                is_released.set()

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model()
        callbacks = [BothThere(strategy, told=told), Releasing()]
        model.fit(DatasetCreator(dataset), steps_per_epoch=num_steps, epochs=1, verbose=0, callbacks=callbacks)
        return model.get_weights(), int(model.optimizer.iterations)

    weights, num_counted = run_roles(script, num_workers=2, num_backup_workers=1)
    assert num_counted == num_steps
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        expected = make_model()
    for _ in range(num_steps):
        expected.train_on_batch(*batch)
    for value, other in zip(weights, expected.get_weights(), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("max_staleness", [0, 2])
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
        callbacks = [BothThere(strategy, told=told)]
        model.fit(DatasetCreator(dataset), steps_per_epoch=30, epochs=1, verbose=0, callbacks=callbacks)

    run_roles(script, num_workers=2, max_staleness=max_staleness)
    assert leads == [max_staleness + 1], "by the step that it has ended last, or just begun"


@pytest.mark.parametrize("options", [{"num_backup_workers": 0}, {"max_staleness": 1}, {}], ids=str)
def test_a_worker_whose_data_hang_is_named_when_the_others_can_only_wait(
    run_roles: RoleThreads, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    told, passed_s = list[Any](), [0.0]
    assert Worker.__init__.__kwdefaults__ is not None
    assert Dispatcher.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(Worker.__init__.__kwdefaults__, "look_every_s", 0.01)
    monkeypatch.setitem(Dispatcher.__init__.__kwdefaults__, "clock", lambda: time.monotonic() + passed_s[0])
    batch = tuple(array[:BATCH_SIZE] for array in make_rows())

    def can_only_wait() -> bool:
        """Whether worker 0 has pushed for the step, is too far ahead, or has nothing left to begin."""
        with told[0]._changed:
            stay, book = told[0]._patience._lateness._stays.get("worker 0"), told[0]._book
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
        callbacks = [BothThere(strategy, told=told)]
        model.fit(DatasetCreator(dataset), steps_per_epoch=20, epochs=1, verbose=0, callbacks=callbacks)

    run_roles(script, num_workers=2, **options)
    said = [text for text in caplog.messages if "the others wait" in text]
    assert len(said) == 1
    assert re.fullmatch(r"worker 1 has been at closure \d+ \(fit\) for 6\d s; the others wait for it", said[0])


@pytest.mark.parametrize("steps_per_execution", [1, 2, 4])
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
        callbacks = [BothThere(strategy, told=[])]
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
        callbacks = [BothThere(strategy, told=[])]
        model.fit(*make_rows(), batch_size=BATCH_SIZE, steps_per_epoch=10, verbose=0, callbacks=callbacks)

    with pytest.raises(ClosureError, match="this optimizer is broken"):
        run_roles(script, num_workers=2, num_servers=2, num_backup_workers=0)


def make_other(what: str) -> Any:
    layers = keras.layers
    hidden = layers.Dense(6 if what == "shape" else 5, dtype="bfloat16" if what == "dtype" else None)
    model = keras.Sequential([keras.Input((4,)), hidden, layers.Dense(1)])
    model.compile("adam" if what == "optimizer" else "sgd", "mse")
    return model


@pytest.mark.parametrize("what", ["shape", "dtype", "optimizer"])
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


class HasHeard(keras.callbacks.Callback):
    """Has the second epoch begin once the coordinator has said who cannot take part."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__()
        self.caplog = caplog

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        wait_until(lambda: "worker 1 cannot take part: worker 1 has another model" in self.caplog.text)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", pytest.param("bfloat16", marks=pytest.mark.heavy)])
def test_a_model_of_another_policy_is_trained_as_on_one_device(run_roles: RoleThreads, policy: str) -> None:
    def make() -> Any:
        layers = [keras.layers.Dense(5, activation="tanh", dtype=policy), keras.layers.Dense(1, dtype=policy)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        random = np.random.default_rng(2)
        model.set_weights([0.5 * random.normal(size=value.shape) for value in model.get_weights()])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make()
        model.fit(*make_rows(), **options, epochs=3, steps_per_epoch=STEPS)
        return [np.asarray(value) for value in model.get_weights()]

    options = {"batch_size": BATCH_SIZE, "shuffle": False, "verbose": 0}
    weights = run_roles(script, num_servers=2, num_backup_workers=0)
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        expected = make()
    expected.fit(*make_rows(), **options, epochs=3)
    for value, other in zip(weights, expected.get_weights(), strict=True):
        assert value.dtype == other.dtype
        tolerance = 1e-5 if policy == "mixed_bfloat16" else 2**-7
        np.testing.assert_allclose(value.astype(np.float32), np.float32(other), rtol=tolerance, atol=tolerance)


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


@pytest.mark.parametrize(("steps_per_execution", "held_at"), [(1, 4), (2, 5)])
def test_weights_set_while_a_worker_is_lost_leave_each_batch_to_be_trained_once(
    run_roles: RoleThreads, steps_per_execution: int, held_at: int
) -> None:
    told: list[Any] = []
    data = Losing(told, held_at=held_at)

    class Setting(BothThere):
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


def test_a_step_that_ends_worker_after_worker_ends_fit_and_the_model_is_what_the_servers_have(
    run_roles: RoleThreads,
) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model(optimizer="sgd")
        before = model.get_weights()
        with pytest.raises(ClosureError, match=r"\(fit\) was given up: 6 workers were lost with it"):
            model.fit(Deadly(), steps_per_epoch=STEPS, epochs=5, shuffle=False, verbose=0)
        runs = strategy.layout.runs
        assert isinstance(runs, ServedRuns)
        assert runs._chief is not None
        served = runs._chief.pull()
        for variable in model.trainable_variables:
            np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(served[id(variable)]))
        return before, model.get_weights()

    before, after = run_roles(script, num_workers=6)
    assert all(np.any(one != other) for one, other in zip(before, after, strict=True)), "it has learned until then"


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
