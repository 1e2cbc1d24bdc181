"""`lockstep init`: the script that it writes trains, its configuration is a job, and nothing is overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli.init import TEMPLATES, files_of, write_files
from lockstep.errors import ConflictError, StorageWriteError
from lockstep.jobs.input.documents import parse_config
from lockstep.jobs.parsing.yaml_documents import parse_yaml
from lockstep.submission.packing import packed_files

TIMEOUT_S = 170


def lockstep(*arguments: str, folder: Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lockstep.cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "LOCKSTEP_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_files_of_a_template_are_whole(template: str, tmp_path: Path) -> None:
    files = files_of(template)
    compile(files["train.py"], "train.py", "exec")
    assert max(len(line) for line in files["train.py"].splitlines()) <= 120
    config = parse_config(parse_yaml(files["config.yaml"], source="config.yaml"), source="config.yaml")
    assert config.training_input.python_module == "train"
    write_files(tmp_path, files=files)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.keras").write_text("large")
    assert {path.name for path in packed_files(tmp_path, what="folder")} == {"train.py", "config.yaml"}


def test_nothing_is_overwritten_and_nothing_is_written_by_halves(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(ConflictError, match=r"has config\.yaml already, so nothing was written"):
        write_files(tmp_path, files=files_of("fit"))
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert (tmp_path / "config.yaml").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageWriteError):
        write_files(tmp_path / "file" / "folder", files=files_of("fit"))


def test_what_it_prints_is_a_job(tmp_path: Path) -> None:
    shown = lockstep("init", "my job", folder=tmp_path)
    lines = [line.strip() for line in shown.splitlines()]
    (submit,) = [line for line in lines if line.startswith("lockstep submit")]
    assert submit == "lockstep submit first_job --package-path 'my job' --config 'my job/config.yaml'"
    asked = ["submit", "first_job", "--package-path", "my job", "--config", "my job/config.yaml", "--dry-run"]
    preview = lockstep(*asked, folder=tmp_path)
    assert "n1-standard-4" in preview
    assert "-m train" in preview
    assert "already" in lockstep("init", "my job", folder=tmp_path, code=11)
    assert "did you mean 'loop'" in lockstep("init", "x", "--template", "lop", folder=tmp_path, code=64)


@pytest.mark.heavy
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_script_trains_here_as_it_was_written(template: str, tmp_path: Path) -> None:
    lockstep("init", "my_job", "--template", template, folder=tmp_path)
    lockstep("local", "train", "--package-path", "my_job", "--module-name", "train", folder=tmp_path)
    assert list((tmp_path / "my_job" / "model").glob("*.keras"))


@pytest.mark.heavy
def test_the_script_trains_on_several_replicas_as_it_was_written(tmp_path: Path) -> None:
    lockstep("init", "my_job", folder=tmp_path)
    flags = ["--distributed", "--worker-count", "1", "--parameter-server-count", "0", "--start-port", "28410"]
    asked = ["local", "train", "--package-path", "my_job", "--module-name", "train", *flags]
    shown = lockstep(*asked, "--", "--epochs", "1", folder=tmp_path)
    assert "model saved" in shown
