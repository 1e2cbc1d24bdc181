"""Each kind of version in a process under a runner: routines, exported programs, and programs compiled once."""

from __future__ import annotations

import re
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.serving.served_model import WAIT_S, ServedModel

from lockstep.serving.exporting import Format, export_model
from lockstep.serving.model import batch_sizes
from lockstep.submission.packing import stage_folder

ROUTINE = """
import pathlib
import numpy as np

class Predictor:
    def __init__(self, factor):
        self.factor = factor

    @classmethod
    def from_path(cls, model_dir):
        return cls(float(pathlib.Path(model_dir, "factor.txt").read_text()))

    def predict(self, instances, **kwargs):
        if instances == ["wrong"]:
            raise ValueError("an instance is a text of numbers")
        if instances == ["bug"]:
            return self.nothing
        if instances == ["exit"]:
            raise SystemExit(1)
        return [self.factor * np.array(text.split(), float) + kwargs.get("offset", 0) for text in instances]
"""

COMPILED = re.compile(r"compiled (\d+) programs?, and found (\d+) compiled")


@pytest.fixture
def routine_package(tmp_path: Path) -> str:
    code = tmp_path / "code"
    (code / "trainer").mkdir(parents=True)
    (code / "trainer" / "__init__.py").write_text("")
    (code / "trainer" / "predictor.py").write_text(ROUTINE)
    return stage_folder(code, staging=str(tmp_path / "bucket"))


def test_a_routine_answers_with_its_files_and_its_code_alone(tmp_path: Path, routine_package: str) -> None:
    (tmp_path / "factor.txt").write_text("2")
    factor = str(tmp_path / "factor.txt")
    server = ServedModel(tmp_path / "s", factor, packages=[routine_package], routine="trainer.predictor.Predictor")
    try:
        assert server.predict(["1 2", "3"]) == [[2.0, 4.0], [6.0]]
        assert server.post(["1"], offset=0.5).json() == {"predictions": [[2.5]]}
        assert server.post(["nan"]).json() == {"predictions": [["NaN"]]}
        wrong = server.post(["wrong"])
        assert (wrong.status_code, wrong.json()["error"]) == (
            400,
            "predictionClass trainer.predictor.Predictor failed: ValueError: an instance is a text of numbers",
        )
        bug = server.post(["bug"])
        assert bug.status_code == 500
        assert bug.json()["error"].startswith("predictionClass trainer.predictor.Predictor failed: AttributeError: ")
        assert server.post(["exit"]).status_code == 500
        assert server.post(["1"]).json() == {"predictions": [[2.0]]}, "it still answers"
    finally:
        server.close()
    assert "return self.nothing" in server.text, "the log has the traceback"


def test_a_routine_that_cannot_be_loaded_ends_the_server_with_the_reason(tmp_path: Path, routine_package: str) -> None:
    (tmp_path / "factor.txt").write_text("two")
    factor = str(tmp_path / "factor.txt")
    server = ServedModel(tmp_path / "s", factor, packages=[routine_package], routine="trainer.predictor.Predictor")
    server.await_end()
    end = server.close().end
    assert end is not None
    assert end.exit_code == 18
    assert end.tail[-1] == (
        "predictionClass trainer.predictor.Predictor: from_path failed: ValueError: could not convert string to "
        "float: 'two'"
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.mark.heavy
def test_the_second_server_of_a_version_compiles_nothing(tmp_path: Path, model_url: str) -> None:
    programs = tmp_path / "node" / "v"
    found: list[tuple[int, int]] = []
    for name in ("first", "second"):
        server = ServedModel(tmp_path / name, model_url, programs=programs)
        assert server.await_start().ready_time_s is not None
        deadline = time.monotonic() + WAIT_S
        while not (line := COMPILED.search(server.text)) or names(programs) != names(server.spool / "programs"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        found.append((int(line[1]), int(line[2])))
        server.close()
    (num_compiled, _), (num_compiled_again, num_found) = found
    assert num_compiled >= len(batch_sizes(64))
    assert (num_compiled_again, num_found) == (0, num_compiled + found[0][1])


@pytest.mark.heavy
def test_an_exported_program_answers_as_the_model_does(
    tmp_path: Path, model_url: str, image_model: keras.Model
) -> None:
    made = export_model(Path(model_url), to=Format.STABLEHLO, path=tmp_path / "net.stablehlo")
    server = ServedModel(tmp_path / "s", str(made.path))
    try:
        batch = np.random.default_rng(5).integers(0, 256, (10, 6, 4), np.uint8)
        expected = image_model.predict(batch, verbose=0)
        np.testing.assert_allclose(server.predict(batch.tolist()), expected, rtol=1e-6, atol=1e-6)
        refused = server.post([[1, 2]])
        assert refused.status_code == 400
        assert refused.json()["error"] == "instances[0]: shape; received [2]; allowed: [6, 4]"
    finally:
        server.close()
