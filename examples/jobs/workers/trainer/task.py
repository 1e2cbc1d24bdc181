"""Trains a small net in step with the other processes of the job; the chief leaves the model where the job says."""

from __future__ import annotations

import os

import numpy as np

from lockstep.strategies import MultiWorkerMirroredStrategy
from lockstep.training import save_model


def main() -> None:
    """Trains, and saves."""
    strategy = MultiWorkerMirroredStrategy()
    import keras  # the strategy comes first: processes have to meet before JAX starts

    print(f"{strategy.num_replicas_in_sync} replicas in sync", flush=True)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(480, 16)).astype("float32")
    labels = features @ rng.normal(size=(16, 1)).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
    history = model.fit(features, labels, batch_size=60, epochs=3, verbose=0)
    print(f"loss {history.history['loss'][0]:.3f} -> {history.history['loss'][-1]:.3f}", flush=True)
    print(f"model in {save_model(model, os.environ['AIP_MODEL_DIR'])}", flush=True)


if __name__ == "__main__":
    main()
