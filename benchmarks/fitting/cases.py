"""What is trained. NumPy alone, since all sides' environments read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

SEED: Final = 0
NUM_CLASSES: Final = 10
EPSILON: Final = 1e-7
"""Adam's, as Keras has it."""
NUM_CHECKED_STEPS: Final = 3


@final
@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and its examples.

    Attributes:
        title: its name in tables.
        shape: the shape of an example.
        batch_sizes: rows of a batch.
        num_steps: steps of a round, with a batch of 64 rows.
        rate: the learning rate. A wide net's first losses differ less between sides with a small one.
        is_checked: whether each side begins with the same weights, so that their losses are compared.
    """

    title: str
    shape: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    num_steps: int
    rate: float = 1e-3
    is_checked: bool = True

    def steps_of(self, batch_size: int) -> int:
        """Returns how many steps of so many rows a round has."""
        return max(4, self.num_steps * min(self.batch_sizes) // batch_size)


CASES: Final = {
    "dense": Case(title="dense net 784-128-10", shape=(784,), batch_sizes=(64, 256), num_steps=1600),
    "cnn": Case(title="CNN, 32 and 64 filters, 28x28", shape=(28, 28, 1), batch_sizes=(64, 256), num_steps=120),
    "lstm": Case(title="LSTM(128), 28 steps of 28", shape=(28, 28), batch_sizes=(64, 256), num_steps=160),
    "wide": Case(title="dense net 784-4x2400-10", shape=(784,), batch_sizes=(64,), num_steps=12, rate=1e-5),
    "densenet121": Case(
        title="DenseNet121, 64x64", shape=(64, 64, 3), batch_sizes=(32,), num_steps=4, is_checked=False
    ),
}


def make_examples(case: Case, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs (rows, *shape) in float32 and labels (rows,) in int32: the rows of a round."""
    rng = np.random.default_rng(SEED)
    num_rows = case.steps_of(batch_size) * batch_size
    return rng.random((num_rows, *case.shape), np.float32), rng.integers(0, NUM_CLASSES, num_rows, np.int32)


def make_weights(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Returns the first values of variables of these shapes, in Keras's order: kernels as Glorot has them, biases 0."""
    rng = np.random.default_rng(SEED)
    found = []
    for shape in shapes:
        if len(shape) == 1:
            found.append(np.zeros(shape, np.float32))
            continue
        receptive = int(np.prod(shape[:-2]))
        limit = np.sqrt(6 / (receptive * (shape[-2] + shape[-1])))
        found.append(rng.uniform(-limit, limit, shape).astype(np.float32))
    return found
