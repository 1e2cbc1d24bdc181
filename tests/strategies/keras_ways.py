"""What the tests of Keras's ways share: rows, a run that is compared with Keras on one device, and small nets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers

from lockstep.strategies import MirroredStrategy

NUM_DEVICES = 4
NUM_ROWS = 30
BATCH_SIZE = 8  # the last batch has six rows: two groups of two devices
TOLERANCE = 1e-5
"""Of a tensor: ||a - b|| / ||b||, in float32."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run gave: logs after each step, history, evaluation; variables; predictions."""

    logs: list[dict[str, float]]
    history: dict[str, list[float]]
    evaluation: dict[str, float]
    weights: list[np.ndarray]
    names: list[str]
    predictions: list[np.ndarray]


def run(make_model: Callable[[], Any], use: Callable[..., Any], *, seed: int = 7) -> Outcome:
    """Builds a model and has it used: ``use`` gives history, evaluation and predictions, ``note`` keeps the logs."""
    keras.utils.set_random_seed(seed)
    model = make_model()
    seen: list[dict[str, float]] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
    history, evaluation, predictions = use(model, note)
    variables = [*model.variables, *model.optimizer.variables]
    return Outcome(
        logs=seen,
        history=history.history,
        evaluation=evaluation,
        weights=[np.asarray(value, np.float64) for value in variables],
        names=[variable.path for variable in variables],
        predictions=[np.asarray(value, np.float64) for value in keras.tree.flatten(predictions)],
    )


def distance(found: Any, expected: Any) -> float:
    """||a - b|| / ||b||."""
    size = float(np.linalg.norm(expected))
    return float(np.linalg.norm(np.asarray(found) - np.asarray(expected))) / (size or 1.0)


def assert_same(found: Outcome, expected: Outcome, *, tolerance: float = TOLERANCE) -> None:
    """Fails unless each tensor and number of the two runs agrees."""
    assert len(found.logs) == len(expected.logs) > 1
    for one, other in zip([*found.logs, found.evaluation], [*expected.logs, expected.evaluation], strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert abs(value - other[name]) <= tolerance * max(abs(other[name]), 0.1), (name, value, other[name])
    assert found.history.keys() == expected.history.keys()
    for name, values in found.history.items():
        assert distance(values, expected.history[name]) <= tolerance, (name, values, expected.history[name])
    for name, weight, other in zip(found.names, found.weights, expected.weights, strict=True):
        assert distance(weight, other) <= tolerance, (name, distance(weight, other))
    for prediction, other in zip(found.predictions, expected.predictions, strict=True):
        assert prediction.shape == other.shape
        assert distance(prediction, other) <= tolerance


def check(
    make_model: Callable[[], Any],
    use: Callable[..., Any],
    *,
    tolerance: float = TOLERANCE,
    num_devices: int = NUM_DEVICES,
) -> Outcome:
    """Runs on Keras's one device without any strategy, then over several under ``MirroredStrategy``, and compares."""
    # Made first: what it puts right in Keras (averages that lose their arrays) is so on one device as well.
    strategy = MirroredStrategy([f"cpu:{index}" for index in range(num_devices)])
    expected = run(make_model, use)

    def make_mirrored() -> Any:
        with strategy.scope():
            return make_model()

    found = run(make_mirrored, use)
    assert_same(found, expected, tolerance=tolerance)
    return found


def digits(num_rows: int = NUM_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Images, float32 of shape (rows, 6, 6, 1), and labels, int32 of shape (rows,)."""
    generator = np.random.default_rng(1)
    return generator.normal(size=(num_rows, 6, 6, 1)).astype(np.float32), generator.integers(0, 3, num_rows, np.int32)


def words(num_rows: int = NUM_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, int32 of shape (rows, 5), and labels, float32 of shape (rows, 1)."""
    generator = np.random.default_rng(2)
    tokens = generator.integers(0, 12, (num_rows, 5), np.int32)
    return tokens, (tokens.sum(1, keepdims=True) % 2).astype(np.float32)


def row_weights(num_rows: int = NUM_ROWS) -> np.ndarray:
    """A weight for each row, float32 of shape (rows,), zeros among them."""
    return (np.arange(num_rows) % 4).astype(np.float32)


def conv_net(**options: Any) -> Any:
    """Batch statistics and dropout."""
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3, use_bias=False),  # a bias ahead of batch norm has no gradient but noise
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )
    compile_options: dict[str, Any] = {
        "optimizer": "adam",
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
        "weighted_metrics": [keras.metrics.SparseCategoricalCrossentropy(name="weighted", from_logits=True)],
    }
    model.compile(**{**compile_options, **options})
    return model


def token_net(recurrent: Any, **options: Any) -> Any:
    """An embedding and a recurrent layer."""
    model = keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(12, 4), recurrent, layers.Dense(1)])
    compile_options: dict[str, Any] = {
        "optimizer": "adam",
        "loss": keras.losses.BinaryCrossentropy(from_logits=True),
        "metrics": [keras.metrics.AUC(name="auc", from_logits=True, num_thresholds=20)],
    }
    model.compile(**{**compile_options, **options})
    return model
