"""One of the processes of `test_sharded`: trains with cut state, saves, restores, and writes what came out."""

import os
import sys

import keras
import numpy as np
from tests.strategies.test_sharded import BATCH_SIZE, TENSOR_PARALLEL, make_model, make_rows

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.strategies import ShardedStrategy, measure_memory
from lockstep.strategies.gathering import whole_value
from lockstep.topology import Topology
from lockstep.training import load_model, save_model


def whole_values(model):
    return [whole_value(variable.value) for variable in [*model.variables, *model.optimizer.variables]]


def main(stage, model_parallel, folder):
    rank = Topology.from_env().process_id
    layout_map = TENSOR_PARALLEL if model_parallel > 1 else None
    strategy = ShardedStrategy(stage=stage, model_parallel=model_parallel, layout_map=layout_map, min_shard_elements=1)
    keras.utils.set_random_seed(3)
    inputs, targets = make_rows()
    with strategy.scope():
        model = make_model()
    model.fit(inputs, targets, batch_size=BATCH_SIZE, epochs=7, verbose=0)
    predictions = model.predict(inputs, batch_size=BATCH_SIZE, verbose=0)
    variables = whole_values(model)
    optimizer = measure_memory(model)[1]
    assert optimizer.max_device_bytes < optimizer.size_bytes / 2

    save_model(model, f"{folder}/{rank}.keras")
    with strategy.scope():
        loaded = load_model(f"{folder}/0.keras")
    np.testing.assert_allclose(loaded.predict(inputs, verbose=0), predictions, rtol=1e-5, atol=1e-6)

    with CheckpointDirectory(f"{folder}/checkpoints") as checkpoints:
        saved = TrainingState.capture(model, position=Position(epoch=7, batch=0, step=21))
        checkpoints.save(saved)
        checkpoints.wait()
        for state in (saved, checkpoints.restore()):
            model.train_on_batch(inputs[:5], targets[:5])
            assert any(np.any(found != value) for found, value in zip(whole_values(model), variables, strict=True))
            state.apply(model)
            for found, value in zip(whole_values(model), variables, strict=True):
                np.testing.assert_array_equal(found, value)
    named = {f"variable_{number:03}": value for number, value in enumerate(variables)}
    np.savez(f"{folder}/{rank}.npz", predictions=predictions, **named)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), os.environ["FOLDER"])
