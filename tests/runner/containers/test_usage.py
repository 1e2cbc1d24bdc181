"""What a container uses, read from control groups of both versions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lockstep.runner.containers.usage import ContainerMeter


def version_1(root: Path, *, cpu_s: int, memory: int) -> None:
    (root / "proc/7").mkdir(parents=True, exist_ok=True)
    (root / "proc/7/cgroup").write_text("4:blkio:/c\n3:memory:/c\n2:cpu,cpuacct:/c\n0::/c\n")
    for name in ("cpuacct/c", "memory/c", "blkio/c"):
        (root / "cgroups" / name).mkdir(parents=True, exist_ok=True)
    (root / "cgroups/cpuacct/c/cpuacct.usage").write_text(f"{cpu_s * 10**9}\n")
    (root / "cgroups/memory/c/memory.usage_in_bytes").write_text(f"{memory + 5}\n")
    (root / "cgroups/memory/c/memory.stat").write_text("inactive_file 1\ntotal_inactive_file 5\n")
    disk = root / "cgroups/blkio/c/blkio.throttle.io_service_bytes"
    disk.write_text("8:0 Read 3\n8:0 Write 4\n8:1 Read 4\n8:1 Write 5\nTotal 16\n")


def version_2(root: Path, *, cpu_s: int, memory: int) -> None:
    (root / "proc/7").mkdir(parents=True, exist_ok=True)
    (root / "proc/7/cgroup").write_text("0::/c\n")
    group = root / "cgroups/c"
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.stat").write_text(f"usage_usec {cpu_s * 10**6}\nuser_usec 1\n")
    (group / "memory.current").write_text(f"{memory + 5}\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 5\n")
    (group / "io.stat").write_text("8:0 rbytes=3 wbytes=4 rios=1\n8:1 rbytes=4 wbytes=5 rios=1\n")


def meter(root: Path, *, own: str = "0::/runner\n") -> ContainerMeter:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(own)
    return ContainerMeter(7, started=time.monotonic(), proc=root / "proc", cgroups=root / "cgroups")


@pytest.mark.parametrize("write", [version_1, version_2])
def test_the_largest_of_all_looks_stays(tmp_path: Path, write) -> None:
    write(tmp_path, cpu_s=1, memory=100)
    looked = meter(tmp_path)
    assert (looked.sample().cpu_s, looked.sample().peak_memory_bytes) == (1.0, 100)
    seen = looked.consumption
    assert (seen.memory_bytes, seen.disk_read_bytes, seen.disk_written_bytes) == (100, 7, 9)
    write(tmp_path, cpu_s=3, memory=50)
    assert (looked.sample().cpu_s, looked.sample().peak_memory_bytes) == (3.0, 100)
    for file in sorted((tmp_path / "cgroups").rglob("*.*")):
        file.unlink()
    assert (looked.sample().cpu_s, looked.sample().peak_memory_bytes) == (3.0, 100), "what was seen last stays"
    assert looked.consumption.disk_written_bytes == 9


def test_a_group_that_is_the_runners_too_measures_nothing(tmp_path: Path) -> None:
    version_2(tmp_path, cpu_s=1, memory=100)
    assert meter(tmp_path, own="0::/c\n").sample().cpu_s == 0


def test_without_a_process_there_is_nothing_to_measure(tmp_path: Path) -> None:
    usage = ContainerMeter(None, started=time.monotonic(), proc=tmp_path, cgroups=tmp_path).sample()
    assert (usage.cpu_s, usage.peak_memory_bytes) == (0, 0)
