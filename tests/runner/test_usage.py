"""What a program and its children use, by looking at them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from lockstep.runner.usage import UsageMeter

TIMEOUT_S = 20.0
PARENT = """
import subprocess, sys
for line in sys.stdin:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    print(child.pid, flush=True)
    sys.stdin.readline()
    child.kill()
    if sys.argv[1] == "asks":
        child.wait()
    print("over", flush=True)
"""


@pytest.fixture(params=[pytest.param("asks", marks=pytest.mark.heavy), "does not ask"])
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """Starts a busy child at each line that it reads, and ends it at the next; asks for its exit code, or does not."""
    command = [sys.executable, "-c", PARENT, request.param]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _say(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def _used(meter: UsageMeter, *, more_than_s: float) -> float:
    deadline = time.monotonic() + TIMEOUT_S
    while (used_s := meter.sample().cpu_s) <= more_than_s:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return used_s


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system says when a process began")
@pytest.mark.parametrize("parent", ["asks"], indirect=True)
def test_a_step_of_the_clock_counts_nothing_twice(
    parent: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = UsageMeter(parent.pid, started=time.monotonic())
    child = psutil.Process(int(_say(parent)))
    _used(meter, more_than_s=0.1)
    boot_time = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time + 3600)
    child.suspend()
    seen_s = meter.sample().cpu_s
    times = [psutil.Process(process.pid).cpu_times() for process in (parent, child)]
    assert seen_s == pytest.approx(sum(each.user + each.system for each in times), abs=0.05)
    child.resume()
    _say(parent)


def test_what_children_used_that_are_gone_is_kept_as_a_sum(parent: subprocess.Popen[str]) -> None:
    meter = UsageMeter(parent.pid, started=time.monotonic())
    for _ in range(2):
        before_s = meter.sample().cpu_s
        _say(parent)
        _used(meter, more_than_s=before_s + 0.1)
        _say(parent)
        after_s = meter.sample().cpu_s
        assert after_s > before_s + 0.1
        assert meter.sample().cpu_s < after_s + 0.08, "and nothing is counted twice"
    assert len(meter._seen) < 3
