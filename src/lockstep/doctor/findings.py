"""What a check finds: faults, each with the command that mends it, or what it saw where all is well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, final

from lockstep.errors import CorruptDataError


@final
class Severity(StrEnum):
    """How bad a fault is."""

    ERROR = "error"
    """Something does not work."""
    WARNING = "warning"
    """Something works, but slowly, or not for long, or not as the user expects."""


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault of a machine, or of what it can reach.

    Attributes:
        check: the name of the check that found it; empty until the check has ended.
        severity: how bad it is.
        what: what is wrong, in a few words.
        received: what was found.
        needed: what is needed instead.
        remedy: the command that mends it, or a sentence if no command does.
    """

    check: str = ""
    severity: Severity
    what: str
    received: str
    needed: str
    remedy: str

    def to_json(self) -> dict[str, str]:
        """Returns the finding as a JSON object."""
        return {
            "check": self.check,
            "severity": self.severity.value,
            "what": self.what,
            "received": self.received,
            "needed": self.needed,
            "remedy": self.remedy,
        }


def error(what: str, *, received: object, needed: str, remedy: str) -> Finding:
    """Returns a finding about something that does not work; the arguments are those of `Finding`."""
    return Finding(severity=Severity.ERROR, what=what, received=str(received), needed=needed, remedy=remedy)


def warning(what: str, *, received: object, needed: str, remedy: str) -> Finding:
    """Returns a finding about something that works badly; the arguments are those of `Finding`."""
    return Finding(severity=Severity.WARNING, what=what, received=str(received), needed=needed, remedy=remedy)


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one check.

    Attributes:
        findings: the faults.
        detail: what the check saw, such as "12 GiB free"; shown if there is no fault.
        skipped: why the check does not apply to this machine; empty if it does.
    """

    findings: tuple[Finding, ...] = ()
    detail: str = ""
    skipped: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Remark:
    """A check without a fault.

    Attributes:
        check: the name of the check.
        text: what it saw, or why it does not apply.
    """

    check: str
    text: str

    def to_json(self) -> dict[str, str]:
        """Returns the remark as a JSON object."""
        return {"check": self.check, "text": self.text}


@final
@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The results of all checks.

    Attributes:
        findings: the faults, errors first.
        passed: the checks without a fault.
        skipped: the checks that do not apply.
    """

    findings: tuple[Finding, ...] = ()
    passed: tuple[Remark, ...] = ()
    skipped: tuple[Remark, ...] = ()

    @property
    def num_errors(self) -> int:
        """The number of errors among the findings."""
        return sum(finding.severity is Severity.ERROR for finding in self.findings)

    def to_json(self) -> dict[str, list[dict[str, str]]]:
        """Returns the diagnosis as a JSON object for `from_json`."""
        return {
            "findings": [finding.to_json() for finding in self.findings],
            "passed": [remark.to_json() for remark in self.passed],
            "skipped": [remark.to_json() for remark in self.skipped],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Reads the document that `to_json` returns. Further keys are ignored.

        Raises:
            CorruptDataError: the document has another form.
        """
        try:
            return cls(
                findings=tuple(
                    Finding(
                        check=str(each["check"]),
                        severity=Severity(each["severity"]),
                        what=str(each["what"]),
                        received=str(each["received"]),
                        needed=str(each["needed"]),
                        remedy=str(each["remedy"]),
                    )
                    for each in document["findings"]
                ),
                passed=_remarks(document["passed"]),
                skipped=_remarks(document["skipped"]),
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise CorruptDataError(f"not the result of checks: {type(problem).__name__}: {problem}") from None


def _remarks(documents: Sequence[Mapping[str, Any]]) -> tuple[Remark, ...]:
    return tuple(Remark(check=str(each["check"]), text=str(each["text"])) for each in documents)
