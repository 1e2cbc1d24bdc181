"""Which engine is taken, and what is said where there is none."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from lockstep.containers import ContainerEngine, EngineKind, open_engine
from lockstep.errors import ContainerEngineError
from lockstep.processes import ProcessIdentity
from lockstep.testing.container_engine import FakeContainerEngine


def path_of(*fakes: FakeContainerEngine) -> str:
    return ":".join([*(str(fake.folder) for fake in fakes), "/usr/bin", "/bin"])


def both(tmp_path: Path) -> tuple[FakeContainerEngine, FakeContainerEngine]:
    return FakeContainerEngine(tmp_path / "p"), FakeContainerEngine(tmp_path / "d", kind="docker")


def test_podman_goes_before_docker_unless_the_variable_says_otherwise(tmp_path: Path) -> None:
    path = path_of(*both(tmp_path))
    engine = open_engine({"PATH": path})
    assert (engine.kind, engine.describe(), engine.rootless) == (EngineKind.PODMAN, "podman 4.3.1", False)
    named = open_engine({"PATH": path, "LOCKSTEP_CONTAINER_ENGINE": "docker"})
    assert (named.kind, named.describe(), named.has_init) == (EngineKind.DOCKER, "docker 28.2.2", True)


def test_an_engine_that_does_not_answer_is_none(tmp_path: Path) -> None:
    podman, docker = both(tmp_path)
    podman.configure(answers=False)
    assert open_engine({"PATH": path_of(podman, docker)}).kind is EngineKind.DOCKER
    docker.configure(answers=False)
    with pytest.raises(ContainerEngineError) as caught:
        open_engine({"PATH": path_of(podman, docker)})
    text = str(caught.value)
    assert "podman does not answer: Error: Cannot connect" in text
    assert "docker does not answer" in text
    assert text.endswith("install podman or docker")


def test_a_machine_without_an_engine_says_so(tmp_path: Path) -> None:
    with pytest.raises(ContainerEngineError, match="podman is not installed; docker is not installed; install podman"):
        open_engine({"PATH": str(tmp_path)})
    with pytest.raises(ContainerEngineError, match="docker is not installed; make docker answer, or unset LOCKSTEP_"):
        open_engine({"PATH": str(tmp_path), "LOCKSTEP_CONTAINER_ENGINE": "docker"})


def test_podman_by_dockers_name_is_podman(tmp_path: Path) -> None:
    fake = FakeContainerEngine(tmp_path)
    (fake.folder / "podman").rename(fake.folder / "docker")
    env = {"PATH": path_of(fake), "LOCKSTEP_CONTAINER_ENGINE": "docker"}
    assert open_engine(env).kind is EngineKind.PODMAN


def test_its_command_sees_little_of_this_process(tmp_path: Path) -> None:
    fake = FakeContainerEngine(tmp_path)
    env = {"PATH": path_of(fake), "TOKEN": "x", "LD_PRELOAD": "y", "DOCKER_HOST": "z", "LOCKSTEP_SPOOL": "/s"}
    engine = open_engine(env)
    assert set(engine.env) == {"PATH", "DOCKER_HOST", "LOCKSTEP_SPOOL"}
    assert "z" not in repr(engine)


def test_a_call_ends_when_it_takes_too_long_or_is_cancelled(tmp_path: Path) -> None:
    fake = FakeContainerEngine(tmp_path)
    engine = open_engine({"PATH": path_of(fake)})
    fake.configure(pull_s=60)
    with pytest.raises(ContainerEngineError, match=r"podman pull did not end within 0 s"):
        engine.call(["pull", "x"], timeout_s=0.2)
    cancelled = threading.Event()
    cancelled.set()
    begun = time.monotonic()
    with pytest.raises(ContainerEngineError, match="podman pull was cancelled"):
        engine.call(["pull", "x"], cancelled=cancelled)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["too long", "cancelled"])
def test_what_its_command_started_does_not_keep_a_call(tmp_path: Path, is_cancelled: bool) -> None:
    tool = tmp_path / "podman"
    tool.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid\nwait\n")
    tool.chmod(0o755)
    engine = ContainerEngine(kind=EngineKind.PODMAN, path=str(tool), env={"PATH": "/usr/bin:/bin"})
    cancelled = threading.Event()
    outcome: list[ContainerEngineError] = []

    def call() -> None:
        try:
            engine.call(["pull", "x"], timeout_s=60.0 if is_cancelled else 0.5, cancelled=cancelled)
        except ContainerEngineError as error:
            outcome.append(error)

    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    deadline = time.monotonic() + 20
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if is_cancelled:
        cancelled.set()
    calling.join(20)
    started = ProcessIdentity.of(int((tmp_path / "pid").read_text()))
    try:
        assert outcome
        assert started is None or started.wait(timeout_s=20)
    finally:
        if started is not None:
            started.send(signal.SIGKILL)
