"""The runner with a program in a container, by an engine that only acts as one: real processes, no isolation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.runner.test_shell_server import Talk

from lockstep.clusters.runner_process import RunnerProcess
from lockstep.errors import ContainerEngineError
from lockstep.jobs.running.ends import end_reason_of
from lockstep.jobs.running.order_parts import ContainerOrder
from lockstep.jobs.running.orders import (
    ORDER,
    Fault,
    GangEnd,
    GangOutcome,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaStatus,
)
from lockstep.jobs.running.shell_frames import FrameKind, Terminal
from lockstep.runner.containers import ContainerRun
from lockstep.spools import RUNNER_LOG, STATUS_FILE
from lockstep.storage import open_bucket
from lockstep.testing.container_engine import FakeContainerEngine

IMAGE = "reg.example.com/trainer:1"
TIMEOUT_S = 30.0


def order(tmp_path: Path, *command: str, image: str = IMAGE, replica: int = 0, **changes: object) -> ReplicaOrder:
    name = f"worker-replica-{replica}"
    spool = tmp_path / "spool" / "gang" / name
    (spool / "work").mkdir(parents=True)
    fields: dict[str, object] = {
        "name": name,
        "role": "worker",
        "index": replica,
        "cluster": {"worker": tuple(f"127.0.0.1:{2222 + index}" for index in range(replica + 1))},
        "job": "j",
        "command": command,
        "container": ContainerOrder(image=image, entry_point=("/bin/sh", "-c"), images_folder=str(tmp_path / "images")),
        "spool": str(spool),
        "log_url": str(tmp_path / "logs" / name),
        "grace_s": 1.0,
    }
    return ReplicaOrder(**{**fields, **changes})  # type: ignore[arg-type]


class Run:
    """A runner at work in a thread, as a launcher has it."""

    def __init__(self, asked: ReplicaOrder) -> None:
        self.runner = RunnerProcess()
        self.statuses: list[ReplicaStatus] = []
        self._thread = threading.Thread(target=self._run, args=(asked,), daemon=True)
        self._thread.start()

    def _run(self, asked: ReplicaOrder) -> None:
        self.statuses.append(self.runner.run(asked, report=self.statuses.append))

    def until(self, condition: Callable[[ReplicaStatus], bool]) -> ReplicaStatus:
        return wait(lambda: next((status for status in self.statuses if condition(status)), None))

    def running(self) -> ReplicaStatus:
        return self.until(lambda status: status.phase is ReplicaPhase.RUNNING)

    def end(self) -> ProgramEnd:
        self._thread.join(TIMEOUT_S)
        end = self.statuses[-1].end
        assert end is not None
        return end


def wait(look: Callable[[], object]):
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def runner_process() -> psutil.Process:
    (runner,) = [child for child in psutil.Process().children() if "lockstep.runner" in child.cmdline()]
    return runner


def log(asked: ReplicaOrder) -> list[tuple[str, str]]:
    bucket = open_bucket(asked.log_url)
    lines = [json.loads(line) for item in bucket.list() for line in bucket.read(item.key).splitlines()]
    return [(line["stream"], line["text"]) for line in lines]


def is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(autouse=True)
def nothing_is_left(fake: FakeContainerEngine) -> Iterator[None]:
    yield
    assert fake.containers() == []


def test_a_program_runs_to_its_end_with_its_streams_apart(fake: FakeContainerEngine, tmp_path: Path) -> None:
    asked = order(tmp_path, 'echo one; echo two >&2; echo "$MINE"; exit 3', environment={"MINE": "a b"})
    end = Run(asked).end()
    assert (end.exit_code, end.problem, end.fault, end.succeeded) == (3, None, Fault.PROGRAM, False)
    lines = log(asked)
    assert [text for stream, text in lines if stream == "stdout"] == ["one", "a b"]
    assert [text for stream, text in lines if stream == "stderr" and not text.startswith("lockstep: ")] == ["two"]
    assert f"lockstep: fetching image {IMAGE} with podman 4.3.1" in [text for _, text in lines]
    assert {path.name for path in Path(asked.spool).iterdir()} == {STATUS_FILE, RUNNER_LOG}
    ((_, *created),) = fake.calls("create")
    assert "a b" not in " ".join(created)


@pytest.mark.heavy
def test_replicas_of_a_start_fetch_their_image_once(fake: FakeContainerEngine, tmp_path: Path) -> None:
    fake.configure(pull_s=0.3)
    runs = [Run(order(tmp_path, "echo up", replica=index)) for index in range(3)]
    assert [run.end().exit_code for run in runs] == [0, 0, 0]
    assert len(fake.calls("pull")) == 1


@pytest.mark.parametrize(
    ("problem", "image", "fault", "text"),
    [
        (
            None,
            "reg.example.com/absent:1",
            Fault.PROGRAM,
            "image reg.example.com/absent:1: podman says: .*manifest unk",
        ),
        ("dial tcp: connection refused", IMAGE, Fault.MACHINE, "its registry cannot be reached; podman says: dial tcp"),
    ],
    ids=["unknown", "unreachable"],
)
def test_an_image_that_cannot_be_had(
    fake: FakeContainerEngine, tmp_path: Path, problem: str | None, image: str, fault: Fault, text: str
) -> None:
    fake.configure(pull_error=problem)
    end = Run(order(tmp_path, "echo up", image=image)).end()
    assert end.fault is fault
    assert re.search(text, end.problem or "")


def test_a_node_without_an_engine_is_not_the_jobs_fault(
    fake: FakeContainerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    end = Run(order(tmp_path, "echo up")).end()
    assert end.fault is Fault.MACHINE
    assert "install podman or docker" in (end.problem or "")


def test_an_entry_point_that_is_not_there_is_the_users(fake: FakeContainerEngine, tmp_path: Path) -> None:
    asked = order(tmp_path)
    assert asked.container is not None
    container = ContainerOrder(image=IMAGE, entry_point=("/nope",), images_folder=asked.container.images_folder)
    end = Run(ReplicaOrder(**{**vars(asked), "container": container})).end()
    assert end.fault is Fault.PROGRAM
    assert f"image {IMAGE}: its entry point cannot be run: exec: " in (end.problem or "")


def test_a_program_that_the_system_starved(fake: FakeContainerEngine, tmp_path: Path) -> None:
    fake.configure(starves=True)
    run = Run(order(tmp_path, "kill -9 $$"))
    assert (run.end().exit_code, run.end().fault) == (137, Fault.MEMORY)
    status = GangStatus(
        gang_id="g",
        phase=GangPhase.ENDED,
        replicas=(run.statuses[-1],),
        end=GangEnd(outcome=GangOutcome.FAILED, culprit="worker-replica-0"),
    )
    assert str(end_reason_of(status)).startswith("OUT_OF_MEMORY(worker-0, ")


def test_what_its_watcher_has_seen_counts_where_the_engine_does_not_say_it(
    fake: FakeContainerEngine, tmp_path: Path
) -> None:
    """Podman 4's watcher leaves a note in the folder where it was started, and podman looks for it in another one."""
    end = Run(order(tmp_path, f"touch '{tmp_path}/spool/gang/worker-replica-0/oom'; kill -9 $$")).end()
    assert (end.exit_code, end.fault) == (137, Fault.MEMORY)


def test_a_stop_gives_the_program_its_grace(fake: FakeContainerEngine, tmp_path: Path) -> None:
    asked = order(tmp_path, "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    run = Run(asked)
    run.running()
    wait(lambda: ("stdout", "up") in log(asked))
    run.runner.stop()
    end = run.end()
    assert (end.stopped, end.exit_code) == (True, 0)
    assert ("stdout", "told") in log(asked)


def test_one_that_does_not_listen_is_killed(fake: FakeContainerEngine, tmp_path: Path) -> None:
    asked = order(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.05; done")
    run = Run(asked)
    pid = run.running().pid
    wait(lambda: ("stdout", "up") in log(asked))
    run.runner.stop()
    end = run.end()
    assert (end.stopped, end.exit_code) == (True, 137)
    assert pid is not None
    assert is_over(pid)


def test_a_stop_while_the_image_is_fetched_ends_the_fetch(fake: FakeContainerEngine, tmp_path: Path) -> None:
    fake.configure(pull_s=600)
    run = Run(order(tmp_path, "echo up"))
    wait(lambda: fake.calls("pull"))
    run.runner.stop()
    end = run.end()
    assert (end.stopped, end.problem) == (True, "stopped before its program started")
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]


def test_what_is_discarded_before_it_is_begun_is_never_made(fake: FakeContainerEngine, tmp_path: Path) -> None:
    run = ContainerRun(order(tmp_path, "echo up"), report_line=print)
    run.discard()
    with pytest.raises(ContainerEngineError, match="cancelled"):
        run.prepare([])
    assert fake.calls() == []


def test_a_container_does_not_outlive_its_killed_runner(fake: FakeContainerEngine, tmp_path: Path) -> None:
    run = Run(order(tmp_path, "sleep 600"))
    pid = run.running().pid
    assert pid is not None
    runner_process().kill()
    end = run.end()
    assert (end.problem, end.fault) == ("its runner ended too soon (SIGKILL)", Fault.MACHINE)
    assert is_over(pid)


def test_a_container_is_ended_when_the_command_beside_it_is_killed(fake: FakeContainerEngine, tmp_path: Path) -> None:
    run = Run(order(tmp_path, "sleep 600"))
    pid = run.running().pid
    assert pid is not None
    (client,) = wait(
        lambda: [child for child in runner_process().children() if child.is_running() and "start" in child.cmdline()]
    )
    client.kill()
    end = run.end()
    assert (end.problem, end.fault) == (
        "podman's command beside its container ended unexpectedly (SIGKILL)",
        Fault.MACHINE,
    )
    wait(lambda: is_over(pid))


def test_a_shell_opens_in_the_container(fake: FakeContainerEngine, tmp_path: Path) -> None:
    asked = order(tmp_path, "echo up; sleep 600", web_access=True, environment={"COLOUR": "blue"})
    run = Run(asked)
    wait(lambda: ("stdout", "up") in log(asked))
    spool = Path(asked.spool)
    talk = Talk(spool, "/bin/sh", "-c", "echo $COLOUR; cat; exit 3")
    talk.send(FrameKind.INPUT, b"typed\n")
    talk.send(FrameKind.INPUT_END)
    assert talk.until_over().exit_code == 3
    assert talk.output == b"blue\ntyped\n"
    screen = Talk(spool, terminal=Terminal(kind="dumb", num_rows=10, num_columns=40))
    screen.send(FrameKind.INPUT, b"echo $TERM-$COLOUR; exit\n")
    assert screen.until_over().exit_code == 0
    assert b"dumb-blue" in screen.output
    assert len(fake.calls("exec")) == 2
    left = Talk(spool, "/bin/sleep", "600")
    wait(lambda: len(fake.calls("exec")) == 3)
    run.runner.stop()
    assert run.end().stopped
    assert left.until_over().exit_code is None


def test_a_runner_removes_what_an_earlier_one_left(fake: FakeContainerEngine, tmp_path: Path) -> None:
    left = order(tmp_path, "sleep 600", replica=7)
    code = (
        "import sys; from lockstep.jobs.running.orders import ORDER;"
        "from lockstep.runner.containers import ContainerRun;"
        "run = ContainerRun(ORDER.validate_json(sys.stdin.read()), report_line=print); run.prepare([]);"
        "run.start(on_end=print); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", code], input=ORDER.dump_json(left), check=False, env=os.environ)
    assert died.returncode == -signal.SIGKILL
    (container,) = fake.containers()
    assert Run(order(tmp_path, "echo up")).end().exit_code == 0
    assert is_over(container["state"]["Pid"])
