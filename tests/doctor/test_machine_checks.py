"""What the checks say of machines: of faked ones, file by file, and of this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.doctor import Surroundings
from lockstep.doctor.checks.disks import Space, _remote_kind, check_disks, judge_shared_memory, judge_space
from lockstep.doctor.checks.hardware import find_hardware
from lockstep.doctor.checks.kernel import check_kernel, judge_rootless_kernel
from lockstep.doctor.checks.limits import Limits, check_limits, judge_limits, read_limits
from lockstep.doctor.checks.ports import check_names, check_ports, judge_range
from lockstep.home import Home

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture
def faked(tmp_path: Path) -> Surroundings:
    return Surroundings(home=Home(path=Path("/srv/home")), env={"PATH": "/nowhere"}, root=tmp_path)


def write(faked: Surroundings, path: str, text: str) -> None:
    file = faked.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_accelerators_are_found_by_device_files_and_by_the_bus(faked: Surroundings) -> None:
    assert (find_hardware(faked).num_gpus, find_hardware(faked).num_tpus) == (0, 0)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        write(faked, f"dev/{name}", "")
    devices = {
        "0000:00:04.0": ("0x10de", "0x20b0", "0x030200"),  # a GPU
        "0000:00:05.0": ("0x10de", "0x1af1", "0x068000"),  # a bridge
        "0000:00:06.0": ("0x1ae0", "0x0042", "0x020000"),  # Google's network card
        "0000:00:07.0": ("0x1ae0", "0x0063", "0x120000"),  # a TPU
    }
    for place, (vendor, device, kind) in devices.items():
        for name, value in (("vendor", vendor), ("device", device), ("class", kind)):
            write(faked, f"sys/bus/pci/devices/{place}/{name}", f"{value}\n")
    found = find_hardware(faked)
    assert (found.num_gpus, found.num_tpus, found.driver, found.problem) == (2, 1, "", "")


def test_what_nvidia_smi_says_counts_and_its_failure_is_told(faked: Surroundings, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "535.104.05, NVIDIA A100"\necho "535.104.05, NVIDIA A100"\n')
    program.chmod(0o755)
    seen = Surroundings(home=faked.home, env={"PATH": f"{program.parent}:/usr/bin:/bin"}, root=faked.root)
    assert (find_hardware(seen).num_gpus, find_hardware(seen).driver) == (2, "535.104.05")
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    assert find_hardware(seen).problem == "Failed to initialize NVML: Driver/library version mismatch"


def test_limits_are_the_tightest_of_the_machine_and_its_groups(faked: Surroundings) -> None:
    alone = read_limits(faked)
    assert not alone.is_container
    write(faked, "proc/self/cgroup", "0::/a/b\n")
    write(faked, "sys/fs/cgroup/cgroup.controllers", "cpu memory pids")
    write(faked, "sys/fs/cgroup/a/memory.max", f"{100 * MIB}")
    write(faked, "sys/fs/cgroup/a/memory.current", f"{99 * MIB}")
    write(faked, "sys/fs/cgroup/a/memory.stat", f"anon 1\ninactive_file {40 * MIB}\n")
    write(faked, "sys/fs/cgroup/a/b/memory.max", "max")
    write(faked, "sys/fs/cgroup/a/b/cpu.max", "50000 100000")
    write(faked, "sys/fs/cgroup/pids.max", "77")
    found = read_limits(faked)
    assert (found.memory_bytes, found.used_bytes, found.num_cpus) == (100 * MIB, 59 * MIB, 0.5)
    assert (found.num_processes, found.is_container) == (77, True)
    said = {each.what for each in judge_limits(found)}
    assert said >= {"there is little memory", "few processes and threads may run at once"}
    assert "there is less than one processor" in said


GOOD = {
    "num_files": 65536,
    "num_processes": None,
    "memory_bytes": 16 * GIB,
    "used_bytes": 4 * GIB,
    "num_cpus": 4.0,
    "is_container": False,
}


@pytest.mark.parametrize(
    ("changes", "severity", "text"),
    [
        ({}, None, ""),
        ({"num_files": 1024}, "warning", "files"),
        ({"num_files": 256}, "error", "files"),
        ({"memory_bytes": 2 * GIB, "used_bytes": 0}, "warning", "little memory"),
        ({"used_bytes": int(15.9 * GIB)}, "error", "full"),
    ],
)
def test_a_limit_that_is_too_tight_is_told(changes: dict[str, int], severity: str | None, text: str) -> None:
    found = judge_limits(Limits(**{**GOOD, **changes}))
    assert [each.severity for each in found] == ([] if severity is None else [severity])
    assert all(text in each.what for each in found)


def space(**changes: object) -> Space:
    whole = {
        "name": "the home",
        "path": Path("/srv"),
        "total_bytes": 100 * GIB,
        "free_bytes": 50 * GIB,
        "free_files": None,
        "is_writable": True,
    }
    return Space(**{**whole, **changes})


@pytest.mark.parametrize(
    ("found", "severities"),
    [
        (space(), []),
        (space(free_bytes=2 * GIB), ["warning"]),
        (space(total_bytes=1000 * GIB, free_bytes=20 * GIB), ["warning"]),
        (space(free_bytes=100 * MIB), ["error"]),
        (space(is_writable=False, free_files=5), ["error", "error"]),
    ],
)
def test_a_disk_that_fills_is_told(found: Space, severities: list[str]) -> None:
    assert [each.severity for each in judge_space(found)] == severities
    assert all(each.remedy for each in judge_space(found))


def test_shared_memory_and_disks_of_other_machines_are_told(faked: Surroundings) -> None:
    assert judge_shared_memory(space(total_bytes=64 * MIB, free_bytes=64 * MIB))[0].severity == "error"
    assert judge_shared_memory(space(total_bytes=512 * MIB, free_bytes=500 * MIB))[0].severity == "warning"
    assert judge_shared_memory(space()) == []
    write(faked, "proc/mounts", "/dev/vda / ext4 rw 0 0\nserver:/x /srv nfs4 rw 0 0\n")
    assert _remote_kind(faked) == "nfs4"
    write(faked, "proc/mounts", "server:/x /srv nfs4 rw 0 0\n/dev/vdb /srv/home ext4 rw 0 0\n")
    assert _remote_kind(faked) is None
    said = [each.what for each in check_disks(faked).findings]
    assert "the home is on a file system of another machine" not in said


def test_the_kernels_settings_are_told(faked: Surroundings) -> None:
    write(faked, "sys/fs/cgroup/cgroup.controllers", "cpu memory pids")
    group = "sys/fs/cgroup/user.slice/user-7.slice/user@7.service/cgroup.controllers"
    write(faked, group, "cpu memory pids io")
    assert judge_rootless_kernel(faked, user=7) == []
    write(faked, group, "memory pids")
    write(faked, "proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    first, second = judge_rootless_kernel(faked, user=7)
    assert first.remedy == "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    assert second.received == "the control group of user 7 lacks cpu"
    write(faked, "proc/sys/vm/overcommit_memory", "2")
    (found,) = check_kernel(faked).findings
    assert found.received == "vm.overcommit_memory = 2"


def test_ports_of_replicas_are_told() -> None:
    assert judge_range("32768\t60999", used=3) == []
    assert judge_range("", used=3) == []
    (found,) = judge_range("1024 60999", used=3)
    assert found.remedy == 'sudo sysctl -w net.ipv4.ip_local_port_range="32768 60999"'
    (found,) = judge_range("32768 60999", used=12_700)
    assert found.severity == "error"


def test_the_checks_of_this_machine_end_and_say_what_they_saw(tmp_path: Path) -> None:
    here = Surroundings(home=Home(path=tmp_path / "home"))
    for check in (check_disks, check_limits, check_kernel, check_ports, check_names):
        result = check(here)
        assert result.findings or result.detail or result.skipped
