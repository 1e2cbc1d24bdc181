"""A real service with a real engine, driven by the command line: what happens when each part of it dies.

One service serves all tests of this folder, in their order; each leaves it up.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from lockstep.testing.machine import ENTRY, TIMEOUT_S, Machine


def _over(job: dict[str, Any]) -> bool:
    return job["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")


def _running(job: dict[str, Any]) -> bool:
    return job["state"] == "RUNNING" and job["lockstep"]["replicas"][0]["pid"] is not None


def _expected(lines: int) -> list[str]:
    return [*(f"line {number}" for number in range(lines)), "end"]


def test_the_home_is_its_owners_alone(machine: Machine) -> None:
    assert stat.S_IMODE(machine.home.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(machine.home.token.stat().st_mode) == 0o600
    assert machine.home.token.read_text() not in machine.home.service_log.read_text()
    out = machine.run("status")
    assert str(machine.home.path) in out
    assert "simulated" in out


def test_a_job_is_streamed_and_summed_up(machine: Machine) -> None:
    out = machine.run(
        *("submit", "streamed", *machine.package(), "--scale-tier", "CUSTOM"),
        *("--master-machine-type", "n1-standard-8", "--master-accelerator", "count=2,type=NVIDIA_TESLA_V100"),
        *("--", "5", "0"),
    )
    assert "line 4" in out
    assert "job streamed: SUCCEEDED (simulated)" in out
    assert "nothing owed" in out
    assert "n1-standard-8 + 2 x NVIDIA_TESLA_V100 (simulated)" in out
    assert "streamed" in machine.run("jobs", "--filter", "jobId:stream*")
    assert "(simulated)" in machine.run("jobs")
    assert json.loads(machine.run("describe", "streamed", "--json"))["trainingOutput"]["consumedMLUnits"] >= 0


def test_a_dry_run_asks_the_service_and_leaves_nothing(machine: Machine) -> None:
    out = machine.run(
        "submit", "tried", *machine.package(), "--dry-run", "--staging-bucket", "/nowhere", "--", "5", "0"
    )
    assert "queue: it would start at once" in out
    assert "simulated machines: nothing is owed" in out
    assert "with /nowhere/packages/program-" in out
    assert "tried" not in machine.run("jobs")
    error = machine.run("submit", "streamed", *machine.package(), "--dry-run", code=64)
    assert "has a job 'streamed' already" in error


def test_labels_of_a_job_are_changed(machine: Machine) -> None:
    machine.run("update", "streamed", "--update-labels", "team=vision,stage=dev")
    out = machine.run("update", "streamed", "--remove-labels", "stage", "--update-labels", "owner=ann")
    assert out == "job streamed: owner=ann, team=vision\n"


def test_a_second_up_is_refused(machine: Machine) -> None:
    error = machine.run("up", code=75)
    assert str(machine.service_pid()) in error
    assert len(error.splitlines()) == 1


def _await_line(stream: subprocess.Popen[str], text: str) -> None:
    assert stream.stdout is not None
    assert any(text in line for line in stream.stdout)


def test_streams_that_end_leave_the_job_to_finish(machine: Machine) -> None:
    job = "unwatched"
    submit = machine.start("submit", job, *machine.package(), "--", "80", "0.05")
    _await_line(submit, "line 5")
    others = {number: machine.start("logs", "-f", job) for number in (signal.SIGKILL, signal.SIGHUP)}
    for number, stream in ((signal.SIGINT, submit), *others.items()):
        _await_line(stream, "line 6")
        stream.send_signal(number)
        _, errors = stream.communicate(timeout=TIMEOUT_S)
        if number is signal.SIGINT:
            assert stream.returncode == 130
            assert f"job {job} continues; `lockstep logs" in errors
    assert machine.wait(job, _over)["state"] == "SUCCEEDED"
    machine.run("logs", "-f", job)
    assert machine.log_texts(job) == _expected(80)


def test_a_killed_service_leaves_the_job_to_finish_with_its_log_whole(machine: Machine) -> None:
    machine.submit("survivor", lines=120, pause_s=0.05)
    before = machine.wait("survivor", _running)
    follower = machine.start("logs", "-f", "survivor")
    assert follower.stdout is not None
    first = follower.stdout.readline()
    machine.kill_service()
    machine.run("up")
    after = machine.wait("survivor", _over)
    assert after["state"] == "SUCCEEDED"
    assert after["startTime"] == before["startTime"]
    assert machine.log_texts("survivor") == _expected(120)
    followed = [ENTRY.sub("", line) for line in [first, *follower.stdout]]
    follower.communicate(timeout=TIMEOUT_S)
    assert [text.strip() for text in followed] == _expected(120), "nor did its follower miss a line"


def test_a_killed_program_is_started_again(machine: Machine) -> None:
    machine.submit("killed_once", lines=10_000, pause_s=0.05)
    running = machine.wait("killed_once", _running)
    os.kill(running["lockstep"]["replicas"][0]["pid"], signal.SIGKILL)
    again = machine.wait("killed_once", lambda job: _running(job) and job["lockstep"]["numRestarts"] == 1)
    assert again["startTime"] == running["startTime"]
    machine.wait("killed_once", lambda job: "line 3" in machine.log_texts("killed_once"))
    machine.run("cancel", "killed_once")
    assert machine.wait("killed_once", _over)["lockstep"]["endReason"] == "CANCELLED(by home)"
    shown = machine.run("describe", "killed_once")
    assert "MACHINE_ERROR(SIGKILL, master-0): restart 1 of at most 3" in shown
    assert "restarts: 1" in shown


def test_a_killed_program_ends_its_job_within_ten_seconds(machine: Machine, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("trainingInput: {lockstep: {restartPolicy: {condition: NEVER}}}")
    machine.run("submit", "killed", *machine.package(), f"--config={config}", "--async", "--", "10000", "0.05")
    running = machine.wait("killed", _running)
    machine.wait("killed", lambda job: "line 3" in machine.log_texts("killed"))
    os.kill(running["lockstep"]["replicas"][0]["pid"], signal.SIGKILL)
    job = machine.wait("killed", _over, timeout_s=10.0)
    assert job["state"] == "FAILED"
    assert "replica master-replica-0: killed by SIGKILL; its last lines:" in job["errorMessage"]
    assert re.search(r"last lines:\n(  line \d+\n)+  line( \d+)?$", job["errorMessage"])
    assert "killed by SIGKILL" in machine.run("describe", "killed")
    error = machine.run("deploy", "m", "--job", "killed", code=18)
    assert "job killed has no finished model: it is FAILED" in error


def test_a_failed_job_fails_its_submit(machine: Machine) -> None:
    error = machine.run("submit", "bad_arguments", *machine.package(), code=10)
    assert "lockstep: error: job bad_arguments ended in state FAILED" in error


def test_cancel_ends_a_job(machine: Machine) -> None:
    machine.submit("cancelled", lines=10_000, pause_s=0.05)
    pid = machine.wait("cancelled", _running)["lockstep"]["replicas"][0]["pid"]
    machine.run("cancel", "cancelled")
    assert machine.wait("cancelled", _over)["state"] == "CANCELLED"
    shown = machine.run("describe", "cancelled")
    assert "submitted by: home" in shown
    assert "ended: CANCELLED(by home)" in shown
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert "job cancelled is over already: CANCELLED" in machine.run("cancel", "cancelled", code=16)


def test_a_source_archive_is_uploaded_once(machine: Machine) -> None:
    folder = machine.home.bucket / "packages"
    (before,) = folder.glob("program-*.tar.gz")
    written = before.stat()
    machine.submit("again", lines=1, pause_s=0)
    machine.wait("again", _over)
    assert list(folder.glob("program-*.tar.gz")) == [before]
    assert (before.stat().st_ino, before.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def test_relative_paths_are_those_of_whoever_submits(machine: Machine, tmp_path: Path) -> None:
    flags = ("--job-dir", "out", "--staging-bucket", "staged", "--", "1", "0")
    machine.run("submit", "relative", *machine.package(), *flags, cwd=tmp_path)
    outputs = machine.wait("relative", _over)["lockstep"]["outputs"]
    assert outputs["model"] == f"{tmp_path}/out/model"
    assert outputs["checkpoints"] == f"{tmp_path}/out/checkpoints"
    assert len(list((tmp_path / "staged" / "packages").glob("program-*.tar.gz"))) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("submit", "x", "--config", "absent.yaml"), 66, "--config: no file absent.yaml"),
        (("submit", "x", "--package-path", "absent", "--module-name", "count"), 66, "absent"),
        (("submit", "x", "--module-name", "m", "--scale-tier", "BASICC"), 78, "did you mean 'BASIC'"),
        (("submit", "x"), 78, "pythonModule"),
        (("submit", "0x", "--module-name", "m"), 78, "jobId"),
        (("submit", "x", "--module-name", "m", "--labels", "a"), 64, "key=value"),
        (("submit", "x", "--module-name", "json", "--job-dir", "/proc/nope"), 64, "/proc/nope"),
        (("submit", "x", "--module-name", "m", "--job-dir", "memory://x"), 64, "--job-dir"),
        (("describe", "nobody"), 12, "nobody"),
        (("describe", ""), 64, "not the name of a job"),
        (("describe", "a/b"), 64, "not the name of a job"),
        (("describe", "a?b#c"), 64, "a?b#c"),
        (("logs", "nobody"), 12, "nobody"),
        (("cancel", "nobody"), 12, "nobody"),
        (("jobs", "--filter", "state="), 64, "filter: column 7"),
        (("deploy", "m"), 64, "--job or --model-url"),
        (("up", "--port", "x"), 2, "Invalid value for '--port'"),
        (("xyzzy",), 2, "No such command 'xyzzy'; see `lockstep --help`"),
        (("submit", "x", "--module-name", "nowhere"), 66, "name its folder with --package-path"),
        (("predict", "nobody", "--json-request", "/nowhere.json"), 66, "/nowhere.json"),
    ],
)
def test_bad_input_is_one_line_with_an_exit_code(
    refuse: Callable[..., str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    error = refuse(*arguments, code=code)
    assert message in error
    assert len(error.splitlines()) == 1
    assert error.startswith("lockstep: error: ")


def test_an_unknown_key_of_a_config_is_named_with_its_file(refuse: Callable[..., str], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("trainingInput:\n  scaleTier: CUSTOM\n  masterTyp: n1-standard-8\n")
    error = refuse("submit", "x", "--config", str(config), "--module-name", "count", code=78)
    assert str(config) in error
    assert "masterTyp" in error
    assert "did you mean 'masterType'" in error
    for text, message in (
        ("trainingInput: [", "is not YAML, line 1, column 17"),
        ("trainingInput: {region: a, region: b}", "line 1, column 28: key 'region' is given twice"),
        ("jobId: other", "jobId; received 'other'; allowed: x"),
    ):
        config.write_text(text)
        error = refuse("submit", "x", "--config", str(config), code=78)
        assert message in error
        assert len(error.splitlines()) == 1


def test_down_refuses_while_jobs_run_and_leaves_nothing_behind_when_told_to_cancel(machine: Machine) -> None:
    machine.submit("last", lines=10_000, pause_s=0.05)
    machine.wait("last", _running)
    error = machine.run("down", code=13)
    assert "last" in error
    assert "--cancel" in error
    folder = Path(json.loads((machine.home.engine / "head.json").read_text())["folder"])
    assert folder.is_dir()
    with subprocess.Popen(["sleep", "600"], cwd=machine.home.spool) as persons:
        machine.run("down", "--cancel")
        assert persons.poll() is None, "a person's process in the spool is nobody's leftover"
        persons.kill()
    assert machine.processes() == []
    assert not folder.exists()
    assert "start one with `lockstep up`" in machine.run("status", code=69)
    machine.run("down")
    machine.run("up")
    assert machine.wait("last", _over)["state"] == "CANCELLED"


@pytest.mark.heavy
def test_down_works_where_the_service_was_killed(machine: Machine) -> None:
    machine.submit("orphan", lines=10_000, pause_s=0.05)
    machine.wait("orphan", _running)
    with machine.client() as client:
        num_more = client.service()["maxRunningJobs"]
    for number in range(num_more):
        machine.submit(f"orphan_{number}", lines=10_000, pause_s=0.05)
    last = machine.wait(f"orphan_{num_more - 1}", lambda job: job["state"] == "QUEUED")["jobId"]
    machine.kill_service()
    machine.run("down", code=13)
    machine.run("down", "--cancel")
    assert machine.processes() == []
    machine.run("up")
    assert machine.wait(last, _over)["state"] == "CANCELLED"
    with machine.client() as client:
        states = [event["state"] for event in client.job_events(last)]
    assert states == ["QUEUED", "CANCELLING", "CANCELLED"], "the service that ended the jobs started none"


@pytest.mark.heavy
def test_down_waits_for_a_service_that_is_starting(tmp_path: Path) -> None:
    other = Machine(tmp_path)
    starting = other.start("up")
    deadline = time.monotonic() + TIMEOUT_S
    while not [process for process in other.processes() if "lockstep.service" in process.cmdline()]:
        assert time.monotonic() < deadline
    starting.kill()
    starting.communicate()
    other.run("down")
    assert other.processes() == []


@pytest.mark.heavy
def test_a_port_in_use_and_a_bucket_that_cannot_be_written_are_said(tmp_path: Path, refuse: Callable[..., str]) -> None:
    other = Machine(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = other.run("up", "--port", str(port), code=71)
    assert str(port) in error
    assert len(error.splitlines()) == 1
    (tmp_path / "file").write_text("")
    at_a_file = Machine(tmp_path / "file_home")
    at_a_file.home.path.write_text("")
    assert "set LOCKSTEP_HOME" in refuse("up", code=73, home=at_a_file.home)
    assert "--bucket" in refuse("up", "--bucket", "memory://x", code=64, home=other.home)
    error = other.run("up", "--bucket", "file/bucket", code=73, cwd=tmp_path)
    assert str(tmp_path / "file") in error
    assert len(error.splitlines()) == 1
    assert other.processes() == []
