"""What dead runners left is removed by its labels, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.containers import (
    ContainerSpec,
    JobLabels,
    create,
    current_runner,
    inspect,
    open_engine,
    reap,
    reap_dead,
    reap_spool,
)
from lockstep.errors import ContainerEngineError
from lockstep.testing.container_engine import FakeContainerEngine


def labels(spool: str, *, runner: str) -> JobLabels:
    return JobLabels(job="j", replica="master-replica-0", attempt=2, spool=spool, runner=runner)


def make(spool: str, *, runner: str, tmp_path: Path) -> None:
    """Makes a container and starts it as somebody would who then dies."""
    (tmp_path / "env").write_text("")
    engine = open_engine()
    spec = ContainerSpec(
        name=spool.replace("/", "_"),
        image="i",
        entry_point=("/bin/sleep", "600"),
        env_file=str(tmp_path / "env"),
        labels=labels(spool, runner=runner).to_mapping(),
        user="0:0",
        shm_bytes=1,
    )
    assert engine.call(create(engine, spec)).code == 0
    client = subprocess.Popen([engine.path, "start", "--attach", spec.name], env=dict(engine.env))
    deadline = time.monotonic() + 30
    while (state := inspect(engine, spec.name)) is None or not state.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    client.kill()
    client.wait()


def dead_runner() -> str:
    code = "from lockstep.containers import current_runner; print(current_runner())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def image(fake: FakeContainerEngine) -> FakeContainerEngine:
    fake.configure(registry={"i": "sha256:1"})
    assert open_engine().call(["pull", "i"]).code == 0
    return fake


@pytest.mark.heavy
def test_containers_of_dead_runners_go_and_those_of_living_ones_stay(
    image: FakeContainerEngine, tmp_path: Path
) -> None:
    make("/a", runner=dead_runner(), tmp_path=tmp_path)
    make("/b", runner=current_runner(), tmp_path=tmp_path)
    make("/c", runner="pid:[1] 1 elsewhere", tmp_path=tmp_path)
    assert [found.spool for found in reap_dead()] == ["/a"]
    assert {container["labels"]["lockstep.spool"] for container in image.containers()} == {"/b", "/c"}
    assert reap_dead() == []
    reap_spool("/b")
    reap_spool("/c")
    assert image.containers() == []


def test_one_that_cannot_be_removed_is_named(image: FakeContainerEngine, tmp_path: Path) -> None:
    make("/a", runner=current_runner(), tmp_path=tmp_path)
    engine = open_engine()
    image.configure(removes=False)
    with pytest.raises(ContainerEngineError, match="podman does not remove id-_a"):
        reap(engine, accept=lambda found: found.spool == "/a", timeout_s=0.5)
    image.configure(removes=True)
    assert reap(engine, accept=lambda found: found.job == "j") == [labels("/a", runner=current_runner())]


def test_without_an_engine_there_is_nothing_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert reap_dead() == []
    reap_spool("/a")


def test_labels_are_read_back() -> None:
    mine = labels("/s p", runner=current_runner())
    assert JobLabels.from_mapping(mine.to_mapping()) == mine
    assert not mine.is_orphan
    assert labels("/s", runner=dead_runner()).is_orphan
    assert JobLabels.from_mapping({"lockstep.job": "j"}) is None
