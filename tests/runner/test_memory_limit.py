"""A server that uses too much memory is noticed, whichever of its processes has it; other programs are free."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from lockstep.jobs.running.order_parts import ServerOrder
from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.runner.memory import memory_limit_bytes
from lockstep.runner.memory_limit import INTERVAL_OF_ALL_S, MemoryLimit

MIB = 2**20
CODE = """
import os, sys
blocks = b"x" * (int(sys.argv[1]) * 2**20)
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        own = b"x" * (int(sys.argv[3]) * 2**20)
        break
print("ready", flush=True)
sys.stdin.read()
"""


def order(memory_bytes: int | None, *, is_server: bool = True) -> ReplicaOrder:
    server = ServerOrder(ready_within_s=1, silent_within_s=1, memory_bytes=memory_bytes)
    return ReplicaOrder(
        name="r",
        role="master",
        index=0,
        job="j",
        command=(),
        spool="",
        log_url="",
        server=server if is_server else None,
    )


@pytest.fixture(autouse=True)
def a_runner_has_no_other_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides what other tests of this process have left running, such as a database's server."""
    find = psutil.Process.children
    others = {process.pid for process in psutil.Process().children(recursive=True)}

    def children(self: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        return [process for process in find(self, recursive) if process.pid not in others]

    monkeypatch.setattr(psutil.Process, "children", children)


class Started:
    """A program of a test: its own memory, and processes with memory of theirs."""

    def __init__(self, own_mib: int, *, children: int = 0, each_mib: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(own_mib), str(children), str(each_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        for _ in range(children + 1):
            self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def started() -> Iterator[list[Started]]:
    made: list[Started] = []
    yield made
    for each in made:
        each.close()


def exceeds(program: Any, memory_bytes: int | None, *, is_server: bool = True) -> bool:
    return MemoryLimit(order(memory_bytes, is_server=is_server)).is_exceeded(program)


def test_its_own_memory_and_that_of_its_processes_count(started: list[Started]) -> None:
    started += [alone := Started(200)]
    assert exceeds(alone, 150 * MIB)
    assert not exceeds(alone, 150 * MIB, is_server=False)
    alone.close()
    started.remove(alone)
    started += [family := Started(0, children=4, each_mib=60)]
    assert exceeds(family, 200 * MIB)


def test_what_processes_share_counts_once(started: list[Started]) -> None:
    started += [family := Started(150, children=4)]
    assert not exceeds(family, 500 * MIB)


def test_it_looks_at_intervals_and_remembers(started: list[Started]) -> None:
    now = [100.0]
    limit = MemoryLimit(order(150 * MIB), clock=lambda: now[0])
    started += [small := Started(1)]
    assert limit.problem is None
    assert not limit.is_exceeded(small)  # type: ignore[arg-type]
    started += [large := Started(200)]
    assert not limit.is_exceeded(large)  # type: ignore[arg-type]
    now[0] += INTERVAL_OF_ALL_S
    assert limit.is_exceeded(large)  # type: ignore[arg-type]
    assert limit.is_exceeded(small)  # type: ignore[arg-type]
    assert limit.was_exceeded
    assert limit.problem == "it used more than 0.1 GiB of memory, its limit"


def test_the_limit_is_that_of_the_machine_or_most_of_the_nodes() -> None:
    node = memory_limit_bytes()
    assert MemoryLimit(order(None)).limit_bytes == int(0.9 * node)
    assert MemoryLimit(order(2 * node)).limit_bytes == int(0.9 * node)
    assert MemoryLimit(order(MIB)).limit_bytes == MIB
    assert MemoryLimit(order(MIB, is_server=False)).limit_bytes is None
