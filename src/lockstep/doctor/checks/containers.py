"""The container engine: whether it answers, and whether it is set up for this user."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from typing import Any, Final, cast

from lockstep.containers import open_engine
from lockstep.containers.engine import ENGINE_VARIABLE, ContainerEngine, EngineKind
from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.programs import ask, has_program
from lockstep.doctor.surroundings import Surroundings
from lockstep.errors import ContainerEngineError

_RUNTIMES: Final = ("crun", "runc")


def check_containers(surroundings: Surroundings) -> Result:
    """Asks podman or docker to describe itself, and looks at what it needs for containers without root."""
    named = surroundings.env.get(ENGINE_VARIABLE)
    if not named and not any(has_program(kind, surroundings) for kind in EngineKind):
        return Result(skipped="neither podman nor docker is installed; jobs with an image need one: apt install podman")
    try:
        engine = open_engine(surroundings.env)
    except ContainerEngineError as problem:
        return Result(findings=(_of_silence(str(problem.what), named=named),))
    findings: list[Finding] = []
    detail = engine.describe()
    if engine.kind is EngineKind.PODMAN:
        about = _about(engine)
        runtime = str(about.get("host", {}).get("ociRuntime", {}).get("name", ""))
        findings += judge_podman(
            engine, runtime=runtime, has_runtimes={name: has_program(name, surroundings) for name in _RUNTIMES}
        )
        detail += f" with {runtime}" if runtime else ""
    if engine.kind is EngineKind.PODMAN and engine.rootless:
        user = pwd.getpwuid(os.geteuid()).pw_name
        findings += judge_rootless(
            user,
            uids=surroundings.read("etc/subuid"),
            gids=surroundings.read("etc/subgid"),
            has_helpers=has_program("newuidmap", surroundings) and has_program("newgidmap", surroundings),
            env=surroundings.env,
        )
    return Result(findings=tuple(findings), detail=detail)


def _of_silence(problem: str, *, named: str | None) -> Finding:
    if named:
        return error(
            f"the container engine that {ENGINE_VARIABLE} names does not answer",
            received=problem,
            needed="podman, docker, or a path to either",
            remedy=f"unset {ENGINE_VARIABLE}",
        )
    is_docker = "docker does not answer" in problem
    return warning(
        "the container engine does not answer",
        received=problem,
        needed="podman, or docker with its daemon, for jobs with an image",
        remedy="sudo systemctl start docker" if is_docker else "podman info",
    )


def _about(engine: ContainerEngine) -> Mapping[str, Any]:
    answer = ask([engine.path, "info", "--format", "json"], env=engine.env)
    try:
        document = json.loads(answer.output) if answer is not None and answer.code == 0 else {}
    except ValueError:
        document = {}
    return cast("Mapping[str, Any]", document if isinstance(document, dict) else {})


def judge_podman(engine: ContainerEngine, *, runtime: str, has_runtimes: Mapping[str, bool]) -> list[Finding]:
    """Returns the faults of podman that answers.

    Args:
        engine: podman, as it describes itself.
        runtime: the program that it starts containers with, such as ``crun``; empty if it does not say.
        has_runtimes: whether each known runtime is installed.
    """
    found: list[Finding] = []
    if runtime and runtime in has_runtimes and not has_runtimes[runtime]:
        other = next((name for name, is_there in has_runtimes.items() if is_there), None)
        line = "printf '[engine]\\nruntime = \"{}\"\\n' | sudo tee /etc/containers/containers.conf.d/runtime.conf"
        found.append(
            error(
                "podman cannot start containers",
                received=f"its runtime is {runtime}, which is not installed",
                needed="crun or runc",
                remedy=f"sudo apt install {runtime}" if other is None else line.format(other),
            )
        )
    if not engine.has_init:
        found.append(
            warning(
                "programs in containers are not told to stop",
                received="podman has no init program",
                needed="catatonit: without it, a program that ignores SIGTERM ends after ten seconds, by SIGKILL",
                remedy="sudo apt install catatonit",
            )
        )
    return found


def judge_rootless(user: str, *, uids: str, gids: str, has_helpers: bool, env: Mapping[str, str]) -> list[Finding]:
    """Returns what podman lacks for containers of a user who is not root.

    Args:
        user: the user's name.
        uids: the content of ``/etc/subuid``.
        gids: the content of ``/etc/subgid``.
        has_helpers: whether ``newuidmap`` and ``newgidmap`` are installed.
        env: the environment variables.
    """
    found: list[Finding] = []
    names = (user, str(os.geteuid()))
    missing = [
        path
        for path, text in (("/etc/subuid", uids), ("/etc/subgid", gids))
        if not any(line.partition(":")[0] in names for line in text.splitlines())
    ]
    if missing:
        found.append(
            error(
                "podman has no user ids for containers",
                received=f"no line for {user} in {' and '.join(missing)}",
                needed="65,536 ids in both",
                remedy=f"sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user} "
                "&& podman system migrate",
            )
        )
    if not has_helpers:
        found.append(
            error(
                "podman cannot map user ids",
                received="newuidmap or newgidmap is not installed",
                needed="both",
                remedy="sudo apt install uidmap",
            )
        )
    if not env.get("XDG_RUNTIME_DIR"):
        found.append(
            warning(
                "podman has no folder for running containers that is emptied at boot",
                received="no XDG_RUNTIME_DIR: no login session",
                needed="a session of the user, which outlives the login",
                remedy=f"sudo loginctl enable-linger {user}",
            )
        )
    return found
