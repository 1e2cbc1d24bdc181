"""Models for batch prediction, and what runs it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import keras
import numpy as np
import pytest

import lockstep  # selects Keras's backend, so it goes before Keras
from lockstep.serving.batch.options import BatchOptions, InputFormat, OutputFormat
from lockstep.serving.batch.run import BatchRun, Place
from lockstep.serving.model import LoadedModel

assert lockstep is not None


@pytest.fixture(scope="session")
def numbers_model() -> keras.Model:
    """Four numbers in, three out."""
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input((4,), name="x"), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3, name="y")]
    )


@pytest.fixture(scope="session")
def two_inputs_model() -> keras.Model:
    """Two single numbers in, their sum and difference out."""
    a, b = keras.Input((), name="a"), keras.Input((), name="b")
    return keras.Model({"a": a, "b": b}, {"sum": keras.ops.add(a, b), "difference": keras.ops.subtract(a, b)})


@final
class Batch:
    """Runs batch predictions in a folder.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.inputs = folder / "in"
        self.output = folder / "out"
        self.work = folder / "work"
        for made in (self.inputs, self.work):
            made.mkdir()

    def run(
        self,
        model: keras.Model,
        pattern: str,
        input_format: InputFormat,
        *,
        place: Place | None = None,
        sleep: Callable[[float], object] | None = None,
        **changes: Any,
    ) -> None:
        options: dict[str, Any] = {
            "run_id": "run",
            "input_paths": (str(self.inputs / pattern),),
            "output_path": str(self.output),
            "input_format": input_format,
            "batch_size": 8,
            **changes,
        }
        made = BatchOptions(**options)
        loaded = LoadedModel(model, max_batch_size=made.batch_size)
        digest = hashlib.sha256(model.name.encode()).hexdigest()
        waits = {} if sleep is None else {"sleep": sleep}
        BatchRun(made, model=loaded, model_sha256=digest, place=place or Place(), folder=self.work, **waits).run()

    def files(self, kind: str = "results") -> list[Path]:
        return sorted(self.output.glob(f"prediction.{kind}-*"))

    def lines(self, kind: str = "results") -> list[str]:
        return [line for path in self.files(kind) for line in path.read_text().splitlines()]

    def predictions(self) -> list[Any]:
        return [json.loads(line) for line in self.lines()]

    def errors(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines("errors_stats")]


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


def expected(model: keras.Model, values: Any) -> np.ndarray:
    return np.asarray(model.predict(values, verbose=0))


__all__ = ["Batch", "InputFormat", "OutputFormat", "expected"]
