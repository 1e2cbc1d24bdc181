"""Runs checks at the same time, each for a bounded time, and removes secrets from what they say."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from lockstep.doctor.findings import Diagnosis, Finding, Remark, Result, Severity, error
from lockstep.doctor.surroundings import Surroundings
from lockstep.errors import LockstepError

LIMIT_S: Final = 10.0
"""How long a check may take, in seconds, unless it says otherwise."""

_SECRET_NAME: Final = re.compile("TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE", re.IGNORECASE)
_MIN_SECRET: Final = 6
"""A shorter value of a variable is no secret, and may be part of any word."""
_IN_URL: Final = re.compile(r"(?<=://)[^\s/@]+@")
_HIDDEN: Final = "***"


@final
@dataclass(frozen=True, kw_only=True)
class Check:
    """A check.

    Attributes:
        name: its name, one word, such as "disk".
        run: examines the surroundings. Called in a thread of its own; it may block and may raise.
        limit_s: how long it may take, in seconds.
        for_service: whether a service runs it for its own machine.
    """

    name: str
    run: Callable[[Surroundings], Result]
    limit_s: float = LIMIT_S
    for_service: bool = True


def run_checks(checks: Sequence[Check], surroundings: Surroundings) -> Diagnosis:
    """Runs checks at the same time. Blocks for little longer than the largest limit of a check.

    A check that does not end in time, or fails, is a finding itself. It keeps its thread, which does not keep the
    process alive.

    Args:
        checks: the checks; those that are not for a service are left out if a service asks.
        surroundings: what they look at.
    """
    chosen = [check for check in checks if check.for_service or not surroundings.of_service]
    ended: queue.SimpleQueue[tuple[str, Result]] = queue.SimpleQueue()
    began = time.monotonic()
    for check in chosen:
        threading.Thread(
            target=_run, args=(check, surroundings, ended), name=f"check-{check.name}", daemon=True
        ).start()
    results: dict[str, Result] = {}
    open_checks = {check.name: check for check in chosen}
    while open_checks:
        first = min(open_checks.values(), key=lambda check: check.limit_s)
        try:
            name, result = ended.get(timeout=max(0.0, began + first.limit_s - time.monotonic()))
        except queue.Empty:
            name, result = first.name, _hung(first)
        if open_checks.pop(name, None) is not None:  # else it ends now, after it was given up
            results[name] = result
    return _diagnose([(check.name, results[check.name]) for check in chosen], hide=_hider(surroundings))


def _run(check: Check, surroundings: Surroundings, ended: queue.SimpleQueue[tuple[str, Result]]) -> None:
    try:
        result = check.run(surroundings)
    except LockstepError as problem:
        result = _failed(check, str(problem), remedy=problem.action or "see the message")
    except Exception as problem:  # a check that fails says so, and the others go on
        result = _failed(check, f"{type(problem).__name__}: {problem}", remedy="report this")
    ended.put((check.name, result))


def _failed(check: Check, text: str, *, remedy: str) -> Result:
    needed = f"the check {check.name} ends by itself"
    return Result(findings=(error("a check failed", received=text, needed=needed, remedy=remedy),))


def _hung(check: Check) -> Result:
    return Result(
        findings=(
            error(
                "a check did not end",
                received=f"{check.name} took longer than {check.limit_s:g} s",
                needed="an answer in time: a disk, a server or a command hangs",
                remedy=f"lockstep doctor --only {check.name}",
            ),
        )
    )


def _diagnose(results: Sequence[tuple[str, Result]], *, hide: Callable[[str], str]) -> Diagnosis:
    findings: list[Finding] = []
    passed: list[Remark] = []
    skipped: list[Remark] = []
    for name, result in results:
        if result.findings:
            findings += [_named(finding, name=name, hide=hide) for finding in result.findings]
        elif result.skipped:
            skipped.append(Remark(check=name, text=hide(result.skipped)))
        else:
            passed.append(Remark(check=name, text=hide(result.detail)))
    findings.sort(key=lambda finding: finding.severity is not Severity.ERROR)  # stable
    return Diagnosis(findings=tuple(findings), passed=tuple(passed), skipped=tuple(skipped))


def _named(finding: Finding, *, name: str, hide: Callable[[str], str]) -> Finding:
    return replace(
        finding,
        check=name,
        what=hide(finding.what),
        received=hide(finding.received),
        needed=hide(finding.needed),
        remedy=hide(finding.remedy),
    )


def _hider(surroundings: Surroundings) -> Callable[[str], str]:
    """Returns a function that makes a text one line, and hides the secrets of the surroundings in it.

    Messages of other programs may repeat a variable, or a URL with a password.
    """
    values = {value for name, value in surroundings.env.items() if _SECRET_NAME.search(name)}
    with contextlib.suppress(OSError):  # no service has run here, or the home is another user's
        values.add(surroundings.home.token.read_text().strip())
    secrets = sorted((value for value in values if _is_secret(value)), key=len, reverse=True)

    def hide(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, _HIDDEN)
        return " ".join(_IN_URL.sub(f"{_HIDDEN}@", text).split())

    return hide


def _is_secret(value: str) -> bool:
    """Whether the value of a variable may be a secret; the path of a file with one is none, and helps."""
    return len(value) >= _MIN_SECRET and not value.startswith(("/", "~", "./"))
