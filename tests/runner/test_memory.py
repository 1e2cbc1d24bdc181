"""How much memory a program may have, and whether the system killed it for want of some."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from lockstep.runner.memory import MemoryKills, memory_limit_bytes


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def limit(tmp_path: Path) -> int:
    return memory_limit_bytes(proc=tmp_path / "proc", cgroups=tmp_path / "cgroups")


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert limit(tmp_path) == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("line", "file"),
    [("0::/jobs/one", "jobs/memory.max"), ("4:memory:/jobs/one", "memory/jobs/memory.limit_in_bytes")],
    ids=["version-2", "version-1"],
)
def test_the_smallest_limit_of_the_groups_that_it_is_in_counts(tmp_path: Path, line: str, file: str) -> None:
    write(tmp_path / "proc/self/cgroup", f"7:cpu:/x\n{line}\n")
    outer = tmp_path / "cgroups" / file
    write(outer, "104857600\n")
    inner = outer.parent / "one" / outer.name
    write(inner, "max\n" if outer.name == "memory.max" else "9223372036854771712\n")
    assert limit(tmp_path) == 100 << 20
    write(inner, "52428800\n")
    assert limit(tmp_path) == 50 << 20


def test_a_kill_is_seen_for_as_long_as_is_asked_for(tmp_path: Path) -> None:
    counts, now = tmp_path / "vmstat", [100.0]
    counts.write_text("nr_free_pages 1\noom_kill 4\n")
    kills = MemoryKills(proc=tmp_path, clock=lambda: now[0])
    now[0] = 102.0
    kills.sample()
    assert not kills.had_kill(within_s=4.0)
    now[0] = 103.0
    counts.write_text("nr_free_pages 1\noom_kill 5\n")
    assert kills.had_kill(within_s=0.0)
    for _ in range(2):
        now[0] += 2.0
        kills.sample()
    assert kills.had_kill(within_s=4.0), "it may have been the program's, whose end is told a moment later"
    now[0] = 109.0
    kills.sample()
    assert not kills.had_kill(within_s=4.0)
    assert kills.had_kill(within_s=30.0), "a container's end is told later"
    for _ in range(100):
        now[0] += 2.0
        kills.sample()
    assert not kills.had_kill(within_s=30.0)


def test_a_system_that_does_not_count_has_none(tmp_path: Path) -> None:
    assert not MemoryKills(proc=tmp_path).had_kill(within_s=4.0)
