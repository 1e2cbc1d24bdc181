"""`lockstep local train --image-uri` with an engine that only acts as one: none of its containers is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.testing.container_engine import FakeContainerEngine

IMAGE = "reg.example.com/trainer:1"
TIMEOUT_S = 30.0


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeContainerEngine]:
    made = FakeContainerEngine(tmp_path / "engine")
    made.configure(registry={IMAGE: "sha256:1"})
    yield made
    wait_until(lambda: made.containers() == [])
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.fixture
def start(fake: FakeContainerEngine, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "tmp").mkdir()

    def run(*arguments: str) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "PATH": f"{fake.folder}:/usr/bin:/bin",
            "LOCKSTEP_HOME": str(tmp_path / "home"),
            "TMPDIR": str(tmp_path / "tmp"),
        }
        command = [sys.executable, "-m", "lockstep.cli.main", "local", "train", *arguments]
        started.append(
            subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_image_runs_by_itself_with_the_jobs_environment(start, fake: FakeContainerEngine, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    script = 'echo "$AIP_MODEL_DIR"; echo why >&2; exit 3'
    out = tmp_path / "out"
    # the fake's image runs /bin/sh
    process = start("--image-uri", IMAGE, "--job-dir", str(out), "--", "-c", script, f"--data={data}")
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout) == (3, f"{out}/model\n")
    assert "why\n" in stderr
    assert f"fetching image {IMAGE} with podman" in stderr
    ((*_, create),) = [fake.calls("create")]
    mounts = [word for word in create if word.startswith("type=bind")]
    assert f"type=bind,source={out},target={out}" in mounts
    assert f"type=bind,source={data},target={data},readonly" in mounts


def test_a_module_runs_in_an_image(start, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "task.py").write_text("import os, sys; print(os.getcwd(), sys.argv[1:])")
    process = start("--image-uri", IMAGE, "--package-path", str(folder), "--module-name", "task", "--", "a")
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, stdout) == (0, f"{folder} ['a']\n"), stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_no_container_outlives_the_command(start, fake: FakeContainerEngine, number: signal.Signals) -> None:
    process = start("--image-uri", IMAGE, "--", "-c", "echo up; sleep 600")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == (130 if number is signal.SIGINT else -number)
    wait_until(lambda: fake.containers() == [])


def test_what_does_not_fit_together_is_refused(start) -> None:
    for arguments, message in (
        ((), "--module-name is missing; allowed: a module, or --image-uri"),
        (("--image-uri", "A b"), "--image-uri; received 'A b'"),
    ):
        process = start(*arguments)
        assert message in process.communicate(timeout=TIMEOUT_S)[1]
        assert process.returncode != 0
