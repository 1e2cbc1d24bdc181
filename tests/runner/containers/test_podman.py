"""The runner with real containers: podman, an image of busybox, a registry on loopback."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.runner.test_shell_server import Talk
from typer.testing import CliRunner

from lockstep.cli.app import app
from lockstep.clusters.runner_process import RunnerProcess
from lockstep.jobs.running.ends import end_reason_of
from lockstep.jobs.running.order_parts import ContainerOrder
from lockstep.jobs.running.orders import (
    Fault,
    GangEnd,
    GangOutcome,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaRestart,
    ReplicaStatus,
)
from lockstep.jobs.running.supervision import order_of_next_launch
from lockstep.testing.clusters import log_lines
from lockstep.testing.podman import Podman, why_no_podman

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(why_no_podman() is not None, reason=f"real containers: {why_no_podman()}"),
]

IMAGE = "localhost/busybox:1"
TIMEOUT_S = 60.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    made = Podman(tmp_path_factory.mktemp("podman"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.env.items():
            patch.setenv(name, value)
        built = CliRunner().invoke(app, ["image", "build", str(made.busybox()), "--tag", IMAGE])
        assert built.exit_code == 0, built.output
        yield made
        made.close()


@pytest.fixture(autouse=True)
def nothing_is_left(podman: Podman) -> Iterator[None]:
    yield
    assert podman.containers() == []


def order(tmp_path: Path, script: str, *, memory_bytes: int | None = None, **changes: Any) -> ReplicaOrder:
    job = tmp_path / "bucket" / "local" / "jobs" / "j"
    spool = tmp_path / "home" / "spool" / "g" / "master-replica-0"
    spool.mkdir(parents=True)
    (tmp_path / "home" / "token").write_text("secret")
    container = ContainerOrder(
        image=IMAGE, cpus=1, memory_bytes=memory_bytes, images_folder=str(tmp_path / "home" / "images")
    )
    fields: dict[str, Any] = {
        "name": "master-replica-0",
        "role": "master",
        "index": 0,
        "job": "j",
        "command": (script,),
        "container": container,
        "spool": str(spool),
        "log_url": str(job / "logs" / "uid" / "master-replica-0"),
        "model_dir": str(job / "model"),
        "checkpoint_dir": str(job / "checkpoints"),
        "tensorboard_dir": str(job / "tensorboard"),
        "grace_s": 2.0,
    }
    return ReplicaOrder(**{**fields, **changes})


class Run:
    """A runner at work in a thread, as a launcher has it."""

    def __init__(self, asked: ReplicaOrder) -> None:
        self.runner = RunnerProcess()
        self.statuses: list[ReplicaStatus] = []
        self._thread = threading.Thread(
            target=lambda: self.statuses.append(self.runner.run(asked, report=self.statuses.append)), daemon=True
        )
        self._thread.start()

    def running(self) -> ReplicaStatus:
        return wait(lambda: next((s for s in self.statuses if s.phase is ReplicaPhase.RUNNING), None))

    def end(self) -> ProgramEnd:
        self._thread.join(TIMEOUT_S)
        end = self.statuses[-1].end
        assert end is not None
        return end


def wait(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def runner_process() -> psutil.Process:
    (found,) = [child for child in psutil.Process().children() if "lockstep.runner" in child.cmdline()]
    return found


def test_a_program_sees_its_own_and_may_little(podman: Podman, tmp_path: Path) -> None:
    script = f"""
    echo "$MINE"; id -u; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status | tr -s '\\t ' ' '
    cat {tmp_path}/home/token; ls {tmp_path}/bucket/local/jobs
    mkdir -p "$AIP_MODEL_DIR" && echo weights > "$AIP_MODEL_DIR/w" && touch "$HOME/x" && echo written
    touch {tmp_path}/bucket/local/jobs/j/logs/x || echo the log is not its own
    test -S "$LOCKSTEP_HEARTBEAT" && echo heartbeat
    exit 3
    """
    (tmp_path / "bucket" / "local" / "jobs" / "other").mkdir(parents=True)
    asked = order(tmp_path, script, environment={"MINE": "a b\nsecond line"})
    end = Run(asked).end()
    assert (end.exit_code, end.fault, end.problem) == (3, Fault.PROGRAM, None)
    lines = log_lines(asked)
    assert {"a b", "second line", str(os.geteuid()), "written", "the log is not its own", "heartbeat"} <= set(lines)
    assert {"CapEff: 0000000000000000", "CapBnd: 0000000000000000", "NoNewPrivs: 1"} <= set(lines)
    assert "secret" not in lines
    assert [line for line in lines if line in ("j", "other")] == ["j"]
    assert (tmp_path / "bucket/local/jobs/j/model/w").read_text() == "weights\n"


def test_every_line_arrives(podman: Podman, tmp_path: Path) -> None:
    asked = order(tmp_path, "seq 1 100000; seq 1 1000 >&2")
    assert Run(asked).end().exit_code == 0
    lines = log_lines(asked)
    assert len(lines) == 101_000
    assert sum(int(line) for line in lines) == 100_000 * 100_001 // 2 + 1000 * 1001 // 2


def test_more_memory_than_it_may_have_is_told(podman: Podman, tmp_path: Path) -> None:
    run = Run(order(tmp_path, "x=a; while :; do x=$x$x; done", memory_bytes=64 * MIB))
    assert (run.end().exit_code, run.end().fault, run.end().memory_limit_bytes) == (137, Fault.MEMORY, 64 * MIB)
    status = GangStatus(
        gang_id="g",
        phase=GangPhase.ENDED,
        replicas=(run.statuses[-1],),
        end=GangEnd(outcome=GangOutcome.FAILED, culprit="master-replica-0"),
    )
    assert str(end_reason_of(status)).startswith("OUT_OF_MEMORY(master-0, ")


def test_processor_time_is_the_containers(podman: Podman, tmp_path: Path) -> None:
    # Its child alone computes; then it waits until that was looked at, and says what its child used.
    script = "(i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done); sleep 1; times"
    asked = order(tmp_path, script)
    run = Run(asked)
    assert run.end().exit_code == 0
    minutes, seconds = log_lines(asked)[-1].split("s")[0].split("m")
    used_s = 60 * int(minutes) + float(seconds)
    assert used_s > 0
    usage = run.statuses[-1].usage
    assert usage.peak_memory_bytes > 0
    assert used_s - 0.05 <= usage.cpu_s < usage.wall_s + 1


@pytest.mark.parametrize("listens", [True, False])
def test_a_stop_gives_grace_and_then_none(podman: Podman, tmp_path: Path, listens: bool) -> None:
    handler = "exit 0" if listens else ":"
    asked = order(tmp_path, f"trap '{handler}' TERM; echo up; while :; do sleep 0.1; done")
    run = Run(asked)
    run.running()
    wait(lambda: "up" in log_lines(asked))
    run.runner.stop()
    end = run.end()
    assert (end.stopped, end.exit_code) == (True, 0 if listens else 137)


def test_a_container_does_not_outlive_its_killed_runner(podman: Podman, tmp_path: Path) -> None:
    run = Run(order(tmp_path, "sleep 600"))
    pid = run.running().pid
    assert pid is not None
    assert len(podman.containers()) == 1
    runner_process().kill()
    assert run.end().problem == "its runner ended too soon (SIGKILL)"
    assert podman.containers() == []
    assert not psutil.pid_exists(pid)


def test_a_container_whose_runner_was_killed_is_launched_again(podman: Podman, tmp_path: Path) -> None:
    asked = order(tmp_path, "echo first; sleep 600")
    run = Run(asked)
    run.running()
    wait(lambda: "first" in log_lines(asked))
    runner_process().kill()
    run.end()
    restart = ReplicaRestart(number=1, time_s=time.time(), reason="MACHINE_ERROR(master-0)")
    shorter = replace(asked, command=("echo second",))
    again = Run(order_of_next_launch(shorter, last=run.statuses[-1], restart=restart))
    end = again.end()
    assert end.succeeded, end
    assert again.statuses[-1].restarts == (restart,)
    lines = log_lines(asked)
    assert [line for line in lines if not line.startswith("lockstep: ")] == ["first", "second"]
    assert "lockstep: launched again (restart 1): MACHINE_ERROR(master-0)" in lines
    assert end.num_log_entries == len(lines)


def test_a_container_is_ended_when_the_command_beside_it_is_killed(podman: Podman, tmp_path: Path) -> None:
    run = Run(order(tmp_path, "sleep 600"))
    run.running()
    (client,) = [child for child in runner_process().children() if "--attach" in child.cmdline()]
    client.kill()
    end = run.end()
    assert (end.problem, end.fault) == (
        "podman's command beside its container ended unexpectedly (SIGKILL)",
        Fault.MACHINE,
    )


def test_shells_leave_no_process_that_nobody_asks_for(podman: Podman, tmp_path: Path) -> None:
    asked = order(tmp_path, "echo up; sleep 600", web_access=True)
    run = Run(asked)
    run.running()
    for _ in range(3):
        assert Talk(Path(asked.spool), "/bin/sh", "-c", "exit 3").until_over().exit_code == 3
    runner = runner_process()
    wait(lambda: [child.name() for child in runner.children() if child.name() == "conmon"] == ["conmon"])
    run.runner.stop()
    assert run.end().stopped


@pytest.mark.parametrize("entry", ["/nope", "/tmp"], ids=["absent", "a folder"])
def test_an_entry_point_that_cannot_run_is_the_users(podman: Podman, tmp_path: Path, entry: str) -> None:
    asked = order(tmp_path, "x")
    assert asked.container is not None
    container = ContainerOrder(image=IMAGE, entry_point=(entry,), images_folder=asked.container.images_folder)
    end = Run(ReplicaOrder(**{**vars(asked), "container": container})).end()
    assert end.fault is Fault.PROGRAM
    assert not end.succeeded


@pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed")
def test_an_image_is_pushed_to_a_registry_and_fetched_from_it_once(podman: Podman, tmp_path: Path) -> None:
    with podman.registry() as address:
        name = f"{address}/team/trainer:1"
        podman.run("tag", IMAGE, name)
        pushed = CliRunner().invoke(app, ["image", "push", name])
        assert pushed.exit_code == 0, pushed.output
        podman.run("untag", IMAGE, name)

        def fetched(folder: str) -> tuple[ProgramEnd, list[str]]:
            asked = order(tmp_path / folder, "echo up")
            assert asked.container is not None
            container = ContainerOrder(image=name, images_folder=str(tmp_path / "images"))
            asked = ReplicaOrder(**{**vars(asked), "container": container})
            return Run(asked).end(), log_lines(asked)

        end, lines = fetched("one")
        assert end.exit_code == 0, end
        assert any(line.startswith(f"lockstep: fetched image {name} in ") for line in lines)
    end, lines = fetched("two")
    assert end.exit_code == 0, "the registry is away: what is there is taken"
    assert any("its registry cannot be reached" in line for line in lines)
    podman.run("untag", IMAGE, name)


def test_an_image_that_no_registry_has_is_the_users_error(podman: Podman, tmp_path: Path) -> None:
    asked = order(tmp_path, "x")
    container = ContainerOrder(image="localhost/absent:1", images_folder=str(tmp_path / "images"))
    end = Run(ReplicaOrder(**{**vars(asked), "container": container})).end()
    assert "image localhost/absent:1 is not on this node" in (end.problem or "")
    assert end.fault is Fault.PROGRAM
