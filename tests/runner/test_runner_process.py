"""The runner as a real process: what it reports, what it keeps, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lockstep.jobs.running.orders import (
    ORDER,
    SPOOL_VARIABLE,
    STATUS,
    Fault,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaStatus,
)
from lockstep.processes import ProcessIdentity, find_marked
from lockstep.runner.logs import upload_leftovers
from lockstep.spools import SHELL_SOCKET, STATUS_FILE, forget_status
from lockstep.storage import open_bucket
from lockstep.submission.packing import stage_folder


class RunnerProcess:
    """A started ``python -m lockstep.runner``."""

    def __init__(self, order: ReplicaOrder) -> None:
        env = {**os.environ, "SECRET_OF_THE_NODE": "x", "RAY_AUTH_TOKEN": "y"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lockstep.runner"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
        )
        assert self.process.stdin is not None
        self.process.stdin.write(ORDER.dump_json(order) + b"\n")
        self.process.stdin.flush()

    def reports(self) -> Iterator[ReplicaStatus]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield STATUS.validate_json(line)

    def wait_for(self, phase: ReplicaPhase) -> ReplicaStatus:
        return next(status for status in self.reports() if status.phase is phase)

    def last(self) -> ReplicaStatus:
        statuses = list(self.reports())
        assert self.process.wait(20) == 0
        return statuses[-1]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


def _order(tmp_path: Path, *command: str, **changes: object) -> ReplicaOrder:
    fields: dict[str, object] = {
        "name": "master-replica-0",
        "role": "master",
        "index": 0,
        "job": "j",
        "command": command,
        "spool": str(tmp_path / "spool"),
        "log_url": str(tmp_path / "log"),
        "grace_s": 2.0,
    }
    (tmp_path / "spool" / "work").mkdir(parents=True)
    return ReplicaOrder(**{**fields, **changes})  # type: ignore[arg-type]


def _log(tmp_path: Path) -> list[dict[str, object]]:
    bucket = open_bucket(str(tmp_path / "log"))
    return [json.loads(line) for item in bucket.list() for line in bucket.read(item.key).splitlines()]


def _await_log(tmp_path: Path) -> None:
    deadline = time.monotonic() + 30
    while not _log(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _run(order: ReplicaOrder) -> ReplicaStatus:
    runner = RunnerProcess(order)
    try:
        return runner.last()
    finally:
        runner.close()


def test_a_program_is_run_to_its_end_and_its_log_kept(tmp_path: Path) -> None:
    script = "import sys; print('one'); print('two', file=sys.stderr); print('a\\rb'); sys.stdout.write('no end')"
    status = _run(_order(tmp_path, sys.executable, "-c", script))
    assert status.phase is ReplicaPhase.ENDED
    assert status.end is not None
    assert status.end.succeeded
    assert status.end.num_log_entries == 4
    assert status.usage.cpu_s > 0
    assert status.usage.peak_memory_bytes > 1_000_000
    assert status.started_time_s is not None
    assert status.ended_time_s is not None
    assert status.ended_time_s >= status.started_time_s
    log = _log(tmp_path)
    assert [entry["seq"] for entry in log] == [0, 1, 2, 3]
    assert sorted(str(entry["text"]) for entry in log) == ["b", "no end", "one", "two"]
    assert {entry["text"]: entry["stream"] for entry in log}["two"] == "stderr"
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [STATUS_FILE]
    forget_status(tmp_path / "spool")
    assert not (tmp_path / "spool").exists()


def test_many_lines_are_numbered_without_gap(tmp_path: Path) -> None:
    status = _run(_order(tmp_path, sys.executable, "-c", "for i in range(50_000): print(i)"))
    assert status.end is not None
    assert status.end.num_log_entries == 50_000
    log = _log(tmp_path)
    assert [entry["seq"] for entry in log] == list(range(50_000))
    assert [entry["text"] for entry in log] == [str(i) for i in range(50_000)]
    assert status.end.tail == tuple(str(i) for i in range(49_980, 50_000))


@pytest.fixture
def starved_group() -> Iterator[Path]:
    """A control group that gives its processes little memory."""
    memory = Path("/sys/fs/cgroup/memory")
    group = (memory if memory.exists() else memory.parent) / f"lockstep-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if memory.exists() else "memory.max")).write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    group.rmdir()


def test_a_program_that_the_system_killed_for_want_of_memory_says_so(tmp_path: Path, starved_group: Path) -> None:
    script = f"""
import pathlib, os
pathlib.Path("{starved_group}/cgroup.procs").write_text(str(os.getpid()))
held = [bytearray(b"x" * (1 << 20)) for _ in range(500)]
"""
    end = _run(_order(tmp_path, sys.executable, "-c", script)).end
    assert end is not None
    assert (end.signal, end.fault) == ("SIGKILL", Fault.MEMORY)
    assert end.memory_limit_bytes > 64 << 20  # the runner's own: the program had put itself elsewhere


def test_a_traceback_is_one_entry_with_its_severity(tmp_path: Path) -> None:
    script = """if True:
        import logging, warnings
        logging.warning("beware")
        warnings.warn_explicit("careful", UserWarning, "x.py", 3)
        print("step 1", flush=True)
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise ValueError("two\\nlines") from error
    """
    _run(_order(tmp_path, sys.executable, "-c", script))
    by_text = {str(entry["text"]): entry["severity"] for entry in _log(tmp_path)}
    traceback = next(text for text in by_text if text.startswith("Traceback"))
    assert traceback.endswith("ValueError: two\nlines")
    assert traceback.count("Traceback (most recent call last):") == 2
    assert by_text == {
        "WARNING:root:beware": "WARNING",
        "x.py:3: UserWarning: careful": "WARNING",
        "step 1": "DEFAULT",
        traceback: "ERROR",
    }


def test_a_runner_that_is_killed_leaves_every_line_up_to_one_and_none_twice(tmp_path: Path) -> None:
    runner = RunnerProcess(
        _order(tmp_path, sys.executable, "-c", "import itertools\nfor i in itertools.count(): print(i)")
    )
    pid = runner.wait_for(ReplicaPhase.RUNNING).pid
    assert pid is not None
    program = psutil.Process(pid)
    deadline = time.monotonic() + 20
    while len(list(open_bucket(str(tmp_path / "log")).list())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    runner.process.kill()
    runner.close()
    program.wait(20)  # nobody reads its output any more
    log = _log(tmp_path)
    assert [entry["seq"] for entry in log] == list(range(len(log)))
    assert [entry["text"] for entry in log] == [str(i) for i in range(len(log))]


def test_an_exit_code_is_told(tmp_path: Path) -> None:
    status = _run(_order(tmp_path, sys.executable, "-c", "print('last words'); raise SystemExit(3)"))
    assert status.end is not None
    assert (status.end.exit_code, status.end.describe()) == (3, "exit code 3")
    assert status.end.tail == ("last words",)


def test_a_killed_program_is_told_by_its_signal(tmp_path: Path) -> None:
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", "import time; print('up'); time.sleep(600)"))
    pid = runner.wait_for(ReplicaPhase.RUNNING).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    status = runner.last()
    runner.close()
    assert status.end is not None
    assert status.end.describe() == "killed by SIGKILL"


def test_a_program_that_cannot_start_is_told(tmp_path: Path) -> None:
    status = _run(_order(tmp_path, "/no/such/program"))
    assert status.end is not None
    assert status.end.problem is not None
    assert "/no/such/program" in status.end.problem
    assert any("could not" in str(e["text"]) or "/no/such" in str(e["text"]) for e in _log(tmp_path))


def test_missing_code_is_told_with_its_url(tmp_path: Path) -> None:
    url = str(tmp_path / "absent.tar.gz")
    status = _run(_order(tmp_path, "-m", "train", packages=(url,)))
    assert status.end is not None
    assert url in (status.end.problem or "")


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("told to end", flush=True))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
while True: time.sleep(0.1)
"""


@pytest.mark.parametrize("how", ["stop", "engine gone"])
def test_a_stop_ends_the_program_with_its_children(tmp_path: Path, how: str) -> None:
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", STUBBORN))
    assert runner.process.stdin is not None
    running = runner.wait_for(ReplicaPhase.RUNNING)
    assert running.pid is not None
    program = psutil.Process(running.pid)
    next(status for status in runner.reports() if program.children())
    family = [program, *program.children(recursive=True)]
    assert len(family) == 2
    if how == "stop":
        runner.process.stdin.write(b"stop\n")
        runner.process.stdin.flush()
    else:
        runner.process.stdin.close()
    status = runner.last()
    runner.close()
    assert status.end is not None
    assert status.end.stopped
    assert status.end.signal == "SIGKILL"
    # A zombie has ended; whoever adopted it has only not asked for its exit code yet.
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)
    assert "told to end" in [entry["text"] for entry in _log(tmp_path)]


def test_a_signal_to_the_runner_does_not_cut_the_log(tmp_path: Path) -> None:
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", "import time; time.sleep(1); print('done')"))
    runner.wait_for(ReplicaPhase.RUNNING)
    runner.process.send_signal(signal.SIGTERM)
    status = runner.last()
    runner.close()
    assert status.end is not None
    assert status.end.succeeded
    assert [entry["text"] for entry in _log(tmp_path)] == ["done"]


def test_a_program_sees_the_contract_and_not_the_node(tmp_path: Path) -> None:
    order = _order(
        tmp_path,
        sys.executable,
        "-c",
        "import json, os; print(json.dumps(dict(os.environ)))",
        cluster={"master": ("a:1",), "worker": ("b:2",)},
        environment={"MINE": "1"},
        model_dir="gs://b/model",
        accelerator_type="NVIDIA_TESLA_V100",
        accelerator_count=2,
        simulated=True,
    )
    assert _run(order).end is not None
    env = json.loads(str(_log(tmp_path)[0]["text"]))
    assert json.loads(env["TF_CONFIG"])["cluster"] == {"master": ["a:1"], "worker": ["b:2"]}
    assert env["AIP_MODEL_DIR"] == "gs://b/model"
    assert env["MINE"] == "1"
    assert (env["JAX_PLATFORMS"], env["JAX_NUM_CPU_DEVICES"]) == ("cpu", "2")
    assert int(env["NPROC"]) >= 4
    assert "SECRET_OF_THE_NODE" not in env
    assert not [name for name in env if name.startswith("RAY_")]


@pytest.mark.parametrize("how", ["stop", "engine gone"])
def test_a_runner_that_waits_for_its_code_can_be_stopped(tmp_path: Path, how: str) -> None:
    os.mkfifo(tmp_path / "silent.tar.gz")  # reads of it do not return: a bucket that does not answer
    runner = RunnerProcess(_order(tmp_path, "-m", "x", packages=(str(tmp_path / "silent.tar.gz"),)))
    assert runner.process.stdin is not None
    runner.wait_for(ReplicaPhase.SETUP)
    if how == "stop":
        runner.process.stdin.write(b"stop\n")
        runner.process.stdin.flush()
    else:
        runner.process.stdin.close()
    status = runner.last()
    runner.close()
    assert status.end is not None
    assert status.end.stopped
    assert status.end.problem == "stopped before its program started"


@pytest.mark.parametrize("num_runs", [3, pytest.param(20, marks=pytest.mark.heavy)])
def test_a_program_that_ends_at_once_is_told_as_it_ended(tmp_path: Path, num_runs: int) -> None:
    for number in range(num_runs):
        status = _run(_order(tmp_path / str(number), "/bin/echo", "gone"))
        assert status.end is not None
        assert (status.end.exit_code, status.end.problem, status.end.num_log_entries) == (0, None, 1)


def test_a_command_that_cannot_be_is_told(tmp_path: Path) -> None:
    status = _run(_order(tmp_path, sys.executable, "-c", "print(\0)"))
    assert status.end is not None
    assert "null byte" in (status.end.problem or "")


DETACHING = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
"""


def test_a_detached_child_does_not_outlive_the_job(tmp_path: Path) -> None:
    status = _run(_order(tmp_path, sys.executable, "-c", DETACHING))
    assert status.end is not None
    assert status.end.succeeded
    pid = int(status.end.tail[0])
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_program_that_ends_well_when_told_to_stop_did_not_succeed(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0));"
        "print('up', flush=True); time.sleep(600)"
    )
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", script))
    assert runner.process.stdin is not None
    runner.wait_for(ReplicaPhase.RUNNING)
    _await_log(tmp_path)
    runner.process.stdin.write(b"stop\n")
    runner.process.stdin.flush()
    status = runner.last()
    runner.close()
    assert status.end is not None
    assert (status.end.exit_code, status.end.stopped, status.end.succeeded) == (0, True, False)


def test_garbage_instead_of_an_order_is_one_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "lockstep.runner"], input=b"{}\n", capture_output=True, timeout=30, check=False
    )
    assert result.returncode == 64
    assert result.stderr.decode().startswith("lockstep.runner: not a replica order")
    assert len(result.stderr.splitlines()) == 1


FORKING = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["/bin/sh", "-c", "while :; do sleep 600 & sleep 0.002; done"], start_new_session=True)
"""


def _marked(tmp_path: Path) -> list[ProcessIdentity]:
    return find_marked(SPOOL_VARIABLE, accept=lambda mark: mark.startswith(str(tmp_path)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"web_access": True}, id="no socket"),
        pytest.param({"metrics_url": "nowhere://x"}, id="no place for metrics", marks=pytest.mark.heavy),
    ],
)
def test_a_program_does_not_go_on_where_something_beside_it_failed(tmp_path: Path, change: dict[str, object]) -> None:
    order = _order(tmp_path, sys.executable, "-c", "import time; time.sleep(600)", **change)
    (tmp_path / "spool" / SHELL_SOCKET).mkdir()
    status = _run(order)
    assert status.end is not None
    assert "could not run the program" in (status.end.problem or "")
    assert _marked(tmp_path) == []


@pytest.mark.heavy
def test_what_starts_others_while_it_is_ended_does_not_outlive_the_job(tmp_path: Path) -> None:
    assert _run(_order(tmp_path, sys.executable, "-c", FORKING)).end is not None
    assert _marked(tmp_path) == []


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that has room for a runner's own files, and for little more."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here: it takes root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.heavy
def test_a_disk_that_is_full_is_not_the_programs_fault(tmp_path: Path, full_disk: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "large").write_bytes(os.urandom(1 << 20))
    url = stage_folder(code, staging=str(tmp_path / "bucket"))
    status = _run(_order(tmp_path, "-m", "x", packages=(url,), spool=str(full_disk)))
    assert status.end is not None
    assert "No space left on device" in (status.end.problem or "")
    assert status.end.fault is Fault.MACHINE


@pytest.mark.heavy  # a bucket that refuses is asked for some seconds
def _said(tmp_path: Path) -> ReplicaStatus:
    return STATUS.validate_json((tmp_path / "spool" / STATUS_FILE).read_bytes())


def test_how_a_program_ended_stays_on_the_node_where_nobody_hears_it(tmp_path: Path) -> None:
    """As after the death of the engine: nobody reads what the runner says, and its standard input has ended."""
    script = "import time; print('up', flush=True); time.sleep(600)"
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", script))
    running = runner.wait_for(ReplicaPhase.RUNNING)
    _await_log(tmp_path)
    assert _said(tmp_path).started_time_s == running.started_time_s
    assert ((tmp_path / "spool" / STATUS_FILE).stat().st_mode & 0o777) == 0o600
    assert runner.process.stdin is not None
    assert runner.process.stdout is not None
    runner.process.stdout.close()
    before_s = time.time()
    runner.process.stdin.close()
    runner.process.wait(20)
    said = _said(tmp_path)
    assert said.end is not None
    assert (said.end.stopped, said.end.signal, said.end.num_log_entries) == (True, "SIGTERM", 1)
    assert said.ended_time_s is not None
    assert before_s <= said.ended_time_s <= time.time()


def test_a_runner_says_on_its_node_how_long_its_program_ran(tmp_path: Path) -> None:
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", "import time; time.sleep(600)"))
    first = runner.wait_for(ReplicaPhase.RUNNING)
    assert first.seen_time_s is not None
    deadline = time.monotonic() + 30
    while (_said(tmp_path).seen_time_s or 0.0) < first.seen_time_s + 1.0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (_said(tmp_path).seen_time_s or 0.0) <= time.time()
    runner.close()


def test_only_what_is_not_carried_yet_stays_on_the_node(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file, where the bucket should be")
    order = _order(tmp_path, sys.executable, "-c", "print('kept')")
    (tmp_path / "spool" / "home").mkdir()
    (tmp_path / "spool" / "home" / "credentials").touch()
    (tmp_path / "spool" / "link").symlink_to(tmp_path)
    _run(order)
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == ["log", STATUS_FILE]
    (tmp_path / "log").unlink()
    assert upload_leftovers(tmp_path / "spool" / "log") == 1
    assert [entry["text"] for entry in _log(tmp_path)] == ["kept"]
