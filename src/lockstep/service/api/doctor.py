"""Lockstep's own route for the faults of the service's machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lockstep.doctor import Finding, Severity, Surroundings
from lockstep.doctor.checks.clocks import SET_CLOCK, SKEW_S, judge_skew
from lockstep.jobs.security.access import Scope
from lockstep.service.api.access import requires_scope
from lockstep.service.api.forms import DoctorForm, FindingForm, RemarkForm
from lockstep.service.api.requests import Context
from lockstep.service.api.resources import timestamp
from lockstep.service.api.routes import make_router
from lockstep.service.context import ServiceContext
from lockstep.service.store import DATABASE_FAULTS

WAIT_S: Final = 1.0
"""How long a request waits for new results, in seconds. Its thread is one of those that all requests share."""

router = make_router()


@router.get("/v1/doctor")
@requires_scope(Scope.OPERATOR)
def doctor(context: Context) -> DoctorForm:
    """Returns what is wrong with the service's machine. Results are kept for a minute.

    ``checking`` says that an examination runs; ask again until it has ended.
    """
    found = context.checkup.latest(
        surroundings_of(context), also=lambda: own_findings(context, clock=time.time), wait_s=WAIT_S
    )
    diagnosis = found.diagnosis
    findings: list[FindingForm] = []
    passed: list[RemarkForm] = []
    skipped: list[RemarkForm] = []
    if diagnosis is not None:
        findings = [
            {
                "check": each.check,
                "severity": each.severity.value,
                "what": each.what,
                "received": each.received,
                "needed": each.needed,
                "remedy": each.remedy,
            }
            for each in diagnosis.findings
        ]
        passed = [{"check": each.check, "text": each.text} for each in diagnosis.passed]
        skipped = [{"check": each.check, "text": each.text} for each in diagnosis.skipped]
    return {
        "time": None if found.time_s is None else timestamp(found.time_s),
        "checking": found.is_running,
        "findings": findings,
        "passed": passed,
        "skipped": skipped,
    }


def surroundings_of(context: ServiceContext) -> Surroundings:
    """Returns what the checks look at for a service."""
    settings = context.settings
    return Surroundings(
        home=settings.home, of_service=True, bucket=settings.bucket, tls_certificate=settings.tls_certificate
    )


def own_findings(context: ServiceContext, *, clock: Callable[[], float]) -> list[Finding]:
    """Returns the faults that only the service's own process can see. Blocks for as long as its database does.

    Args:
        context: the parts of the service.
        clock: this machine's clock, in seconds since 1970 UTC.
    """
    found: list[Finding] = []
    settings = context.settings
    if settings.users_warning:
        found.append(
            Finding(
                check="users",
                severity=Severity.WARNING,
                what="programs of jobs run as root",
                received=settings.users_note,
                needed="a user of its own for each job",
                remedy=(
                    "move Python, Lockstep, the home and the bucket to /opt, or accept it: lockstep up --run-as none"
                ),
            )
        )
    try:
        if settings.database:  # SQLite has no clock of its own
            skew = judge_skew(clock() - context.controller.lease.database_time_s(), other="the database's clock")
            found += [] if skew is None else [replace(skew, check="clocks")]
        found += _of_nodes(context, now_s=clock())
    except DATABASE_FAULTS as fault:
        found.append(
            Finding(
                check="clocks",
                severity=Severity.ERROR,
                what="the database does not answer",
                received=type(fault).__name__,
                needed="an answer within seconds",
                remedy="lockstep status",
            )
        )
    return found


def _of_nodes(context: ServiceContext, *, now_s: float) -> list[Finding]:
    """Returns the nodes whose clocks are ahead: their programs' heartbeats arrived in the future."""
    ahead = {
        replica.status.host: replica.status.progress.time_s - now_s
        for job in context.jobs.running()
        for replica in job.replicas
        if replica.status.progress is not None and replica.status.progress.time_s > now_s + SKEW_S
    }
    return [
        Finding(
            check="clocks",
            severity=Severity.WARNING,
            what=f"the clock of node {host} is ahead",
            received=f"a heartbeat arrived {seconds:.0f} s in the future",
            needed=f"clocks that differ by at most {SKEW_S:.0f} s",
            remedy=f"{SET_CLOCK}   # on that node",
        )
        for host, seconds in sorted(ahead.items())
    ]
