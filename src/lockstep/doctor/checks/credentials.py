"""The user's key and the variables that name the service."""

from __future__ import annotations

import stat
from typing import Any, Final

from lockstep.client.addresses import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE
from lockstep.doctor.checks.service_look import answered, is_expected, look
from lockstep.doctor.checks.versions import PACKAGE, version_of
from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.surroundings import Surroundings
from lockstep.errors import AuthenticationError, LockstepError, PermissionDeniedError
from lockstep.jobs.security.access import ALL_PROJECTS

PROJECT_VARIABLE: Final = "LOCKSTEP_PROJECT"


def check_credentials(surroundings: Surroundings) -> Result:
    """Checks the variables of clients, and whether the service accepts the key."""
    findings = _of_files(surroundings)
    try:
        if not is_expected(surroundings):
            return Result(findings=tuple(findings), skipped="no service runs on the home; `lockstep up` starts one")
        found = look(surroundings)
    except LockstepError as problem:
        findings.append(
            error(
                "the service cannot be found",
                received=problem.what,
                needed=f"{URL_VARIABLE} with {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}, or a service on the home",
                remedy=problem.action or "lockstep up",
            )
        )
        return Result(findings=tuple(findings))
    if found.about_key is None:
        assert found.problem is not None
        findings.append(_refused(found.problem, url=found.address.url))
        return Result(findings=tuple(findings))
    findings += judge_key(found.about_key, project=surroundings.env.get(PROJECT_VARIABLE, ""))
    return Result(findings=tuple(findings), detail=_describe(found.about_key, url=found.address.url))


def _of_files(surroundings: Surroundings) -> list[Finding]:
    """Returns the files of the home that others can read."""
    found: list[Finding] = []
    for path in (surroundings.home.token, surroundings.home.secret_key):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:  # not made yet, or of another user
            continue
        if mode & 0o077:
            found.append(
                error(
                    "other users can read a secret of the home",
                    received=f"{path} with mode {mode:04o}",
                    needed="mode 0600",
                    remedy=f"chmod 600 {path}",
                )
            )
    return found


def _refused(problem: LockstepError, *, url: str) -> Finding:
    if isinstance(problem, AuthenticationError):
        return error(
            "the service does not accept the key",
            received=problem.what,
            needed="a valid key of this service",
            remedy="ask an operator for one: lockstep keys create NAME",
        )
    if isinstance(problem, PermissionDeniedError):
        return warning(
            "the key is for predictions alone",
            received="a key of scope caller",
            needed="a key of scope viewer or above for jobs",
            remedy="ask an operator for one: lockstep keys create NAME",
        )
    return error(
        "the service does not respond",
        received=str(problem),
        needed=f"an answer from {url}",
        remedy="lockstep status",
    )


def judge_key(about_key: dict[str, Any], *, project: str) -> list[Finding]:
    """Returns the faults of a valid key.

    Args:
        about_key: the service's answer to ``whoami``.
        project: the project that the environment names; empty if it names none.
    """
    own = str(about_key["project"])
    if project and own not in (ALL_PROJECTS, project):
        return [
            error(
                f"{PROJECT_VARIABLE} names another project than the key",
                received=f"{PROJECT_VARIABLE}={project}, a key of project {own}",
                needed="the same project",
                remedy=f"export {PROJECT_VARIABLE}={own}",
            )
        ]
    if not project and own not in (ALL_PROJECTS, "local"):
        return [
            warning(
                "commands look in the project local, which the key is not for",
                received=f"a key of project {own}, and no {PROJECT_VARIABLE}",
                needed="the key's project",
                remedy=f"export {PROJECT_VARIABLE}={own}",
            )
        ]
    return []


def _describe(about_key: dict[str, Any], *, url: str) -> str:
    where = "all projects" if about_key["project"] == ALL_PROJECTS else f"project {about_key['project']}"
    return f"{about_key['label']}, {about_key['scope']} of {where}, at {url}"


def check_service_version(surroundings: Surroundings) -> Result:
    """Compares the version of this command line with that of the service."""
    found = answered(surroundings)
    if found is None or found.about_key is None:
        return Result(skipped="no service answers")
    theirs = str(found.about_key["version"])
    ours = version_of(PACKAGE)
    if theirs == ours:
        return Result(detail=f"{theirs} on both sides")
    finding = warning(
        "this command line and the service have different versions",
        received=f"{ours} here, {theirs} there",
        needed="the same version",
        remedy=f"pip install 'lockstep-train=={theirs}'",
    )
    return Result(findings=(finding,))
