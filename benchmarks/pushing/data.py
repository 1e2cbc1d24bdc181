"""The data that is trained on: Fashion-MNIST, and clicks whose odds come from a number of each id."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from pushing.cases import FIELDS, TABLE_COLUMNS, TABLE_ROWS, TABLE_SCALE, TABLE_SEED

NUM_CLICKS: Final = 524_288
ZIPF_EXPONENT: Final = 1.05
"""About that of the ids in click logs: a field's most frequent id comes in one of nine examples."""


def prepare(folder: Path) -> None:
    """Makes what is not there yet; files are put in place whole, labels last."""
    if not (folder / "dense" / "labels").exists():
        _write_images(folder / "dense")
    for law in ("zipf", "uniform"):
        if not (folder / law / "labels").exists():
            _write_clicks(folder / law, law)
    if not (folder / "table").exists():
        _write_table(folder)


def _write_images(folder: Path) -> None:
    from lockstep.data.sources.fashion_mnist import find_fashion_mnist

    split = find_fashion_mnist().splits()["train"]
    order = np.random.default_rng(0).permutation(len(split.images))
    _write(folder / "inputs", split.images.reshape(len(order), -1)[order])
    _write(folder / "labels", split.labels[order].astype(np.int32))


def _write_clicks(folder: Path, law: str) -> None:
    rng = np.random.default_rng(1)
    weights = rng.normal(0, 0.7, TABLE_ROWS)
    ids_of = rng.permutation(TABLE_ROWS).reshape(FIELDS, -1)  # each field has ids of its own, anywhere in the table
    ranks = np.arange(1, ids_of.shape[1] + 1, dtype=np.float64)
    sums = np.cumsum(ranks**-ZIPF_EXPONENT if law == "zipf" else np.ones_like(ranks))
    chosen = np.searchsorted(sums, rng.random((NUM_CLICKS, FIELDS)) * sums[-1])
    ids = ids_of[np.arange(FIELDS), chosen]
    odds = 1 / (1 + np.exp(-weights[ids].sum(axis=1)))
    _write(folder / "inputs", ids.astype(np.int32))
    _write(folder / "labels", (rng.random(NUM_CLICKS) < odds).astype(np.float32))


def _write_table(folder: Path) -> None:
    """Writes the rows as Lockstep's servers draw them at first use, for TensorFlow's table to begin with."""
    from lockstep.strategies.table_rows import RowValues

    values = RowValues(scale=TABLE_SCALE, seed=TABLE_SEED)
    table = np.empty((TABLE_ROWS, TABLE_COLUMNS), np.float32)
    for part in np.array_split(np.arange(TABLE_ROWS), 100):
        table[part] = values.of(part, num_columns=TABLE_COLUMNS, dtype=table.dtype)
    _write(folder / "table", table)


def _write(path: Path, array: np.ndarray[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    array.tofile(partial)
    partial.rename(path)
