"""Converts the attempts of a job to JSON: their times, why each ended, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from lockstep.jobs.billing.attempt_costs import split_bill
from lockstep.jobs.billing.bills import bill
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.service.api.forms import AttemptForm
from lockstep.service.billing.usages import present_attempt, replica_usages
from lockstep.service.store import AttemptRecord, JobRecord


def attempt_documents(
    job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue, now_s: float
) -> list[AttemptForm]:
    """Returns a job's attempts as JSON, in order. The attempt that runs, if any, is the last and has no end time.

    Args:
        job: the job.
        attempts: its attempts that are over.
        catalogue: the catalogue of machines and prices.
        now_s: the time up to which the running attempt is charged, in seconds since 1970 UTC.

    Raises:
        ConfigError: If this version cannot read the job.
    """
    present = present_attempt(job, now_s=now_s)
    shown = [*attempts, *([] if present is None else [present])]
    usages = [replica_usages(job, attempts=[attempt], catalogue=catalogue) for attempt in shown]
    if job.bill is None:
        cost_usd = bill([usage for each in usages for usage in each], catalogue=catalogue).cost_usd
    else:
        cost_usd = job.bill.cost_usd
    costs = split_bill(cost_usd, attempts=usages, catalogue=catalogue)
    return [
        {
            "attempt": attempt.attempt,
            "startTime": _timestamp(attempt.start_time_s),
            "endTime": None if attempt is present else _timestamp(attempt.end_time_s),
            "latestEndTime": _timestamp(attempt.latest_end_time_s),
            "endReason": attempt.end_reason,
            "machineSeconds": str(cost.machine_s),
            "mlUnits": None if cost.ml_units is None else str(cost.ml_units),
            "costUsd": None if cost.cost_usd is None else str(cost.cost_usd),
        }
        for attempt, cost in zip(shown, costs, strict=True)
    ]


def _timestamp(time_s: float | None) -> str | None:
    if time_s is None:
        return None
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
