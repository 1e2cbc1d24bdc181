import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.strategies.job_processes import job
from tests.training import restartable

from lockstep.data import Batches, pack
from lockstep.data.images import encode_image
from lockstep.errors import InvalidInputError, StorageWriteError
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy
from lockstep.training import BackupAndRestore, backup

SCRIPT = Path(restartable.__file__)
NUM_STEPS = 18  # six an epoch


def arguments(tmp_path, name, *, kill_step=0, **readers):
    return [tmp_path / name, tmp_path / "records", tmp_path / f"{name}.npz", kill_step, json.dumps(readers)]


def run(tmp_path, name, **options):
    env = dict(os.environ, JAX_NUM_CPU_DEVICES="2", NPROC="8", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "xla"))
    command = [sys.executable, SCRIPT, *arguments(tmp_path, name, **options)]
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def records(tmp_path):
    rng = np.random.default_rng(0)
    size = restartable.SIZE
    examples = [
        {
            "image": encode_image(rng.integers(0, 256, (size, size, 3), np.uint8), codec="png"),
            "label": number % 3,
            "number": number,
        }
        for number in range(restartable.NUM_RECORDS)
    ]
    pack(
        examples, str(tmp_path / "records"), name="pictures", split="train", num_shards=5, features=restartable.FEATURES
    )


@pytest.mark.usefixtures("records")
@pytest.mark.heavy
def test_a_killed_run_ends_with_the_numbers_of_one_never_killed(tmp_path):
    whole = run(tmp_path, "whole")
    assert whole.returncode == 0, whole.stderr
    kill_step = int(np.random.default_rng().integers(2, NUM_STEPS))
    killed = run(tmp_path, "killed", kill_step=kill_step, num_threads=3, read_ahead=7)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed.npz").exists()
    again = run(tmp_path, "killed", num_processes=1)
    assert again.returncode == 0, again.stderr
    place = re.search(r"going on with epoch (\d), batch (\d) \(step (\d+)\)", again.stderr)
    assert place, again.stderr
    epoch, batch, saved = (int(number) - 1 for number in place.groups())
    assert saved == epoch * 6 + batch
    assert kill_step - 2 <= saved <= kill_step

    expected, found = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "killed.npz")
    np.testing.assert_array_equal(found["seen"], [restartable.NUM_EPOCHS] * restartable.NUM_RECORDS)
    assert len(expected["batches"]) == NUM_STEPS
    np.testing.assert_array_equal(found["batches"], expected["batches"][saved:], err_msg=f"killed at {kill_step}")
    np.testing.assert_array_equal(found["epochs"], expected["epochs"][epoch:], err_msg=f"killed at {kill_step}")
    for name in expected.files:
        if name.startswith("weight"):
            np.testing.assert_array_equal(found[name], expected[name], err_msg=f"{name}, killed at {kill_step}")


@pytest.mark.heavy
@pytest.mark.usefixtures("records")
@pytest.mark.parametrize(
    ("strategy", "first", "then"),
    [("multi_worker", 2, 3), ("multi_worker", 3, 2), ("sharded", 2, 1), ("sharded", 1, 2)],
)
def test_a_killed_job_goes_on_with_another_number_of_workers(tmp_path, strategy, first, then):
    whole = run(tmp_path, "whole")
    assert whole.returncode == 0, whole.stderr
    kill_step = int(np.random.default_rng().integers(2, NUM_STEPS))
    env = {"JAX_NUM_CPU_DEVICES": "1", "NPROC": "8", "LOCKSTEP_MEETING_TIMEOUT_S": "90", "STRATEGY": strategy}
    for num_processes, step in ((first, kill_step), (then, 0)):
        command = [SCRIPT, *arguments(tmp_path, "job", kill_step=step)]
        with job(tmp_path, command, num_processes=num_processes, env=env) as processes:
            codes = [process.end() for process in processes.values()]
            assert codes == [0] * then if not step else all(codes), [process.text for process in processes.values()]
    expected, found = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "job.npz")
    np.testing.assert_array_equal(found["seen"], [restartable.NUM_EPOCHS] * restartable.NUM_RECORDS)
    for name in expected.files:
        if name.startswith("weight"):
            one, two = found[name].astype(np.float64), expected[name].astype(np.float64)
            assert np.linalg.norm(one - two) <= 1e-5 * np.linalg.norm(two) + 1e-7, f"{name}, killed at {kill_step}"


class Numbers:
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return bytes([index])


def make_batches(count=12):
    def transform(records):
        values = np.array([record[0] for record in records], np.float32)[:, None] / count
        return values, 2 * values

    return Batches(Numbers(count), batch_size=2, transform=transform, seed=3)


def make_linear(strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


class StopAt(keras.callbacks.Callback):
    """Interrupts `fit` by an error after so many steps."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise InterruptedError


def fit_until(step, model, data, backup, **options):
    with pytest.raises(InterruptedError):
        model.fit(data, verbose=0, callbacks=[backup, StopAt(step)], **options)
    assert backup._backups is None  # all is written


def test_arrays_go_on_between_epochs_in_the_order_that_they_would_have_had(tmp_path):
    inputs = np.linspace(0, 1, 12, dtype=np.float32)[:, None]
    data, options = {"y": 2 * inputs, "batch_size": 2, "shuffle": True}, {"epochs": 3, "verbose": 0}
    whole = make_linear(OneDeviceStrategy())
    whole.fit(inputs, **data, **options, callbacks=[BackupAndRestore(tmp_path / "whole")])
    killed = make_linear(OneDeviceStrategy())
    fit_until(9, killed, inputs, BackupAndRestore(tmp_path / "killed"), epochs=3, **data)
    again = make_linear(OneDeviceStrategy())
    keras.utils.set_random_seed(99)  # what the checkpoint holds counts, not this
    assert again.fit(inputs, **data, **options, callbacks=[BackupAndRestore(tmp_path / "killed")]).epoch == [1, 2]
    for found, expected in zip(again.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_run_goes_on_under_another_number_of_replicas(tmp_path):
    whole = make_linear(OneDeviceStrategy())
    whole.fit(make_batches(), epochs=3, verbose=0, callbacks=[BackupAndRestore(tmp_path / "whole")])
    two = make_linear(MirroredStrategy(["cpu:0", "cpu:1"]))
    fit_until(11, two, make_batches(), BackupAndRestore(tmp_path / "moved", save_freq=2), epochs=3)
    moved = make_linear(MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]))
    backup = BackupAndRestore(tmp_path / "moved", save_freq=2)
    history = moved.fit(make_batches(), epochs=3, verbose=0, callbacks=[backup])
    assert history.epoch == [1, 2]
    for found, expected in zip(moved.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_within_an_epoch_the_data_has_to_be_what_it_was(tmp_path):
    model = make_linear(OneDeviceStrategy())
    fit_until(8, model, make_batches(), BackupAndRestore(tmp_path / "a", save_freq=1), epochs=3)
    again = make_linear(OneDeviceStrategy())
    message = r"received '.*records 20'; allowed: .*records 12; train to the end of the epoch as before"
    with pytest.raises(InvalidInputError, match=message):
        again.fit(make_batches(20), epochs=3, verbose=0, callbacks=[BackupAndRestore(tmp_path / "a")])
    between = make_linear(OneDeviceStrategy())
    fit_until(8, between, make_batches(), BackupAndRestore(tmp_path / "b"), epochs=3)
    history = between.fit(make_batches(20), epochs=3, verbose=0, callbacks=[BackupAndRestore(tmp_path / "b")])
    assert history.epoch == [1, 2]


@pytest.mark.heavy
def test_steps_per_epoch_is_followed_through_the_data(tmp_path):
    options = {"epochs": 6, "steps_per_epoch": 3, "verbose": 0}
    whole = make_linear(OneDeviceStrategy())
    whole.fit(make_batches(), **options, callbacks=[BackupAndRestore(tmp_path / "whole")])
    killed = make_linear(OneDeviceStrategy())
    fit_until(11, killed, make_batches(), BackupAndRestore(tmp_path / "a", save_freq=1), epochs=6, steps_per_epoch=3)
    model = make_linear(OneDeviceStrategy())
    history = model.fit(make_batches(), **options, callbacks=[BackupAndRestore(tmp_path / "a", save_freq=1)])
    assert history.epoch == [3, 4, 5]
    for found, expected in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_finished_run_trains_no_further_and_more_epochs_are_added(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    make_linear(OneDeviceStrategy()).fit(make_batches(), epochs=2, verbose=0, callbacks=[BackupAndRestore(tmp_path)])
    model = make_linear(OneDeviceStrategy())
    assert model.fit(make_batches(), epochs=2, verbose=0, callbacks=[BackupAndRestore(tmp_path)]).epoch == []
    assert "all 2 epochs are already trained; nothing to do" in caplog.messages
    assert model.fit(make_batches(), epochs=3, verbose=0, callbacks=[BackupAndRestore(tmp_path)]).epoch == [2]


def test_data_that_does_not_know_its_place_is_saved_between_epochs(tmp_path, caplog):
    inputs = np.ones((8, 1), np.float32)
    model = make_linear(OneDeviceStrategy())
    with pytest.raises(InterruptedError):
        model.fit(
            inputs, inputs, batch_size=2, verbose=0, callbacks=[BackupAndRestore(tmp_path, save_freq=1), StopAt(3)]
        )
    assert "the state is saved only between epochs" in caplog.text
    assert list(tmp_path.iterdir()) == []
    model.fit(inputs, inputs, batch_size=2, verbose=0, callbacks=[BackupAndRestore(tmp_path, save_freq=1)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "training_ended"]


def test_a_place_within_an_epoch_needs_data_that_can_go_there(tmp_path):
    fit_until(3, make_linear(OneDeviceStrategy()), make_batches(), BackupAndRestore(tmp_path, save_freq=1))
    inputs = np.ones((8, 1), np.float32)
    with pytest.raises(InvalidInputError, match="is from within an epoch"):
        make_linear(OneDeviceStrategy()).fit(inputs, inputs, verbose=0, callbacks=[BackupAndRestore(tmp_path)])


@pytest.mark.parametrize("arguments", [{"save_freq": 0}, {"save_freq": "batch"}, {"save_freq": True}, {"keep": 0}])
def test_arguments_out_of_their_range(tmp_path, arguments):
    with pytest.raises(InvalidInputError, match=next(iter(arguments))):
        BackupAndRestore(tmp_path, **arguments)


def test_a_training_ends_well_where_its_end_cannot_be_recorded(tmp_path, monkeypatch, caplog):
    def fail(directory):
        raise StorageWriteError(f"the end of the training cannot be recorded in {directory}: no space left on device")

    monkeypatch.setattr(backup, "mark_ended", fail)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.ones((4, 2), np.float32)
    with caplog.at_level(logging.WARNING):
        history = model.fit(rows, rows[:, :1], verbose=0, callbacks=[BackupAndRestore(tmp_path)])
    assert history.epoch == [0]
    assert "no space left on device; an evaluator of this directory may end too early, or too late" in caplog.text
