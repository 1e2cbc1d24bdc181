"""A process is itself for good: across a step of the clock, and not once another has its id."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from lockstep.errors import CorruptDataError
from lockstep.processes import ProcessIdentity, find_marked, identities

TIMEOUT_S = 20.0
MARK = "LOCKSTEP_TEST_MARK"


def start_waiting(**variables: str) -> subprocess.Popen[bytes]:
    """Starts a process that ends when its standard input does, and waits until it runs its own program."""
    program = "print('up', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **variables},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[bytes]]:
    with start_waiting(**{MARK: "a"}) as process:
        yield process
        process.kill()


@pytest.fixture(params=["proc", "psutil"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "proc" and not identities._HAS_PROC:
        pytest.skip("this system has no /proc")
    monkeypatch.setattr(identities, "_HAS_PROC", request.param == "proc")


@pytest.mark.usefixtures("_way")
def test_a_process_is_known_until_it_has_ended(waiting: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(waiting.pid)
    assert identity is not None
    assert ProcessIdentity.from_json(json.loads(json.dumps(identity.to_json()))) == identity
    assert ProcessIdentity.of(waiting.pid) == identity
    assert identity.is_alive
    assert not identity.wait(timeout_s=0.0)
    identity.send(signal.SIGKILL)
    assert identity.wait(timeout_s=TIMEOUT_S), "though nobody has reaped it"
    assert waiting.wait(TIMEOUT_S) == -signal.SIGKILL
    assert not identity.is_alive
    assert ProcessIdentity.of(waiting.pid) is None


@pytest.mark.usefixtures("_way")
def test_another_process_with_its_id_is_left_alone(waiting: subprocess.Popen[bytes]) -> None:
    now = ProcessIdentity.of(waiting.pid)
    assert now is not None
    earlier = replace(now, start=now.start + "0")
    assert not earlier.is_alive
    earlier.send(signal.SIGKILL)
    assert earlier.wait(timeout_s=0.0)
    assert now.is_alive
    assert waiting.poll() is None


@pytest.mark.skipif(
    not identities._HAS_PROC, reason="elsewhere the system says when a process began, and does not move"
)
def test_a_step_of_the_clock_changes_nobody(waiting: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    identity = ProcessIdentity.of(waiting.pid)
    before_s = psutil.Process(waiting.pid).create_time()
    # What a step of the clock does: the time of the boot, as the kernel says it, moves, and with it psutil's times.
    boot_time = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time + 3600)
    assert psutil.Process(waiting.pid).create_time() != pytest.approx(before_s, abs=60)
    assert ProcessIdentity.of(waiting.pid) == identity
    assert identity is not None
    assert identity.is_alive


def test_a_name_with_parentheses_is_read() -> None:
    program = "import pathlib; pathlib.Path('/proc/self/comm').write_text('a) Z (b'); print('up', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    if not identities._HAS_PROC:
        pytest.skip("this system has no /proc")
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as named:
        assert named.stdout is not None
        assert named.stdout.readline() == b"up\n"
        identity = ProcessIdentity.of(named.pid)
        assert identity is not None
        assert identity.is_alive
        assert re.fullmatch(r"[0-9a-f-]*/\d+", identity.start)
        named.kill()


def test_marked_processes_are_found(waiting: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    with start_waiting(**{MARK: "b"}) as other:
        monkeypatch.setenv(MARK, "a")
        assert find_marked(MARK, accept=lambda value: value == "a") == [ProcessIdentity.of(waiting.pid)]
        assert {found.pid for found in find_marked(MARK, accept=lambda _: True)} == {waiting.pid, other.pid}
        other.kill()
        other.wait(TIMEOUT_S)
        assert [found.pid for found in find_marked(MARK, accept=lambda _: True)] == [waiting.pid]


@pytest.mark.parametrize(
    "document", [None, [], {}, {"pid": 1}, {"pid": "1", "start": "x"}, {"pid": True, "start": "x"}, {"start": "x"}]
)
def test_what_is_no_identity_is_refused(document: object) -> None:
    with pytest.raises(CorruptDataError, match="not the identity of a process"):
        ProcessIdentity.from_json(document)
    with pytest.raises(CorruptDataError):
        ProcessIdentity.from_json({"pid": 1, "start": document})
