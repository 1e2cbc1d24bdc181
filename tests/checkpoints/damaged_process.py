"""One of the processes of `test_damage_of_a_job`: saves twice, and restores what is left after damage to each."""

import sys
from pathlib import Path

import jax
import keras
import numpy as np
import pytest
from tests.checkpoints.moving_process import HERE, make_model, make_strategy, variables_of
from tests.checkpoints.test_damage import cut, files_of

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.strategies.shares import gather_counts


def damage(folder, step, *, process):
    """Cuts the largest file that a process has written. The processes wait for each other before and after."""
    gather_counts(0)
    if jax.process_index() == 0:
        own = [path for path in files_of(folder, step) if f"ocdbt.process_{process}" in path.parts]
        assert own
        cut(max(own, key=lambda path: path.stat().st_size))
    gather_counts(0)


def main(folder):
    folder = Path(folder)
    model = make_model(make_strategy("sharded-3"), seed=1)
    assert any(not variable.value.is_fully_replicated for variable in variables_of(model))
    later = Position(epoch=2, batch=0, step=3)
    with CheckpointDirectory(folder) as directory:
        for position in (HERE, later):
            directory.save(TrainingState.capture(model, position=position))
        directory.wait()
        gather_counts(0)
        assert directory.restore().position == later
        damage(folder, later.step, process=1)
        assert directory.restore().position == HERE
        damage(folder, HERE.step, process=0)
        with pytest.raises(CorruptDataError, match=r"all 2 checkpoints in .* are damaged"):
            directory.restore()
    keeping = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    with pytest.raises(InvalidInputError, match=r"which is divided over the processes'; .* with keep_best=1"):
        model.fit(np.zeros((8, 12)), np.zeros((8, 3)), verbose=0, callbacks=[keeping])
    print("both have agreed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
