"""A job's Python environment at the command line: what flags name, what is found, what is refused before it is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_job_flags import parsed
from tests.runner.python_environment.wheels import index_of, make_wheel
from typer.testing import CliRunner

from lockstep.cli.app import app
from lockstep.cli.job_flags import merge_flags
from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.submission.naming import flag_name
from lockstep.submission.python_environments import describe, requirements_path, source_of
from lockstep.testing.container_engine import FakeContainerEngine


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text("import tiny; print(tiny.VERSION)")
    (folder / "needs.txt").write_text("tiny\n")
    return folder


def test_a_file_of_the_folder_is_named_by_its_path_within_it(code: Path) -> None:
    assert requirements_path(code / "needs.txt", folder=code, naming=flag_name) == "needs.txt"
    assert requirements_path(None, folder=code, naming=flag_name) is None


@pytest.mark.parametrize("folder", ["job", None])
def test_a_file_elsewhere_is_refused(code: Path, folder: str | None) -> None:
    with pytest.raises(InvalidInputError, match=r"--requirements.*--package-path|--requirements.*/job"):
        requirements_path(code.parent / "needs.txt", folder=None if folder is None else code, naming=flag_name)


def test_flags_replace_what_the_file_says() -> None:
    document = {"trainingInput": {"lockstep": {"environment": {"project": True}}}}
    asked = parse_training_input(document, source="c.yaml")
    flags = parsed("--requirements", "needs.txt")
    merged = merge_flags(asked, {**flags, "requirements": "needs.txt"})
    assert merged["lockstep"]["environment"] == {"requirements": "needs.txt"}
    assert merge_flags(asked, parsed("--no-environment"))["lockstep"]["environment"] == {"none": True}
    assert merge_flags(asked, parsed())["lockstep"]["environment"] == {"project": True}


def test_what_is_found_is_said(code: Path) -> None:
    nothing, named = PythonEnvironment(), PythonEnvironment(requirements="needs.txt")
    assert describe(source_of(code, asked=nothing, naming=flag_name), asked=nothing) == "the node's own"
    assert "needs.txt" in describe(source_of(code, asked=named, naming=flag_name), asked=named)
    (code / "requirements.txt").write_text("")
    assert "requirements.txt" in describe(source_of(code, asked=nothing, naming=flag_name), asked=nothing)
    none = PythonEnvironment(none=True)
    assert "as requested" in describe(source_of(code, asked=none, naming=flag_name), asked=none)


def test_an_image_brings_its_own_whatever_the_folder_says(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(FakeContainerEngine(tmp_path / "engine").folder), prepend=os.pathsep)
    (code / "requirements.txt").write_text("-e ./lib")  # which no environment can hold, and the image may
    flags = ["--package-path", str(code), "--module-name", "train", "--master-image-uri", "example.com/a:1"]
    result = CliRunner().invoke(app, ["submit", "j", *flags, "--dry-run"])
    assert result.exit_code == 0, result.exception
    assert "Python environment: the image's own" in result.stdout
    refused = CliRunner().invoke(app, ["submit", "j", *flags, "--requirements", str(code / "needs.txt"), "--dry-run"])
    assert "not with an imageUri" in str(refused.exception)


def test_a_file_that_is_not_packed_is_not_found_and_refused_where_it_is_named(code: Path) -> None:
    (code / "requirements.txt").write_text("")
    (code / ".lockstepignore").write_text("*.txt\n")
    assert source_of(code, asked=PythonEnvironment(), naming=flag_name) is None
    with pytest.raises(MissingInputError, match=r"needs\.txt is excluded from the package"):
        source_of(code, asked=PythonEnvironment(requirements="needs.txt"), naming=flag_name)


def test_what_no_environment_can_hold_is_refused_at_once(code: Path) -> None:
    (code / "needs.txt").write_text("-e .")
    with pytest.raises(InvalidInputError, match="editable"):
        source_of(code, asked=PythonEnvironment(requirements="needs.txt"), naming=flag_name)


def _train(code: Path, home: Path, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lockstep.cli.main", "local", "train", "--package-path", str(code)]
    return subprocess.run(
        [*command, "--module-name", "train", *flags],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "LOCKSTEP_HOME": str(home), **env},
    )


@pytest.mark.heavy
def test_a_local_run_has_the_environment_of_a_job(code: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "tiny", "1.0")
    with index_of(tmp_path / "wheels", tmp_path / "index") as (url, _):
        flags = ("--requirements", str(code / "needs.txt"))
        ended = _train(code, tmp_path / "home", *flags, UV_DEFAULT_INDEX=url)
        assert (ended.returncode, ended.stdout) == (0, "1.0\n"), ended.stderr
        (code / "needs.txt").write_text("nowhere\n")
        ended = _train(code, tmp_path / "home", *flags, UV_DEFAULT_INDEX=url)
    assert ended.returncode == 64
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("lockstep: error: the Python environment of needs.txt cannot be built: Because nowhere was")
    assert "Traceback" not in ended.stderr
