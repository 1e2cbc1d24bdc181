"""`lockstep image build` and `push` with an engine that only acts as one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lockstep.cli.app import app
from lockstep.errors import ContainerEngineError, ImageError, InvalidInputError, LockstepError, MissingInputError
from lockstep.testing.container_engine import FakeContainerEngine

TAG = "reg.example.com/team/trainer:1"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeContainerEngine:
    made = FakeContainerEngine(tmp_path / "engine")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    monkeypatch.delenv("LOCKSTEP_CONTAINER_ENGINE", raising=False)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "program"
    made.mkdir()
    (made / "train.py").write_text("print('up')")
    (made / "requirements.txt").write_text("jax\n")
    (made / "notes.txt").write_text("x")
    (made / ".gitignore").write_text("notes.txt\n")
    (made / ".env").write_text("TOKEN=x")
    return made


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["image", *words])


def said(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.exception
    return " ".join(result.stdout.split())


def failure(*words: str) -> LockstepError:
    error = run(*words).exception
    assert isinstance(error, LockstepError)
    return error


def test_a_folder_without_a_containerfile_gets_one(fake: FakeContainerEngine, folder: Path) -> None:
    out = said("build", str(folder), "--tag", TAG, "--base", "reg.example.com/python:3")
    assert "none in the folder; generated for this build: FROM reg.example.com/python:3 WORKDIR" in out
    assert f"building {TAG} with podman 4.3.1" in out
    assert out.endswith(f"built {TAG}")
    assert "image push" not in out, "a hint is for people: on standard error, if that is a terminal"
    built = fake.built()
    assert built["files"] == ["requirements.txt", "train.py"], "what ignore files and dots leave out stays out"
    assert 'ENTRYPOINT ["python3", "-m", "train"]' in built["containerfile"]
    assert not (folder / "Containerfile").exists()
    assert fake.images() == [TAG]


@pytest.mark.parametrize("name", ["Containerfile", "Dockerfile", "other"])
def test_one_that_is_there_is_taken_as_it_is(fake: FakeContainerEngine, folder: Path, name: str) -> None:
    (folder / name).write_text("FROM scratch\n")
    (folder / ".dockerignore").write_text("train.py\n")
    flags = ("--containerfile", str(folder / name)) if name == "other" else ()
    out = said("build", str(folder), "--tag", TAG, *flags)
    assert f"Containerfile: {folder / name}" in out
    built = fake.built()
    assert built["containerfile"] == "FROM scratch\n"
    assert ".dockerignore" in built["files"], "the engine's own ignore file is the engine's business"


def test_a_dry_run_does_nothing(fake: FakeContainerEngine, folder: Path) -> None:
    out = said("build", str(folder), "--tag", TAG, "--dry-run")
    assert "FROM docker.io/library/python:3." in out
    assert f"would build {TAG}: build --tag {TAG}" in out
    assert fake.calls() == []


def test_what_cannot_be_built_is_named(fake: FakeContainerEngine, folder: Path, tmp_path: Path) -> None:
    assert "--tag is missing" in str(failure("build", str(folder)))
    assert isinstance(failure("build", str(folder), "--tag", "-x:y"), ImageError)
    assert isinstance(failure("build", str(tmp_path / "absent"), "--tag", TAG), MissingInputError)
    assert "no module 'nope'" in str(failure("build", str(folder), "--tag", TAG, "--module-name", "nope"))
    absent = failure("build", str(folder), "--tag", TAG, "--containerfile", str(folder / "absent"))
    assert "--containerfile: no file" in str(absent)
    (folder / "pyproject.toml").write_bytes(b"\xff\xfe")
    assert "pyproject.toml cannot be read: it is not text" in str(failure("build", str(folder), "--tag", TAG))
    (folder / "Containerfile").write_bytes(b"\xff\xfe")
    assert "Containerfile cannot be read: it is not text" in str(failure("build", str(folder), "--tag", TAG))
    (folder / "Containerfile").write_text("FROM scratch\n")
    both = failure("build", str(folder), "--tag", TAG, "--base", "b")
    assert isinstance(both, InvalidInputError)
    assert fake.calls() == []


def test_a_build_that_fails_says_so(fake: FakeContainerEngine, folder: Path) -> None:
    command = fake.folder / "podman"
    command.write_text(command.read_text().replace("exec ", 'test "$1" = build && exit 2\nexec '))
    assert f"podman could not build {TAG}: exit code 2" in str(failure("build", str(folder), "--tag", TAG))


def test_an_image_is_pushed(fake: FakeContainerEngine, folder: Path) -> None:
    said("build", str(folder), "--tag", TAG)
    assert f"would push {TAG} to reg.example.com: podman push {TAG}" in said("push", TAG, "--dry-run")
    assert fake.calls("push") == []
    assert f"pushed {TAG}; `lockstep submit --master-image-uri {TAG}` runs it" in said("push", TAG)
    assert fake.calls("push") == [["push", TAG]]


def test_a_push_that_cannot_be_is_told(fake: FakeContainerEngine, folder: Path) -> None:
    assert "NAME has no registry; received 'trainer'" in str(failure("push", "trainer"))
    assert f"podman has no image {TAG}; build it with" in str(failure("push", TAG))
    said("build", str(folder), "--tag", TAG)
    fake.configure(pull_error="unauthorized: authentication required")
    assert "`podman login` on each node" in str(failure("push", TAG))
    fake.configure(pull_error="dial tcp: no such host")
    assert isinstance(failure("push", TAG), ContainerEngineError)


def test_without_an_engine_it_is_said(fake: FakeContainerEngine, folder: Path) -> None:
    fake.configure(answers=False)
    assert "no container engine answers here" in str(failure("build", str(folder), "--tag", TAG))
