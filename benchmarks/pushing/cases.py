"""What is trained: the same on both sides. NumPy alone, since it runs in TensorFlow's environment too."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

PIXELS: Final = 784
HIDDEN: Final = 128
CLASSES: Final = 10
FIELDS: Final = 16
TABLE_ROWS: Final = 1_000_000
TABLE_COLUMNS: Final = 64
CLICK_HIDDEN: Final = 64
TABLE_SCALE: Final = 0.05
TABLE_SEED: Final = 6
ROW_LEARNING_RATE: Final = 100.0
"""Of the table: a row's gradient is a batch's mean, in which it stands once or a few times."""
NUM_JUDGED: Final = 16_384
"""The loss is over so many of the examples that were trained on, so that it tells of rows that are seldom met."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training: an epoch that nobody times, and one that is timed.

    Attributes:
        title: in words.
        data: the folder of its examples: ``dense``, ``zipf`` or ``uniform``.
        batch_size: examples of a step, of one worker.
        num_steps: of each epoch, over all workers.
        optimizer: ``sgd`` or ``adam``, for all that is dense; rows of the table are always trained by SGD.
        learning_rate: its own.
    """

    title: str
    data: str
    batch_size: int
    num_steps: int
    optimizer: str = "sgd"
    learning_rate: float = 0.1

    @property
    def has_table(self) -> bool:
        return self.data != "dense"


_NET: Final = "784-128-10"
_TABLE: Final = "1 M rows of 64"
CASES: Final = {
    "dense-64": Case(title=f"{_NET}, SGD, batches of 64", data="dense", batch_size=64, num_steps=1000),
    "dense-256": Case(title=f"{_NET}, SGD, batches of 256", data="dense", batch_size=256, num_steps=1000),
    "dense-adam-64": Case(
        title=f"{_NET}, Adam, batches of 64",
        data="dense",
        batch_size=64,
        num_steps=1000,
        optimizer="adam",
        learning_rate=0.001,
    ),
    "zipf-256": Case(title=f"{_TABLE}, ids by Zipf's law, batches of 256", data="zipf", batch_size=256, num_steps=600),
    "zipf-1024": Case(
        title=f"{_TABLE}, ids by Zipf's law, batches of 1,024", data="zipf", batch_size=1024, num_steps=300
    ),
    "uniform-256": Case(title=f"{_TABLE}, uniform ids, batches of 256", data="uniform", batch_size=256, num_steps=600),
    "uniform-1024": Case(
        title=f"{_TABLE}, uniform ids, batches of 1,024", data="uniform", batch_size=1024, num_steps=300
    ),
}


def initial_dense(case: Case) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Returns the first kernel and bias of each dense layer, as Glorot draws them."""
    widths = [FIELDS * TABLE_COLUMNS, CLICK_HIDDEN, 1] if case.has_table else [PIXELS, HIDDEN, CLASSES]
    rng = np.random.default_rng(0)
    layers = []
    for inputs, outputs in pairwise(widths):
        limit = np.sqrt(6 / (inputs + outputs))
        kernel = rng.uniform(-limit, limit, (inputs, outputs)).astype(np.float32)
        layers.append((kernel, np.zeros(outputs, np.float32)))
    return layers


def inputs_shape(case: Case) -> tuple[int, np.dtype[Any]]:
    """Returns how many values an example's input has, and of which dtype."""
    return (FIELDS, np.dtype(np.int32)) if case.has_table else (PIXELS, np.dtype(np.uint8))


def labels_dtype(case: Case) -> np.dtype[Any]:
    return np.dtype(np.float32 if case.has_table else np.int32)


def load(case: Case, folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns inputs and labels, as many as make whole batches, read as they are used."""
    width, dtype = inputs_shape(case)
    inputs = np.memmap(folder / case.data / "inputs", dtype, "r").reshape(-1, width)
    labels = np.memmap(folder / case.data / "labels", labels_dtype(case), "r")
    num_examples = len(labels) // case.batch_size * case.batch_size
    return inputs[:num_examples], labels[:num_examples]
