"""A program that runs in every role of a job: it trains with a strategy, and its evaluator evaluates beside it.

``evaluated_run.py STRATEGY FOLDER NUM_EPOCHS``; a training that is to end needs a file ``go_on`` in the folder.
"""

import sys
import time
from pathlib import Path

import numpy as np

from lockstep.parameter_server import ParameterServerStrategy
from lockstep.strategies import MultiWorkerMirroredStrategy, ShardedStrategy, from_env
from lockstep.topology import Topology

KINDS = {
    "multi_worker": MultiWorkerMirroredStrategy,
    "sharded": lambda: ShardedStrategy(min_shard_elements=1),
    "parameter_server": ParameterServerStrategy,
}
LEARNING_RATE = 0.05


def make_data():
    """Returns 96 rows of inputs, and their targets."""
    inputs = np.random.default_rng(0).normal(size=(96, 8)).astype(np.float32)
    return inputs, inputs.sum(1, keepdims=True)


def main(name, folder, num_epochs):
    is_evaluator = Topology.from_env().task.role == "evaluator"
    strategy = from_env("one_device") if is_evaluator else KINDS[name]()
    import keras  # the strategy comes first: processes have to meet before JAX starts

    from lockstep.training import BackupAndRestore, SidecarEvaluator, TensorBoard

    keras.utils.set_random_seed(5)
    data = make_data()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(LEARNING_RATE), "mse")
    if is_evaluator:
        board = TensorBoard(folder / "board")
        evaluator = SidecarEvaluator(
            model, data, folder / "checkpoints", callbacks=[board], best_model_url=folder / "best"
        )
        evaluator.start()
        print(f"the evaluator ends after {len(evaluator.results)} evaluations", flush=True)
        return

    def wait(epoch, logs):
        while epoch == num_epochs // 2 and not (folder / "go_on").exists():
            time.sleep(0.05)

    waiting = keras.callbacks.LambdaCallback(on_epoch_end=wait)
    callbacks = [BackupAndRestore(folder / "checkpoints"), waiting]
    steps = {"steps_per_epoch": 4} if name == "parameter_server" else {}
    model.fit(*data, batch_size=24, epochs=num_epochs, shuffle=False, verbose=0, callbacks=callbacks, **steps)
    result = model.evaluate(*data, verbose=0)
    print(f"trained: loss {result:.4g}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
