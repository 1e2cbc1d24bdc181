"""Trains with parameter servers: they keep the parameters, and apply the gradients of each worker as they come.

Every role runs this same script. A server's process stays in the strategy's first line, a worker's in `fit`; the master
alone gets to what follows. Whichever of them is lost comes back: the others go on meanwhile, or all do from the last
checkpoint. With an evaluator as well (`evaluatorCount: "1"`, and an `evaluatorType`), each checkpoint is evaluated
while training goes on.
"""

from __future__ import annotations

import argparse
import logging
import os

import numpy as np

from lockstep.parameter_server import MinSizePartitioner, ParameterServerStrategy
from lockstep.topology import Topology
from lockstep.training import BackupAndRestore, save_model

NUM_STEPS = 60
"""Of an epoch, by all workers together."""
BATCH_SIZE = 32
NUM_HELD_OUT = 256
"""Rows that nobody trains on."""


def main() -> None:
    """Does what this replica's role asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    logging.basicConfig()
    logging.getLogger("lockstep").setLevel(logging.INFO)  # servers and workers say what they do
    topology = Topology.from_env()
    task, cluster = topology.task, topology.cluster
    counts = f"1 master, {len(cluster['worker'])} workers, {len(cluster['ps'])} parameter servers"
    print(f"{task.role} {task.index} of {counts}", flush=True)

    # A variable of 512 bytes or more is cut in two, one part for each server.
    partitioner = MinSizePartitioner(min_shard_bytes=256, max_shards=2)
    strategy = ParameterServerStrategy(variable_partitioner=partitioner)
    import keras  # a server needs none of it

    rng = np.random.default_rng(0)
    features = rng.normal(size=(NUM_STEPS * BATCH_SIZE + NUM_HELD_OUT, 16)).astype("float32")
    labels = features @ rng.normal(size=(16, 1)).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    history = model.fit(
        features[NUM_HELD_OUT:],
        labels[NUM_HELD_OUT:],
        batch_size=BATCH_SIZE,
        steps_per_epoch=NUM_STEPS,
        epochs=options.epochs,
        validation_data=(features[:NUM_HELD_OUT], labels[:NUM_HELD_OUT]),
        validation_freq=options.epochs,  # once, by the master; what is in between is an evaluator's
        verbose=0,
        callbacks=[BackupAndRestore(os.environ["AIP_CHECKPOINT_DIR"])],
    )
    print(f"loss {history.history['loss'][0]:.3f} -> {history.history['loss'][-1]:.3f}", flush=True)
    print(f"loss of rows held out: {history.history['val_loss'][-1]:.3f}", flush=True)
    print(f"model in {save_model(model, os.environ['AIP_MODEL_DIR'])}", flush=True)


if __name__ == "__main__":
    main()
