"""Checkpoints of named objects, by tf.train's names: what was saved comes back into new objects, under any strategy."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from lockstep.checkpoints import Checkpoint, CheckpointManager, latest_checkpoint
from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy


def _model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])


def _step(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    optimizer.apply_gradients([(variable.value * 0 + 1, variable) for variable in model.trainable_variables])


def _values(*objects: object) -> list[np.ndarray]:
    return [np.asarray(variable) for one in objects for variable in one.variables]  # type: ignore[attr-defined]


def test_what_was_saved_comes_back_into_new_objects_under_another_strategy(tmp_path: Path) -> None:
    with MirroredStrategy().scope():
        model, optimizer = _model(1), keras.optimizers.Adam(0.1)
        epoch = keras.Variable(3, dtype="int32", trainable=False)
        _step(model, optimizer)
    path = Checkpoint(model=model, optimizer=optimizer, epoch=epoch).save(tmp_path / "ckpt")
    assert Path(path).parent == tmp_path
    with OneDeviceStrategy().scope():
        other, fresh = _model(2), keras.optimizers.Adam(0.1)
        at = keras.Variable(0, dtype="int32", trainable=False)
        status = Checkpoint(model=other, optimizer=fresh, epoch=at).restore(latest_checkpoint(tmp_path))
    status.assert_consumed()
    assert int(at.value) == 3
    for saved, found in zip(_values(model, optimizer), _values(other, fresh), strict=True):
        np.testing.assert_array_equal(saved, found)


def test_an_optimizer_that_a_compiled_model_has_goes_along(tmp_path: Path) -> None:
    model = _model(1)
    model.compile("adam", "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    path = Checkpoint(model=model).save(tmp_path / "ckpt")
    other = _model(2)
    other.compile("adam", "mse")
    assert Checkpoint(model=other).restore(path).missing == []
    assert int(other.optimizer.iterations.value) == 1


def test_a_manager_keeps_the_latest_ones(tmp_path: Path) -> None:
    variable = keras.Variable(0.0)
    manager = CheckpointManager(Checkpoint(variable=variable), tmp_path / "kept", max_to_keep=2)
    assert manager.latest_checkpoint is None
    assert manager.restore_or_initialize() is None
    for number in range(4):
        variable.assign(float(number))
        last = manager.save()
    assert manager.latest_checkpoint == last
    assert sorted(folder.name for folder in (tmp_path / "kept").iterdir()) == ["3", "4"]
    variable.assign(9.0)
    assert manager.restore_or_initialize() == last
    assert float(variable.value) == 3
    Checkpoint(variable=variable).restore(tmp_path / "kept" / "3")
    assert float(variable.value) == 2


def test_an_older_checkpoint_is_restored_by_its_path_and_saving_goes_on_after_the_latest(tmp_path: Path) -> None:
    variable = keras.Variable(0.0)
    checkpoint = Checkpoint(variable=variable)
    first = checkpoint.save(tmp_path / "ckpt")
    variable.assign(5.0)
    checkpoint.save(tmp_path / "ckpt")
    checkpoint.restore(first)
    assert float(variable.value) == 0
    assert checkpoint.save(tmp_path / "ckpt") == str(tmp_path / "3")


def test_what_does_not_fit_is_said_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = _model(1)
    path = Checkpoint(model=model).save(tmp_path / "ckpt")
    with pytest.raises(InvalidInputError, match="other variables under 'model'"):
        Checkpoint(model=keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])).restore(path)
    status = Checkpoint(model=model, epoch=keras.Variable(1.0)).restore(path)
    assert status.missing == ["epoch"]
    assert "epoch" in caplog.text
    with pytest.raises(InvalidInputError, match="epoch"):
        status.assert_existing_objects_matched()
    with pytest.raises(InvalidInputError, match="are not tracked"):
        Checkpoint(epoch=keras.Variable(1.0)).restore(path).assert_consumed()
    with pytest.raises(MissingInputError, match="no such checkpoint"):
        Checkpoint(model=model).restore(tmp_path / "7")
    with pytest.raises(InvalidInputError, match="cannot store 'epoch'"):
        Checkpoint(epoch=1)


def test_an_optimizer_of_several_models_is_built_by_their_names(tmp_path: Path) -> None:
    optimizers = {"generator_optimizer": keras.optimizers.Adam(), "critic": keras.optimizers.Adam()}
    models = {"generator": _model(1), "discriminator": _model(2)}
    for model, optimizer in zip(models.values(), optimizers.values(), strict=True):
        _step(model, optimizer)
    path = Checkpoint(**models, **optimizers).save(tmp_path / "ckpt")
    fresh = keras.optimizers.Adam()
    Checkpoint(**models, generator_optimizer=fresh).restore(path)
    assert int(fresh.iterations.value) == 1
    with pytest.raises(InvalidInputError, match="'critic' is not built"):
        Checkpoint(**models, critic=keras.optimizers.Adam()).restore(path)


def test_nothing_is_restored_of_none() -> None:
    variable = keras.Variable(4.0)
    assert Checkpoint(variable=variable).restore(None).missing == ["variable"]
    assert float(variable.value) == 4
