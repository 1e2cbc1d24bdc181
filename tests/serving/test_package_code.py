"""Models with classes of their own: their package is loaded in the prediction server alone, and only where needed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.serving.served_model import ServedModel

from lockstep.errors import ModelError

LAYERS = """
import keras
@keras.saving.register_keras_serializable(package="my_job")
class Scaled(keras.layers.Layer):
    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factor = factor
    def call(self, x):
        return x * self.factor
    def get_config(self):
        return {**super().get_config(), "factor": self.factor}
@keras.saving.register_keras_serializable(package="my_job")
def plus_one(x):
    return x + 1.0
"""
PROGRAM = """
import lockstep
import keras
from my_job.layers import Scaled, plus_one
@keras.saving.register_keras_serializable(package="my_job")
class Whole(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.scaled = Scaled(3.0)
    def call(self, x):
        return keras.ops.sum(plus_one(self.scaled(x)), axis=1, keepdims=True)
def train():
    import numpy as np
    print("trains")
    whole = Whole()
    whole(np.ones((1, 2), "float32"))
    whole.save("whole.keras")
    layers = [keras.Input((2,)), Scaled(2.0), keras.layers.Activation(plus_one)]
    keras.Sequential(layers).save("layers.keras")
    keras.Sequential(layers[:1] + [keras.layers.ReLU()]).save("plain.keras")
"""
GUARDED = PROGRAM + "if __name__ == '__main__':\n    train()\n"


def _package(folder: Path, files: Mapping[str, str]) -> str:
    code = folder / "my_job"
    code.mkdir()
    for name, text in files.items():
        (code / name).write_text(text)
    archive = folder / "my_job.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(code, "my_job")
    return str(archive)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a job left."""

    folder: Path
    package: str

    def model(self, name: str) -> str:
        return str(self.folder / f"{name}.keras")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    package = _package(folder, {"layers.py": LAYERS, "train.py": GUARDED})
    command = [sys.executable, "-W", "ignore", "-m", "my_job.train"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "KERAS_BACKEND": "jax"}, capture_output=True)
    return Job(folder=folder, package=package)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedModel]]:
    made: list[ServedModel] = []

    def start(model: str, **options: Any) -> ServedModel:
        made.append(ServedModel(tmp_path / "server", model, **options))
        return made[-1]

    yield start
    for each in made:
        each.close()


PROGRAM_FLAG = ("--program=my_job.train",)


@pytest.mark.heavy
def test_layers_and_functions_of_a_package_are_served(job: Job, serve: Callable[..., ServedModel]) -> None:
    assert serve(job.model("layers"), packages=[job.package]).predict([[1.0, 2.0]]) == [[3.0, 5.0]]


@pytest.mark.heavy
def test_a_model_of_the_programs_own_class_is_served(job: Job, serve: Callable[..., ServedModel]) -> None:
    server = serve(job.model("whole"), packages=[job.package], flags=PROGRAM_FLAG)
    assert server.predict([[1.0, 2.0]]) == [[11.0]]
    assert "trains" not in server.text


@pytest.mark.heavy
def test_a_model_of_keras_own_layers_needs_no_package(job: Job, serve: Callable[..., ServedModel]) -> None:
    assert serve(job.model("plain")).predict([[-1.0, 2.0]]) == [[0.0, 2.0]]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("files", "model", "said"),
    [
        (None, "layers", "it needs my_job>Scaled, my_job>plus_one, which are not Keras's; deploy it with --job"),
        ({}, "layers", "module my_job.layers of its package cannot be imported: ModuleNotFoundError: No module named"),
        (
            {"layers.py": "import sys; sys.exit(3)"},
            "layers",
            "module my_job.layers of its package cannot be imported: Sy",
        ),
        ({"layers.py": "1 / 0"}, "layers", "cannot be imported: ZeroDivisionError: division by zero"),
        (
            {"layers.py": "Scaled = 1"},
            "layers",
            "its package does not register my_job>Scaled, my_job>plus_one; put @keras",
        ),
        (
            {"layers.py": LAYERS, "train.py": PROGRAM + "train()\n"},
            "whole",
            "my_job>Whole may be defined in my_job.train, the job's program, which cannot be imported without starting",
        ),
    ],
)
def test_what_a_package_lacks_is_said_in_one_line(
    job: Job,
    serve: Callable[..., ServedModel],
    tmp_path: Path,
    files: Mapping[str, str] | None,
    model: str,
    said: str,
) -> None:
    packages = () if files is None else (_package(tmp_path, {"other.py": "", **files}),)
    end = serve(job.model(model), packages=packages, flags=PROGRAM_FLAG).await_start().end
    assert end is not None
    assert end.exit_code == ModelError.exit_code
    assert said in end.tail[-1]
    assert end.tail[-1].startswith(f"cannot load the model {job.model(model)}: ")
    assert "trains" not in " ".join(end.tail)
