"""One worker and its servers, step by step, give what one device gives."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.every_optimizer import DONE_BY_WORKERS, OPTIMIZERS
from tests.parameter_server.threads import make_layout, read_values, run_steps, served, write_values

from lockstep.parameter_server.fitting.data import ArrayBatches
from lockstep.parameter_server.fitting.step import FitStep
from lockstep.parameter_server.fitting.worker import FitFunction
from lockstep.parameter_server.model_setup import describe_model
from lockstep.parameter_server.partitioners import FixedShardsPartitioner
from lockstep.parameter_server.protocol import Mode
from lockstep.strategies import OneDeviceStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

NUM_STEPS = 50
BATCH_SIZE = 16
TOLERANCE = 1e-5
QUICK = ("schedule",)


def make_rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(NUM_STEPS * BATCH_SIZE - 5, 8)).astype(np.float32)  # the last batch is smaller
    return inputs, inputs[:, :3].argmax(1).astype(np.int32)


def make_model(optimizer: Any) -> Any:
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(12, activation="relu", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2, seed=3),
            keras.layers.Dense(3, kernel_constraint=keras.constraints.MaxNorm(1.5)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def train_here(optimizer: Any) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, float]]:
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        model = make_model(optimizer)
        inputs, targets = make_rows()
        optimizer.finalize_variable_values = lambda _variables: None  # `fit` would end with averaged weights
        history = model.fit(inputs, targets, batch_size=BATCH_SIZE, shuffle=False, verbose=0)
    values = {variable.path: variable.numpy() for variable in model.variables if variable.dtype == "float32"}
    return values, {name: numbers[0] for name, numbers in history.history.items()}


def train_served(
    optimizer: Any,
    *,
    num_servers: int,
    num_functions: int = 1,
    mode: Mode = Mode.SYNCHRONOUS,
    overlaps: bool = False,
) -> tuple[dict[str, np.ndarray[Any, Any]], list[Any]]:
    keras.backend.clear_session()
    layout = make_layout()
    with layout.scope(), served(num_servers) as cluster:
        model = make_model(optimizer)
        batches = ArrayBatches((*make_rows(), None), batch_size=BATCH_SIZE, shuffle=False)
        model._symbolic_build(data_batch=batches.example())
        description = describe_model(
            model.variables,
            optimizers=[model.optimizer],
            num_servers=num_servers,
            partitioner=FixedShardsPartitioner(2),
            mode=mode,
        )
        write_values(cluster, description)
        step = FitStep(model, description, layout=layout)
        functions = [
            FitFunction(
                cluster,
                setup=description.setup,
                step=step,
                batches=batches,
                overlaps=overlaps,
                holds=mode is Mode.ASYNCHRONOUS,
            )
            for _ in range(num_functions)
        ]
        if num_functions == 1:
            results = run_steps(functions[0], range(NUM_STEPS))
        else:
            results = [run_steps(functions[n % num_functions], [n])[0] for n in range(NUM_STEPS)]
        for function in functions:
            function.close()
        return read_values(cluster, description), results


def assert_close(found: dict[str, np.ndarray[Any, Any]], expected: dict[str, np.ndarray[Any, Any]]) -> None:
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        error = np.linalg.norm(found[path] - value) / max(np.linalg.norm(value), 1e-12)
        assert error < TOLERANCE, path


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.heavy)
        for name in {**OPTIMIZERS, **DONE_BY_WORKERS}
    ],
)
def test_fifty_synchronous_steps_are_those_of_one_device(name: str) -> None:
    make = {**OPTIMIZERS, **DONE_BY_WORKERS}[name]
    expected, logs = train_here(make())
    found, results = train_served(make(), num_servers=1)
    assert_close(found, expected)
    assert all(result["is_applied"] for result in results)
    assert [result["step"] for result in results] == list(range(1, NUM_STEPS + 1))
    sums = np.sum([result["metrics"]["float32"] for result in results], axis=0)
    num_rows = sum(result["num_rows"] for result in results)
    assert num_rows == NUM_STEPS * BATCH_SIZE - 5
    assert {round(number, 4) for number in (logs["accuracy"], logs["loss"])} <= {
        round(float(total) / num_rows, 4) for total in sums
    }, "the metrics' sums come back as well"


@pytest.mark.heavy
@pytest.mark.parametrize("num_servers", [2, 3])
def test_over_several_servers_as_well(num_servers: int) -> None:
    expected, _ = train_here(keras.optimizers.Adam(0.01))
    found, _ = train_served(keras.optimizers.Adam(0.01), num_servers=num_servers)
    assert_close(found, expected)


@pytest.mark.heavy
def test_who_was_left_out_of_a_synchronous_step_begins_the_next_with_its_values() -> None:
    expected, _ = train_here(keras.optimizers.SGD(0.05))
    found, results = train_served(keras.optimizers.SGD(0.05), num_servers=2, num_functions=2)
    assert_close(found, expected)
    assert all(result["is_applied"] for result in results)


@pytest.mark.heavy
def test_without_waiting_for_rounds_one_worker_is_exact_too() -> None:
    expected, _ = train_here(keras.optimizers.Adam(0.01))
    found, results = train_served(keras.optimizers.Adam(0.01), num_servers=1, mode=Mode.ASYNCHRONOUS)
    assert_close(found, expected)
    assert {result["staleness"] for result in results} == {0}


def test_with_overlap_each_step_is_of_parameters_one_step_older() -> None:
    expected, _ = train_here(keras.optimizers.SGD(0.05))
    found, results = train_served(keras.optimizers.SGD(0.05), num_servers=1, mode=Mode.ASYNCHRONOUS, overlaps=True)
    assert [result["staleness"] for result in results] == [0] + [1] * (NUM_STEPS - 1)
    assert any(np.linalg.norm(found[path] - value) > 1e-4 for path, value in expected.items())
    assert all(
        np.linalg.norm(found[path] - value) < 0.5 * np.linalg.norm(value) + 0.1 for path, value in expected.items()
    )
