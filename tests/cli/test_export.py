"""`lockstep export`: from a path, a bucket or a job, and with classes of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.validating import validated
from typer.testing import CliRunner

from lockstep.cli import export
from lockstep.cli.app import app
from lockstep.cli.export import FormatName
from lockstep.errors import InvalidInputError
from lockstep.serving.exporting import Format

MODULE = """
import keras
@keras.saving.register_keras_serializable(package="mine")
class Doubled(keras.layers.Layer):
    def call(self, x):
        return x * 2
"""
SAVE = """
import lockstep
import keras
import layers_of_mine
keras.Sequential([keras.Input((2,)), layers_of_mine.Doubled()]).save("own.keras")
keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save("plain.keras")
keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x + 1)]).save("code.keras")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three models, and the module of one's layer."""
    made = tmp_path_factory.mktemp("models")
    (made / "layers_of_mine.py").write_text(MODULE)
    (made / "save.py").write_text(SAVE)
    subprocess.run([sys.executable, "save.py"], cwd=made, check=True, capture_output=True, timeout=120)
    return made


def _run(folder: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "lockstep.cli.main", "export", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == (code != 0), done.stderr
    return done.stderr if code else done.stdout


@pytest.mark.heavy
def test_a_file_of_a_folder_or_a_bucket_is_exported_beside_you(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = _run(tmp_path, f"file://{folder}/plain.keras", "--to", "stablehlo")
    assert f"exported file://{folder}/plain.keras to plain.stablehlo (stablehlo, " in out
    assert "batches of 1, 2, 7: the largest difference is " in out
    assert {each.name for each in tmp_path.iterdir()} == {"plain.stablehlo", "plain.stablehlo.json"}
    monkeypatch.chdir(tmp_path)
    again = CliRunner().invoke(app, ["export", str(folder / "plain.keras"), "--to", "stablehlo"])
    assert isinstance(again.exception, InvalidInputError)
    assert "a path that does not exist yet" in str(again.exception)


def test_classes_of_ones_own_need_the_module_that_defines_them(folder: Path) -> None:
    error = _run(folder, "own.keras", "--to", "stablehlo", code=18)
    assert "it needs mine>Doubled, which is not Keras's; name the module" in error
    module = ("--module", "layers_of_mine", "--output", "own.bin", "--json")
    out = _run(folder, "own.keras", "--to", "stablehlo", *module)
    assert validated("export", out)["path"] == "own.bin"
    assert (folder / "own.bin").exists()


@pytest.mark.heavy
def test_a_module_that_cannot_be_imported_is_named(folder: Path) -> None:
    error = _run(folder, "own.keras", "--to", "stablehlo", "--module", "nothing_of_mine", code=18)
    assert "--module: nothing_of_mine cannot be imported: ModuleNotFoundError" in error


def test_a_file_with_code_in_it_is_not_run(folder: Path) -> None:
    error = _run(folder, "code.keras", "--to", "stablehlo", code=18)
    assert "cannot load the model code.keras" in error
    assert not (folder / "code.stablehlo").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either MODEL_FILE or --job"),
        (("m.keras", "--job", "j"), "give either MODEL_FILE or --job"),
        (("m.h5",), "MODEL_FILE; received 'm.h5'; allowed: a .keras file"),
    ],
)
def test_what_names_no_model_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        CliRunner().invoke(app, ["export", *arguments, "--to", "stablehlo"], catch_exceptions=False)


class OneJob:
    """A service with a job that saved one model."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> OneJob:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def job(self, job: str) -> dict[str, Any]:
        return {"jobId": job, "lockstep": {"outputs": {"model": "/b/model", "checkpoints": "/b/checkpoints"}}}

    def job_models(self, _: str) -> list[dict[str, Any]]:
        return [{"url": self.url}, {"url": "/b/checkpoints/1.keras"}]


def test_the_model_of_a_job_is_exported(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "connect", lambda _project: OneJob(str(folder / "plain.keras")))
    for name in export._QUIET:
        monkeypatch.setenv(name, os.environ.get(name, export._QUIET[name]))
    output = tmp_path / "out"
    arguments = ["export", "--job", "j", "--to", "stablehlo", "--output", str(output)]
    assert f"plain.keras to {output}" in CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    assert output.stat().st_size > 100


def test_the_flag_has_the_formats_that_there_are() -> None:
    assert [name.value for name in FormatName] == [each.value for each in Format]
