"""The models that are served, and where their files lie. Imports nothing, so that every side can read it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

CASES: Final = {
    "tabular": "tabular 32-64-64-4, 32 numbers as JSON",
    "fashion_mnist": "Fashion-MNIST CNN, 28 x 28 x 1 numbers as JSON",
    "mobilenet": "MobileNet 0.25, 224 x 224 JPEG as base64",
}
IMAGE_MODEL: Final = "mobilenet"
MODEL_VARIABLE: Final = "SERVED_MODEL"
FOLDER_VARIABLE: Final = "SERVED_FOLDER"
MAX_BATCH_SIZE: Final = 64
"""The instances of a batch, for all rivals that form batches: as many as Lockstep's."""
MAX_WAIT_S: Final = 0.002
"""How long a batch waits for further requests, where a rival has a setting for it: as long as Lockstep's."""
MAX_WAITING: Final = 256
"""How many requests may wait, where a rival has a setting for it: as many as Lockstep's."""


@final
@dataclass(frozen=True, kw_only=True)
class Case:
    """One model's files.

    Attributes:
        name: the model's name.
        folder: where its files lie.
    """

    name: str
    folder: Path

    @property
    def model_path(self) -> Path:
        return self.folder / f"{self.name}.keras"

    @property
    def weights_path(self) -> Path:
        """The weights as NumPy arrays, by Keras's names: ``conv1/kernel``."""
        return self.folder / f"{self.name}.npz"

    @property
    def body_path(self) -> Path:
        """The request that the load consists of: the first instance alone."""
        return self.folder / f"{self.name}-request.json"

    @property
    def samples_path(self) -> Path:
        return self.folder / f"{self.name}-samples.json"

    def samples(self) -> tuple[list[Any], list[list[float]]]:
        """Returns instances, and the predictions of ``model.predict`` for them."""
        found = json.loads(self.samples_path.read_text())
        return found["instances"], found["predictions"]

    def write_samples(self, instances: list[Any], predictions: list[list[float]]) -> None:
        self.samples_path.write_text(json.dumps({"instances": instances, "predictions": predictions}))
        self.body_path.write_text(json.dumps({"instances": instances[:1]}))
