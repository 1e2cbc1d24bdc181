"""One of the processes of `test_moving`: restores what others saved, under each strategy, and saves under each."""

import os
import sys
from pathlib import Path

import jax
import keras
import numpy as np
import pytest

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.errors import InvalidInputError
from lockstep.strategies import MirroredStrategy, MultiWorkerMirroredStrategy, ShardedStrategy

HERE = Position(epoch=1, batch=0, step=2)
TENSOR_PARALLEL = {".*/first/kernel": (None, "model"), ".*/second/kernel": ("model", None)}


def make_strategy(name):
    own = None if "TF_CONFIG" in os.environ else jax.devices()[:4]
    if name == "mirrored":
        return MultiWorkerMirroredStrategy() if own is None else MirroredStrategy(own)
    stage, _, model_parallel = name.removeprefix("sharded-").partition("-by-")
    return ShardedStrategy(
        own,
        stage=int(stage),
        model_parallel=int(model_parallel or 1),
        layout_map=TENSOR_PARALLEL if model_parallel else None,
        min_shard_elements=1,
    )


def make_model(strategy, *, seed):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        layers = [keras.layers.Dense(24, name="first"), keras.layers.BatchNormalization()]
        layers += [keras.layers.Dense(16, name="second"), keras.layers.Dense(3, name="third")]
        model = keras.Sequential([keras.Input((12,)), *layers])
        model.compile("adam", "mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
    return model


def variables_of(model):
    return [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]


def where(folder):
    """Returns where the checkpoints of a folder are: in it, or under its name in a bucket."""
    bucket = os.environ.get("BUCKET")
    return f"{bucket}/{folder.name}" if bucket else folder / "checkpoints"


def save(name, folder, *, seed):
    """Saves a model with values of its own, and writes the values beside it."""
    model = make_model(make_strategy(name), seed=0)
    generator = np.random.default_rng(seed)
    values = [np.asarray(100 * generator.random(v.shape), v.dtype) for v in variables_of(model)]
    for variable, value in zip(variables_of(model), values, strict=True):
        variable.assign(value)
    with CheckpointDirectory(where(folder)) as directory:
        directory.save(TrainingState.capture(model, position=HERE))
    if jax.process_index() == 0:
        np.savez(folder / "values.npz", *values)


def check_all(name, folders):
    """Restores a model under a strategy from one folder after the other."""
    model = make_model(make_strategy(name), seed=1)
    for folder in folders:
        check(model, where(folder), np.load(folder / "values.npz"))
        print("restored", folder.name, "under", name, flush=True)


def check(model, checkpoints, expected):
    """Restores a model, and compares what this process's devices then hold."""
    shardings = [variable.value.sharding for variable in variables_of(model)]
    with CheckpointDirectory(checkpoints) as directory:
        state = directory.restore()
        assert state.position == HERE
        state.apply(model)
    for variable, wanted, sharding in zip(variables_of(model), expected.values(), shardings, strict=True):
        assert variable.value.sharding.is_equivalent_to(sharding, wanted.ndim)
        assert variable.value.dtype == wanted.dtype
        for shard in variable.value.addressable_shards:
            np.testing.assert_array_equal(shard.data, wanted[shard.index], err_msg=variable.path)


def check_own_folders(folder):
    """Restores from a directory that the chief alone sees; no process can save its shards into one of its own."""
    model = make_model(make_strategy("sharded-3"), seed=1)
    rank = jax.process_index()
    check(model, where(folder) if rank == 0 else f"{folder}/nowhere", np.load(folder / "values.npz"))
    own = f"{os.environ['TARGET']}-of-{rank}"
    with pytest.raises(InvalidInputError, match="process 1 does not see"), CheckpointDirectory(own) as directory:
        directory.save(TrainingState.capture(model, position=HERE))


def main(names, folder):
    folders = sorted(folder.iterdir())
    for name in names:
        check_all(name, folders)
    for number, name in enumerate(names):
        target = Path(os.environ["TARGET"], name)
        target.mkdir(exist_ok=True)
        save(name, target, seed=100 + number)
        print("saved under", name, flush=True)
    if folders:
        check_own_folders(folders[0])


if __name__ == "__main__":
    main(sys.argv[1].split(), Path(sys.argv[2]))
