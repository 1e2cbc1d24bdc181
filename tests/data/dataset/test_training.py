"""Data sets as what Keras and strategies take."""

import itertools
import json
import os
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
from tests.data.dataset import divided
from tests.strategies.setups import SETUPS

from lockstep.data import Dataset
from lockstep.parameter_server.fitting.data import worker_batches
from lockstep.strategies import InputContext, MirroredStrategy
from lockstep.testing.ports import free_port
from lockstep.training import BackupAndRestore

ROWS = 22
X = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3) / 70
Y = np.arange(ROWS) % 2
INT64 = "Explicitly requested dtype int64"
"""What JAX 0.12 warns of where Keras asks it for the shapes of whole numbers of 64 bits."""
TIMEOUT_S = 150

MAKERS = {
    "numbered": lambda: Dataset.from_tensor_slices((X, Y)).shuffle(ROWS).batch(8),
    "followed": lambda: Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: x[0] >= 0).shuffle(5).batch(8),
}


def make_model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss, metrics=["accuracy"])
    return model


def trained(make_data, *, strategy=None):
    if strategy is None:
        model = make_model()
    else:
        with strategy.scope():
            model = make_model()
    model.fit(make_data(), epochs=2, verbose=0)
    evaluated = model.evaluate(Dataset.from_tensor_slices((X, Y)).batch(8), verbose=0)
    predicted = model.predict(Dataset.from_tensor_slices(X).batch(8), verbose=0)
    return [np.asarray(variable) for variable in model.trainable_variables], evaluated, predicted


@pytest.fixture(scope="module")
def expected():
    """What arrays in the order of the data set give on one device."""
    model, data = make_model(), MAKERS["numbered"]()
    next(iter(data))  # Keras looks at a batch to build the metrics
    for _ in range(2):
        for x, y in data:
            model.train_on_batch(x, y)
    weights = [np.asarray(variable) for variable in model.trainable_variables]
    return weights, model.evaluate(X, Y, batch_size=8, verbose=0), model.predict(X, batch_size=8, verbose=0)


LIGHT = {"one_device", "mirrored", "central_storage", "sharded_3"}


@pytest.mark.parametrize(
    "setup",
    [pytest.param(setup, id=setup.name, marks=() if setup.name in LIGHT else pytest.mark.heavy) for setup in SETUPS],
)
def test_each_strategy_trains_on_it_as_one_device_does(setup, expected):
    weights, evaluated, predicted = trained(MAKERS["numbered"], strategy=setup.make(setup.replicas[-1]))
    for found, wanted in zip(weights, expected[0], strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)
    np.testing.assert_allclose(evaluated, expected[1], atol=2e-5)
    np.testing.assert_allclose(predicted, expected[2], atol=2e-5)


def test_keras_knows_its_length_and_warns_of_nothing():
    totals = []
    note = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: totals.append(note.params["steps"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", INT64)
        make_model().fit(MAKERS["numbered"](), epochs=2, verbose=0, callbacks=[note])
    assert totals == [3]


def test_each_epoch_has_another_order():
    data = Dataset.range(8).shuffle(8).batch(8)
    assert len({tuple(next(iter(data)).tolist()) for _ in range(4)}) == 4


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.heavy if kind == "numbered" else ()) for kind in [*MAKERS, "endless"]],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras, of data whose length nobody knows
@pytest.mark.filterwarnings(f"ignore:{INT64}")
@pytest.mark.heavy
def test_a_run_that_was_broken_off_goes_on_at_the_very_next_batch(tmp_path, kind):
    steps = 3 if kind == "endless" else None

    def make():
        if kind == "endless":
            return Dataset.from_tensor_slices((X, Y)).shuffle(ROWS).repeat().batch(8)
        return MAKERS[kind]()

    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(np.asarray(self.model.optimizer.iterations)) == 4:
                raise KeyboardInterrupt

    def fit(model, *callbacks):
        model.fit(make(), epochs=3, steps_per_epoch=steps, verbose=0, callbacks=list(callbacks))
        return [np.asarray(variable) for variable in model.trainable_variables]

    whole = fit(make_model(), BackupAndRestore(str(tmp_path / "whole"), save_freq=1))
    with MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        broken = make_model()
    directory = str(tmp_path / "broken")
    with pytest.raises(KeyboardInterrupt):
        fit(broken, BackupAndRestore(directory, save_freq=1), Break())
    with MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        again = make_model()
    seen = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    for found, wanted in zip(fit(again, BackupAndRestore(directory, save_freq=1), note), whole, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert len(seen) == 3 * 3 - 3, "the state of a step is saved after all other callbacks of the step"


def test_batches_that_were_changed_for_keras_keep_their_order():
    data, other = Dataset.range(9).shuffle(9).batch(4), Dataset.range(9).shuffle(9).batch(4)
    for _ in range(2):
        changed = [batch.tolist() for batch in data.iterate_mapped(lambda batch: batch + 1)]
        assert changed == [(batch + 1).tolist() for batch in other]


def test_distributed_batches_are_its_batches():
    strategy = MirroredStrategy(["cpu:0", "cpu:1"])
    data = Dataset.range(8).batch(4)
    distributed = strategy.experimental_distribute_dataset(data)
    assert len(distributed) == 2
    rows = [np.asarray(strategy.gather(batch, axis=0)).tolist() for batch in distributed]
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7]]
    made = strategy.distribute_datasets_from_function(lambda context: Dataset.range(8).batch(2))
    assert [np.asarray(strategy.gather(batch, axis=0)).tolist() for batch in made] == rows


def test_workers_of_a_parameter_server_divide_its_batches():
    def batches(worker):
        context = InputContext(num_input_pipelines=2, input_pipeline_id=worker, num_replicas_in_sync=2)
        return worker_batches({"x": Dataset.range(12).shuffle(12).batch(4)}, context=context)

    first, second = batches(0), batches(1)
    in_order = [first.batch(number, seed=0).tolist() for number in range(6)]
    assert [second.batch(number, seed=0).tolist() for number in (1, 3, 4)] == [in_order[number] for number in (1, 3, 4)]
    assert sorted(itertools.chain(*in_order[:3])) == sorted(itertools.chain(*in_order[3:])) == list(range(12))
    assert in_order[:3] != in_order[3:]


POLICIES = ("AUTO", "FILE", "DATA", "OFF")


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory):
    """What each of two processes read of a data set of files, by policy."""
    folder = tmp_path_factory.mktemp("files")
    divided.write_files(folder)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    workers = []
    for rank in range(2):
        env = {name: value for name, value in os.environ.items() if name != "NPROC"}
        env |= {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8"}
        env["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
        command = [sys.executable, divided.__file__, str(folder), *POLICIES]
        workers.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        outputs = [worker.communicate(timeout=TIMEOUT_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(error for _, error in outputs)
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.heavy
def test_two_processes_divide_it(of_two_processes, policy):
    first, second = (found[policy] for found in of_two_processes)
    assert first["batches"] == second["batches"]
    np.testing.assert_allclose(first["weights"], second["weights"])
    everything = sorted(itertools.chain(*first["batches"]))
    assert everything == sorted([*range(divided.NUM_RECORDS)] * (2 if policy == "OFF" else 1))
    opened = [worker["opened"] for worker in (first, second)]
    assert opened == ([[0, 2], [1, 3]] if policy in ("AUTO", "FILE") else [[0, 1, 2, 3]] * 2)
    assert first["num_steps"] == second["num_steps"] == len(first["batches"])
