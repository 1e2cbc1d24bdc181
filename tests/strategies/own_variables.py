"""A process of a job in which the chief makes variables that the others do not; each argument names one way."""

import copy
import os
import sys

import keras
import numpy as np

import lockstep.training
from lockstep.strategies import MultiWorkerMirroredStrategy

INPUTS, TARGETS = np.arange(64, dtype=np.float32).reshape(16, 4) / 64, np.ones((16, 1), np.float32)
FOLDER = os.environ["FOLDER"]
strategy = MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    apart = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
own = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
own.compile("sgd", "mse", metrics=["mae"])


def make_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    return model


def clone(model):
    cloned = keras.models.clone_model(model)
    cloned.set_weights(model.get_weights())
    return cloned


def evaluate_clone(model):
    cloned = clone(model)
    cloned.compile("sgd", "mse", metrics=["mae"])
    loss, _ = cloned.evaluate(INPUTS, TARGETS, batch_size=5, verbose=0)
    outputs = cloned.predict(INPUTS, verbose=0)
    assert abs(loss - np.mean((outputs - TARGETS) ** 2)) < 1e-5


def train_another(model):
    other = make_model()
    before = [value.copy() for value in other.get_weights()]
    history = other.fit(INPUTS, TARGETS, epochs=3, verbose=0, validation_data=(INPUTS, TARGETS)).history
    assert history["loss"][-1] < history["loss"][0]
    assert all(np.abs(new - old).max() > 0 for new, old in zip(other.get_weights(), before, strict=True))


def make_metric(model):
    metric = keras.metrics.Mean()
    metric.update_state(np.ones(3))
    assert float(metric.result()) == 1
    metric.reset_state()


def save_and_load(model):
    model.save(f"{FOLDER}/saved.keras")
    loaded = keras.models.load_model(f"{FOLDER}/saved.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


AT_EPOCH_END = {
    "build": lambda model: make_model(),
    "clone": clone,
    "copy": lambda model: copy.deepcopy(apart).set_weights(apart.get_weights()),
    "evaluate a clone": evaluate_clone,
    "train another": train_another,
    "evaluate one made outside": lambda model: own.evaluate(INPUTS, TARGETS, verbose=0),
    "make a metric": make_metric,
    "save and load": save_and_load,
}


class AtEpochEnd(keras.callbacks.Callback):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def on_epoch_end(self, epoch, logs=None):
        self.act(self.model)


def callback(way):
    if way == "checkpoint":
        return keras.callbacks.ModelCheckpoint(f"{FOLDER}/whole.keras")
    if way == "checkpoint of weights":
        return keras.callbacks.ModelCheckpoint(f"{FOLDER}/only.weights.h5", save_weights_only=True)
    return AtEpochEnd(AT_EPOCH_END[way])


def train(way):
    keras.utils.set_random_seed(1)  # the chief may have made layers by itself
    with strategy.scope():
        model = make_model()
    in_all, in_chief = way.partition(" in all processes")[:2]
    is_asked = strategy.is_chief or bool(in_chief)
    model.fit(INPUTS, TARGETS, batch_size=8, epochs=2, verbose=0, callbacks=[callback(in_all)] if is_asked else [])
    return model


def main(ways):
    for way in ways:
        if way == "save_model within the scope":
            with strategy.scope():
                lockstep.training.save_model(train("build"), f"{FOLDER}/all")
        elif way == "save after fit":
            model = train("build")
            with strategy.scope():
                if strategy.is_chief:
                    save_and_load(model)
        else:
            train(way)
        print("done:", way, flush=True)
    # What all processes use is still compared.
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model()
        if strategy.is_chief:
            model.layers[0].bias.assign(np.ones(3, np.float32))
    model.fit(INPUTS, TARGETS, verbose=0)


if __name__ == "__main__":
    main(sys.argv[1:])
