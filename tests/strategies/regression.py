"""A regression trained from one seed, to compare a strategy with one device: tests of single strategies share it."""

import keras
import numpy as np

NUM_ROWS = 67  # two batches of 26 and one of 15
BATCH_SIZE = 26
NUM_EPOCHS = 7  # 21 steps


def make_rows():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(NUM_ROWS, 12)).astype(np.float32)
    return inputs, generator.normal(size=(NUM_ROWS, 3)).astype(np.float32)


def train(strategy, make_optimizer=None, num_epochs=NUM_EPOCHS, *, make_model, **arguments):
    keras.utils.set_random_seed(3)
    inputs, targets = make_rows()
    with strategy.scope():
        model = make_model(make_optimizer() if make_optimizer is not None else None, **arguments)
    history = model.fit(inputs, targets, batch_size=BATCH_SIZE, epochs=num_epochs, verbose=0)
    outcome = {
        "history": [np.array(values) for values in history.history.values()],
        "variables": [np.asarray(variable.value) for variable in [*model.variables, *model.optimizer.variables]],
    }
    if num_epochs == NUM_EPOCHS:
        outcome["evaluation"] = [np.array(model.evaluate(inputs, targets, batch_size=NUM_ROWS, verbose=0))]
        outcome["predictions"] = [model.predict(inputs, batch_size=BATCH_SIZE, verbose=0)]
    return model, outcome


def assert_same(outcome, expected):
    for name, values in expected.items():
        for value, wanted in zip(outcome[name], values, strict=True):
            difference = np.linalg.norm(np.asarray(value, np.float64) - wanted)
            assert difference <= 1e-5 * np.linalg.norm(wanted), name
