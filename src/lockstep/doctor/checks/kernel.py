"""The kernel: control groups and user namespaces for containers without root, and how it gives memory."""

from __future__ import annotations

import os
import sys
from typing import Final

from lockstep.containers.engine import EngineKind
from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.programs import has_program
from lockstep.doctor.surroundings import Surroundings

_NEEDED: Final = frozenset({"cpu", "memory", "pids"})


def check_kernel(surroundings: Surroundings) -> Result:
    """Reads the kernel's settings."""
    if sys.platform != "linux":
        return Result(skipped="not Linux")
    findings = [*_of_memory(surroundings)]
    user = os.geteuid()
    if user != 0 and any(has_program(kind, surroundings) for kind in EngineKind):
        findings += judge_rootless_kernel(surroundings, user=user)
    groups = "version 2" if surroundings.read("sys/fs/cgroup/cgroup.controllers") else "not version 2"
    return Result(findings=tuple(findings), detail=f"control groups: {groups}")


def _of_memory(surroundings: Surroundings) -> list[Finding]:
    if surroundings.read("proc/sys/vm/overcommit_memory") != "2":
        return []
    return [
        warning(
            "the kernel refuses memory that is only reserved",
            received="vm.overcommit_memory = 2",
            needed="0 or 1: Ray and XLA reserve much more than they use",
            remedy="sudo sysctl -w vm.overcommit_memory=0",
        )
    ]


def judge_rootless_kernel(surroundings: Surroundings, *, user: int) -> list[Finding]:
    """Returns what the kernel lacks for containers of a user who is not root.

    Args:
        surroundings: where the kernel's settings are read.
        user: the user's id.
    """
    found: list[Finding] = []
    closed = {
        "user.max_user_namespaces": ("0", "15000"),
        "kernel.unprivileged_userns_clone": ("0", "1"),
        "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    }
    for name, (bad, good) in closed.items():
        if surroundings.read(f"proc/sys/{name.replace('.', '/')}") == bad:
            found.append(
                error(
                    "containers without root cannot start",
                    received=f"{name} = {bad}",
                    needed=f"{name} = {good}, so that users may make user namespaces",
                    remedy=f"sudo sysctl -w {name}={good}",
                )
            )
    if not surroundings.read("sys/fs/cgroup/cgroup.controllers"):
        found.append(
            warning(
                "containers without root have no limits of memory and processors",
                received="control groups of version 1",
                needed="version 2",
                remedy="sudo grubby --update-kernel=ALL --args=systemd.unified_cgroup_hierarchy=1   # then reboot",
            )
        )
        return found
    given = surroundings.read(
        f"sys/fs/cgroup/user.slice/user-{user}.slice/user@{user}.service/cgroup.controllers"
    ).split()
    if missing := sorted(_NEEDED - set(given)):
        found.append(
            warning(
                "containers without root have no limits of memory and processors",
                received=f"the control group of user {user} lacks {', '.join(missing)}",
                needed=", ".join(sorted(_NEEDED)),
                remedy="printf '[Service]\\nDelegate=cpu memory pids\\n' | sudo tee "
                "/etc/systemd/system/user@.service.d/delegate.conf && sudo systemctl daemon-reload",
            )
        )
    return found
