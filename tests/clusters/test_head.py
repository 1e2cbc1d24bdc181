"""The head's record, mark and token, on processes that stand in for Ray's: what is found, ended, left alone."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lockstep.clusters.ray.head import ENGINE_VARIABLE, EmbeddedHead
from lockstep.home import Home
from lockstep.processes import ProcessIdentity

TIMEOUT_S = 20.0
# A leader with children, one of which goes on starting others: what is listed once is no longer all there is.
FORKING = "sleep 600 & (while :; do sleep 600 & sleep 0.002; done) & echo up; wait"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(path=tmp_path / "home")
    made.engine.mkdir(parents=True)
    return made


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts shell scripts in sessions of their own; what is left of them is ended afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str, **variables: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **variables},
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield run
    for process in started:
        for pid in members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()


def members(session: int) -> list[int]:
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def identify(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    return identity


def write_record(home: Home, process: ProcessIdentity | None, *, folder: str = "/nowhere") -> Path:
    path = home.engine / "head.json"
    document = None if process is None else process.to_json()
    path.write_text(json.dumps({"process": document, "address": "127.0.0.2:1", "folder": folder}))
    return path


def test_a_head_is_found_and_ended_by_its_record(home: Home, start: Start, tmp_path: Path) -> None:
    process = start(FORKING)
    folder = tmp_path / "lockstep-ray-test"
    folder.mkdir()
    record = write_record(home, identify(process), folder=str(folder))
    head = EmbeddedHead(home)
    found = head.find()
    assert found is not None
    assert found.pid == process.pid
    head.stop()
    assert members(process.pid) == []
    assert not record.exists()
    assert not folder.exists()
    head.stop()


def test_a_head_whose_clock_stepped_is_found_and_ended(
    home: Home, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(FORKING)
    write_record(home, identify(process))
    if sys.platform == "linux":
        boot_time = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time + 3600)
    head = EmbeddedHead(home)
    assert head.find() is not None
    head.stop()
    assert members(process.pid) == []


def test_another_process_with_the_heads_id_is_left_alone(home: Home, start: Start) -> None:
    process = start("echo up; exec sleep 600")
    identity = identify(process)
    record = write_record(home, replace(identity, start=f"{identity.start}0"))
    head = EmbeddedHead(home)
    assert head.find() is None
    head.stop()
    assert identity.is_alive
    assert not record.exists()


def test_the_session_of_a_dead_leader_is_ended_where_it_is_rays(home: Home, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "lockstep-ray-test"
    script = f"sleep 500 & sh -c 'sleep 600 & echo up; wait; : {folder}' & wait"
    process = start(script)
    session = process.pid
    record = write_record(home, identify(process), folder=str(folder))
    process.kill()
    process.wait(TIMEOUT_S)
    before = members(session)
    assert len(before) == 3
    EmbeddedHead(home).stop()
    left = [psutil.Process(pid).cmdline() for pid in members(session)]
    assert ["sleep", "500"] in left, "it could be another's"
    assert not [line for line in left if str(folder) in " ".join(line)]
    assert not record.exists()


@pytest.mark.parametrize("record", ["none", "not started", "corrupt"])
def test_a_head_that_nobody_wrote_down_is_ended_by_its_mark(home: Home, start: Start, record: str) -> None:
    unknown = start(FORKING, **{ENGINE_VARIABLE: os.path.realpath(home.engine)})
    other = start("echo up; exec sleep 600", **{ENGINE_VARIABLE: f"{os.path.realpath(home.engine)}2"})
    if record == "not started":  # killed between the start and the second writing of the record
        write_record(home, None)
    elif record == "corrupt":
        (home.engine / "head.json").write_text("{")
    head = EmbeddedHead(home)
    assert head.find() is None
    head.stop()
    assert members(unknown.pid) == []
    assert members(other.pid) == [other.pid]


def test_a_home_may_be_named_by_a_symbolic_link(home: Home, start: Start, tmp_path: Path) -> None:
    process = start(FORKING, **{ENGINE_VARIABLE: os.path.realpath(home.engine)})
    link = tmp_path / "link"
    link.symlink_to(home.path)
    EmbeddedHead(Home(path=link)).stop()
    assert members(process.pid) == []


def test_a_death_while_the_token_is_written_leaves_none(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_: int) -> str:
        raise KeyboardInterrupt

    path = home.engine / "ray-token"
    with monkeypatch.context() as patched:
        patched.setattr("secrets.token_hex", die)
        with pytest.raises(KeyboardInterrupt):
            EmbeddedHead(home).environment()
    assert not path.exists()
    (home.engine / "ray-token.partial").write_text("half")
    EmbeddedHead(home).environment()
    token = path.read_text()
    assert len(token) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    EmbeddedHead(home).environment()
    assert path.read_text() == token
