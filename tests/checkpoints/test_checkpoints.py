import json
import random
from dataclasses import replace

import keras
import numpy as np
import orbax.checkpoint as ocp
import pytest

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState, sending
from lockstep.errors import CorruptDataError, InvalidInputError, StorageWriteError
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy
from lockstep.testing.strategies import make_model, make_rows

BATCH_SIZE = 26
HERE = Position(epoch=1, batch=0, step=3)


def trained(strategy, *, steps=1, seed=0):
    keras.utils.set_random_seed(seed)
    inputs, labels = make_rows()
    with strategy.scope():
        model = make_model()
    for _ in range(steps):
        model.train_on_batch(inputs[:BATCH_SIZE], labels[:BATCH_SIZE])
    return model


def every_value(model):
    return [np.asarray(v) for v in [*model.variables, *model.optimizer.variables, *model.metrics_variables]]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("devices", [["cpu:0"], ["cpu:0", "cpu:1"], ["cpu:1", "cpu:2", "cpu:3"]])
def test_everything_comes_back_under_any_number_of_replicas(tmp_path, devices):
    model = trained(MirroredStrategy(["cpu:0", "cpu:1"]), steps=3)
    with CheckpointDirectory(tmp_path) as directory:
        directory.save(TrainingState.capture(model, position=HERE))
    expected = every_value(model)

    other = trained(MirroredStrategy(devices), seed=1)
    with CheckpointDirectory(tmp_path) as directory:
        state = directory.restore()
    assert state is not None
    assert state.position == HERE
    state.apply(other)
    state.apply_metrics(other)
    assert_same(every_value(other), expected)
    assert all(len(v.value.sharding.device_set) == len(devices) for v in other.variables)


@pytest.mark.parametrize("optimizer", ["adam", keras.optimizers.LossScaleOptimizer])
def test_an_optimizer_that_is_not_built_is_built_where_its_model_is(optimizer):
    def make():
        strategy = MirroredStrategy(["cpu:0", "cpu:1"])
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
            model.compile(optimizer if optimizer == "adam" else optimizer(keras.optimizers.Adam()), "mse")
        return model

    model = make()
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    other = make()
    TrainingState.capture(model, position=HERE).apply(other)
    assert_same(other.optimizer.variables, model.optimizer.variables)
    assert all(len(variable.value.sharding.device_set) == 2 for variable in other.optimizer.variables)
    other.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))


@pytest.mark.parametrize("part_bytes", [1000, 10**9])
def test_what_the_chief_sends_arrives_in_parts_of_any_size(monkeypatch, part_bytes):
    state = TrainingState.capture(trained(OneDeviceStrategy()), position=HERE)
    monkeypatch.setattr(sending, "_PART_BYTES", part_bytes)
    found = sending.broadcast_state(state)
    assert (found.position, found.paths, found.generators) == (state.position, state.paths, state.generators)
    for group, arrays in state.arrays.items():
        assert_same(found.arrays.get(group, {}).values(), arrays.values())
    assert sending.broadcast_state(None) is None


def test_the_next_step_repeats_dropout_masks_included(tmp_path):
    inputs, labels = make_rows()
    model = trained(OneDeviceStrategy(), steps=2)
    state = TrainingState.capture(model, position=HERE)
    first = model.train_on_batch(inputs[:9], labels[:9])
    after = every_value(model)
    state.apply(model)
    state.apply_metrics(model)
    assert model.train_on_batch(inputs[:9], labels[:9]) == first
    assert_same(every_value(model), after)


def test_random_generators_come_back(tmp_path):
    model = trained(OneDeviceStrategy())
    with CheckpointDirectory(tmp_path) as directory:
        directory.save(TrainingState.capture(model, position=HERE))

        def draw():
            return random.random(), np.random.random(), np.random.normal(), float(keras.random.uniform(()))

        drawn = draw()
        assert draw() != drawn
        directory.wait()
        directory.restore().apply(model)
        assert draw() == drawn


def test_a_capture_does_not_change_when_training_goes_on():
    inputs, labels = make_rows()
    model = trained(OneDeviceStrategy(), steps=2)
    state = TrainingState.capture(model, position=HERE)
    before = {key: value.copy() for key, value in state.arrays["trainable"].items()}
    model.train_on_batch(inputs[:9], labels[:9])
    for key, value in state.arrays["trainable"].items():
        np.testing.assert_array_equal(value, before[key])


def test_what_was_restored_is_saved_elsewhere(tmp_path):
    model = trained(OneDeviceStrategy())
    expected = every_value(model)
    with CheckpointDirectory(tmp_path / "a") as directory, CheckpointDirectory(tmp_path / "b") as other:
        directory.save(TrainingState.capture(model, position=HERE))
        directory.wait()
        other.save(directory.restore())
        other.wait()
        restored = other.restore()
    other_model = trained(OneDeviceStrategy(), seed=1)
    restored.apply(other_model)
    restored.apply_metrics(other_model)
    assert_same(every_value(other_model), expected)


def test_the_last_checkpoints_are_kept_and_a_step_that_is_there_is_written_beside_it(tmp_path):
    model = trained(OneDeviceStrategy())
    with CheckpointDirectory(tmp_path / "a" / "b", keep=2) as directory:
        assert directory.restore() is None
        for epoch, step in [(0, 1), (0, 2), (0, 3), (1, 3)]:
            directory.save(TrainingState.capture(model, position=Position(epoch=epoch, batch=0, step=step)))
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["3", "4"]
    with CheckpointDirectory(f"file://{tmp_path}/a/b") as directory:
        assert directory.restore().position == Position(epoch=1, batch=0, step=3)


def test_a_step_that_is_there_outlives_what_was_to_take_its_place(tmp_path, monkeypatch):
    model = trained(OneDeviceStrategy())
    with CheckpointDirectory(tmp_path, keep=1) as directory:
        directory.save(TrainingState.capture(model, position=HERE))

    def fail(*args, **kwargs):
        raise OSError("the disk is full")

    with CheckpointDirectory(tmp_path, keep=1) as directory, monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "save", fail)
        with pytest.raises(StorageWriteError, match="the disk is full"):
            directory.save(TrainingState.capture(model, position=replace(HERE, epoch=HERE.epoch + 1)))
    with CheckpointDirectory(tmp_path) as directory:
        assert directory.restore().position == HERE


def test_a_checkpoint_half_written_is_not_seen(tmp_path):
    model = trained(OneDeviceStrategy())
    with CheckpointDirectory(tmp_path) as directory:
        directory.save(TrainingState.capture(model, position=HERE))
    (tmp_path / "7.orbax-checkpoint-tmp" / "arrays").mkdir(parents=True)
    with CheckpointDirectory(tmp_path) as directory:
        assert directory.restore().position == HERE


def test_a_damaged_checkpoint_is_named(tmp_path):
    model = trained(OneDeviceStrategy())
    with CheckpointDirectory(tmp_path) as directory:
        directory.save(TrainingState.capture(model, position=HERE))
    document = tmp_path / "3" / "document" / "metadata"
    damaged = json.loads(document.read_text())
    del damaged["position"]
    document.write_text(json.dumps(damaged))
    with CheckpointDirectory(tmp_path) as directory, pytest.raises(CorruptDataError, match=rf"{tmp_path}/3 cannot be"):
        directory.restore()
    document.write_text("{")
    with CheckpointDirectory(tmp_path) as directory, pytest.raises(CorruptDataError, match="delete that folder"):
        directory.restore()


def test_another_model_s_checkpoint_is_refused():
    state = TrainingState.capture(trained(OneDeviceStrategy()), position=HERE)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    other.compile("adam", "mse")
    other.train_on_batch(np.zeros((2, 3)), np.zeros((2, 2)))
    before = every_value(other)
    with pytest.raises(InvalidInputError, match=r"of another model: trainable .*\(3, 3, 1, 4\).*\(3, 2\)"):
        state.apply(other)
    assert_same(every_value(other), before)


def test_a_checkpoint_is_given_to_a_model_that_no_step_has_built_the_metrics_of():
    def make():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("adam", "mse", metrics=["mae"])
        return model

    one, other = make(), make()
    inputs = np.ones((4, 3), np.float32)
    one.train_on_batch(inputs, np.zeros((4, 2)))
    TrainingState.capture(one, position=HERE).apply(other)
    np.testing.assert_array_equal(one.predict(inputs, verbose=0), other.predict(inputs, verbose=0))


def test_more_variables_than_the_checkpoint_has_are_refused():
    def dense(num_layers):
        model = keras.Sequential([keras.Input((3,)), *[keras.layers.Dense(3) for _ in range(num_layers)]])
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    state = TrainingState.capture(dense(1), position=HERE)
    with pytest.raises(InvalidInputError, match="received '2 trainable variables'; allowed: 4, as the model has"):
        state.apply(dense(2))


@pytest.mark.parametrize("url", ["s3://bucket/path", "memory://x"])
def test_directories_of_an_unknown_kind_are_refused(url):
    with pytest.raises(InvalidInputError, match="a local path, file:// or gs://"):
        CheckpointDirectory(url)


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="1 or more"):
        CheckpointDirectory(tmp_path, keep=0)


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageWriteError, match=f"cannot be written to {tmp_path}/file/there"):
        CheckpointDirectory(tmp_path / "file" / "there")
