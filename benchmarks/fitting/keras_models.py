"""The models in Keras, for any backend. Does not import Lockstep."""

from __future__ import annotations

from typing import Any

import keras

from fitting.cases import CASES, EPSILON, NUM_CLASSES, make_weights


def make_model(name: str) -> Any:
    """Returns the compiled model of a case, with Adam and the loss from logits."""
    case = CASES[name]
    keras.utils.set_random_seed(0)
    inputs = keras.Input(case.shape)
    layers = keras.layers
    if name == "dense":
        outputs = layers.Dense(NUM_CLASSES)(layers.Dense(128, activation="relu")(inputs))
    elif name == "wide":
        hidden = inputs
        for _ in range(4):
            hidden = layers.Dense(2400, activation="relu")(hidden)
        outputs = layers.Dense(NUM_CLASSES)(hidden)
    elif name == "cnn":
        hidden = layers.MaxPooling2D()(layers.Conv2D(32, 3, activation="relu")(inputs))
        hidden = layers.MaxPooling2D()(layers.Conv2D(64, 3, activation="relu")(hidden))
        outputs = layers.Dense(NUM_CLASSES)(layers.Flatten()(hidden))
    elif name == "lstm":
        outputs = layers.Dense(NUM_CLASSES)(layers.LSTM(128)(inputs))
    else:
        network = keras.applications.DenseNet121(
            weights=None, input_shape=case.shape, classes=NUM_CLASSES, classifier_activation=None
        )
        outputs = network(inputs)
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(case.rate, epsilon=EPSILON), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    if case.is_checked:
        trained = model.trainable_variables
        for variable, value in zip(trained, make_weights([tuple(one.shape) for one in trained]), strict=True):
            variable.assign(value)
    return model
