"""One of the processes of `test_shares`: saves and restores a model that is cut, and notes what it took."""

import ctypes
import gc
import json
import os
import sys
import zlib
from pathlib import Path

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.strategies import ShardedStrategy

NUM_COLUMNS = 1024
NUM_TABLES = 16
HERE = Position(epoch=0, batch=0, step=3)


class Exchanged:
    """Counts the bytes that the processes give each other."""

    def __init__(self):
        self.num_bytes = 0
        for name in ("process_allgather", "broadcast_one_to_all"):
            setattr(multihost_utils, name, self.counted(getattr(multihost_utils, name)))

    def counted(self, function):
        def call(tree, *args, **kwargs):
            self.num_bytes += sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
            return function(tree, *args, **kwargs)

        return call


def make_model(strategy, *, num_tables, num_rows):
    with strategy.scope():
        ids = keras.Input((1,), dtype="int32")
        tables = [keras.layers.Embedding(num_rows, NUM_COLUMNS, "zeros") for _ in range(num_tables)]
        model = keras.Model(ids, keras.layers.Concatenate()([table(ids) for table in tables]))
        model.compile(keras.optimizers.SGD(), "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def fill(model, *, seed):
    """Gives a model values that each process makes for its own devices alone."""
    for number, variable in enumerate(model.trainable_variables):
        shape, sharding = tuple(variable.shape), variable.value.sharding
        assert not sharding.is_fully_replicated

        def values(index, shape=shape, number=number):
            starts, ends, _ = zip(*(part.indices(size) for part, size in zip(index, shape, strict=True)), strict=True)
            return np.random.default_rng([seed, number, *starts]).random(np.subtract(ends, starts), np.float32)

        variable.assign(jax.make_array_from_callback(shape, sharding, values))


def shards(model):
    return [shard.data for variable in model.trainable_variables for shard in variable.value.addressable_shards]


def checksums(model):
    return [zlib.crc32(np.asarray(shard)) for shard in shards(model)]


def number_in(path, name):
    (line,) = [line for line in Path(path).read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])


class Measured:
    """What this process takes within: memory above what it has before, bytes read from files, bytes exchanged."""

    def __init__(self, exchanged):
        self.exchanged = exchanged

    def __enter__(self):
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free counts neither now nor when it is used again
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self.before = self.now()
        return self

    def now(self):
        return {
            "memory": number_in("/proc/self/status", "VmHWM") * 1024,
            "read": number_in("/proc/self/io", "rchar"),
            "exchanged": self.exchanged.num_bytes,
        }

    def __exit__(self, *error):
        self.grown = {name: value - self.before[name] for name, value in self.now().items()}


def main(size_bytes, folder):
    exchanged = Exchanged()
    strategy = ShardedStrategy(stage=3)
    small = make_model(strategy, num_tables=1, num_rows=64)
    with CheckpointDirectory(folder / "small") as directory:  # so that all libraries are there
        directory.save(TrainingState.capture(small, position=HERE))
        directory.wait()
        directory.restore().apply(small)

    model = make_model(strategy, num_tables=NUM_TABLES, num_rows=size_bytes // NUM_TABLES // NUM_COLUMNS // 4)
    fill(model, seed=1)
    saved = checksums(model)
    with Measured(exchanged) as saving, CheckpointDirectory(folder / "checkpoints") as directory:
        directory.save(TrainingState.capture(model, position=HERE))
    fill(model, seed=2)
    assert not set(saved) & set(checksums(model))
    with Measured(exchanged) as restoring, CheckpointDirectory(folder / "checkpoints") as directory:
        directory.restore().apply(model)
    assert checksums(model) == saved

    found = {
        "share": sum(shard.nbytes for shard in shards(model)),
        "saving": saving.grown,
        "restoring": restoring.grown,
        "kept": restoring.before["memory"] - saving.before["memory"],
    }
    print(found, flush=True)
    (folder / f"{strategy.topology.process_id}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(os.environ["FOLDER"]))
