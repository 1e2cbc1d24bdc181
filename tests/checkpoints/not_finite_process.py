"""One of the processes of `test_shares`: backs a model up while one process's shards are NaN, and again without."""

import sys
from pathlib import Path

import jax
import numpy as np
from tests.checkpoints.moving_process import HERE, make_model, make_strategy

from lockstep.checkpoints.backups import DirectoryBackups


def fill(variable, number):
    """Gives a variable one number; each process makes the shards of its own devices."""
    shape, sharding = tuple(variable.shape), variable.value.sharding
    assert not sharding.is_fully_replicated
    variable.assign(
        jax.make_array_from_callback(shape, sharding, lambda index: np.full(shape, number, np.float32)[index])
    )


def main(folder):
    model = make_model(make_strategy("sharded-3"), seed=1)
    kernel = model.trainable_variables[0]
    backups = DirectoryBackups(folder, keep=2)
    backups.restore(model)
    fill(kernel, np.nan if jax.process_index() == 1 else 0.0)
    backups.save(model, position=HERE)
    assert not any(path.name.isdigit() for path in Path(folder).iterdir())
    fill(kernel, 1.0)
    backups.save(model, position=HERE)
    backups.close()
    print("saved", [path.name for path in Path(folder).iterdir() if path.name.isdigit()], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
