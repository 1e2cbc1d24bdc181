"""``fit`` over coordinator, workers and servers, each a thread: what one device gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.fitting.trainings import (
    BATCH_SIZE,
    STEPS,
    Total,
    fit,
    make_model,
    make_rows,
    train_here,
)
from tests.parameter_server.role_threads import RoleThreads
from tests.training.test_tensorboard import scalars

from lockstep.parameter_server import DatasetCreator, ParameterServerStrategy
from lockstep.strategies import InputContext, OneDeviceStrategy
from lockstep.training import BackupAndRestore, TensorBoard

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


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
        chief = strategy.member.chief
        assert chief is not None
        return chief.num_writes

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


@pytest.mark.heavy
@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.heavy), {"max_staleness": 1}], ids=["free", "bounded"]
)
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
    [
        {},
        pytest.param({"max_staleness": 1}, marks=pytest.mark.heavy),
        pytest.param({"max_staleness": 4}, marks=pytest.mark.heavy),
        {"num_backup_workers": 0},
    ],
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


@pytest.mark.parametrize(
    "options", [{"num_backup_workers": 0}, pytest.param({"overlaps": False}, marks=pytest.mark.heavy)], ids=str
)
def test_a_training_that_is_restored_goes_on_with_nothing_of_what_came_after_the_checkpoint(
    run_roles: RoleThreads, tmp_path: Path, options: dict[str, Any]
) -> None:
    rows = make_rows()
    fit_options = {"batch_size": BATCH_SIZE, "epochs": 3, "shuffle": False, "steps_per_epoch": STEPS, "verbose": 0}

    class DivergedError(Exception):
        """Raised by a callback."""

    class Diverging(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == STEPS // 2 and self._epoch == 2:
                raise DivergedError

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch = epoch

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model()
        with pytest.raises(DivergedError):
            model.fit(*rows, **fit_options, callbacks=[BackupAndRestore(tmp_path), Diverging()])
        model.fit(*rows, **fit_options, callbacks=[BackupAndRestore(tmp_path)])
        return model.get_weights()

    for value, expected in zip(run_roles(script, **options), train_here()[1], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize(
    ("policy", "scale", "tolerance"),
    [
        ("mixed_bfloat16", None, 1e-5),
        pytest.param("mixed_float16", 1024.0, 1e-5, marks=pytest.mark.heavy),
        pytest.param("bfloat16", None, 2**-7, marks=pytest.mark.heavy),
    ],
)
def test_a_model_of_another_policy_is_trained_as_on_one_device(
    run_roles: RoleThreads, policy: str, scale: float | None, tolerance: float
) -> None:
    def make() -> Any:
        layers = [keras.layers.Dense(5, activation="tanh", dtype=policy), keras.layers.Dense(1, dtype=policy)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        random = np.random.default_rng(2)
        model.set_weights([0.5 * random.normal(size=value.shape) for value in model.get_weights()])
        model.compile(keras.optimizers.Adam(0.01, loss_scale_factor=scale), "mse", auto_scale_loss=False)
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
        np.testing.assert_allclose(value.astype(np.float32), np.float32(other), rtol=tolerance, atol=tolerance)
