"""The clocks of this machine and of the service, and the end of the service's certificate."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from lockstep.doctor.checks.service_look import (
    NETWORK_FAULTS,
    address_of,
    certificate_end,
    clock_difference_s,
    file_end,
    now,
)
from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.surroundings import Surroundings

SKEW_S: Final = 5.0
"""A larger difference between two clocks makes times of logs and jobs confusing."""
LARGE_SKEW_S: Final = 300.0
"""A larger difference makes stores and receivers of webhooks refuse signatures."""
SOON: Final = timedelta(days=14)
SET_CLOCK: Final = "sudo timedatectl set-ntp true"


def check_clocks(surroundings: Surroundings) -> Result:
    """Compares this machine's clock with the service's."""
    address = address_of(surroundings)
    if address is None:
        return Result(skipped="no service runs")
    try:
        difference_s = clock_difference_s(address)
    except NETWORK_FAULTS:  # the check of credentials reports it
        return Result(skipped="the service does not respond")
    if difference_s is None:
        return Result(skipped="the service does not send its time")
    finding = judge_skew(difference_s, other="the service's clock")
    detail = f"{max(0.0, abs(difference_s) - 1.0):.0f} s from the service's clock, within a second"
    return Result(findings=() if finding is None else (finding,), detail=detail)


def judge_skew(difference_s: float, *, other: str) -> Finding | None:
    """Returns the finding about two clocks, or None if they agree well enough.

    Args:
        difference_s: by how much this machine's clock is ahead of the other one, in seconds.
        other: the other clock, such as "the database's clock".
    """
    if abs(difference_s) <= SKEW_S:
        return None
    make = error if abs(difference_s) > LARGE_SKEW_S else warning
    return make(
        f"this machine's clock and {other} differ",
        received=f"{abs(difference_s):.0f} s {'ahead' if difference_s > 0 else 'behind'}",
        needed=f"at most {SKEW_S:.0f} s",
        remedy=SET_CLOCK,
    )


def check_certificate(surroundings: Surroundings) -> Result:
    """Looks at when the certificate of the service ends."""
    if surroundings.of_service:
        if surroundings.tls_certificate is None:
            return Result(skipped="no TLS")
        try:
            end = file_end(surroundings.tls_certificate)
        except (OSError, ValueError) as problem:
            return Result(findings=(_unreadable(str(problem)),))
        return _judged(end)
    address = address_of(surroundings)
    if address is None:
        return Result(skipped="no service runs")
    try:
        found = certificate_end(address)
    except NETWORK_FAULTS as problem:
        if "certificate" not in str(problem):
            return Result(skipped="the service does not respond")
        return Result(findings=(_unreadable(str(problem)),))
    return Result(skipped="no TLS") if found is None else _judged(found)


def _unreadable(problem: str) -> Finding:
    return error(
        "the service's certificate cannot be used",
        received=problem,
        needed="a certificate of a trusted authority, for the service's host",
        remedy="export LOCKSTEP_CA_CERT=authority.pem",
    )


def _judged(end: datetime) -> Result:
    finding = judge_end(end, at=now())
    return Result(findings=() if finding is None else (finding,), detail=f"valid until {end:%Y-%m-%d}")


def judge_end(end: datetime, *, at: datetime) -> Finding | None:
    """Returns the finding about a certificate that has ended or ends soon, else None.

    Args:
        end: until when it is valid.
        at: the time now.
    """
    if end - at > SOON:
        return None
    remedy = "lockstep down && lockstep up --tls-certificate NEW.pem --tls-key KEY.pem"
    make = error if end <= at else warning
    return make(
        "the service's certificate has expired" if end <= at else "the service's certificate expires soon",
        received=f"valid until {end:%Y-%m-%d %H:%M} UTC",
        needed=f"a certificate that is valid for {SOON.days} days or more",
        remedy=remedy,
    )
