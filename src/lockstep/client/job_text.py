"""Describes a job in one line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from lockstep.client.job_cost import JobCost
from lockstep.client.wording import duration, printable


def job_url(service_url: str, *, project: str, name: str) -> str:
    """Returns the URL of a job's page in the console."""
    return f"{service_url}/projects/{quote(project, safe='')}/jobs/{quote(name, safe='')}"


def elapsed_s(job: Mapping[str, Any]) -> float:
    """Returns how long a job took, or takes so far, in seconds: from its start, or from its creation if it waits."""
    start = datetime.fromisoformat(job.get("startTime") or job["createTime"])
    end = datetime.fromisoformat(job["endTime"]) if "endTime" in job else datetime.now(tz=UTC)
    return max(0.0, (end - start).total_seconds())


def news(job: Mapping[str, Any]) -> str:
    """Returns what a job waits for, how it ended, or how far its program is; "" if nothing is known."""
    own = job["lockstep"]
    if own["waitingFor"]:
        return printable(own["waitingFor"])
    if job.get("errorMessage"):
        return printable(job["errorMessage"].splitlines()[0])
    progress = own["progress"]
    return "" if progress is None else printable(progress["text"])


def describe_job(job: Mapping[str, Any]) -> str:
    """Returns a job in one line: "train_1: RUNNING, 1 min 02 s, $0.0210 so far, step 1200, loss 0.31"."""
    cost = JobCost.of(job)
    parts = [
        f"{job['jobId']}: {job['state']}{' (simulated)' if job['lockstep']['simulated'] else ''}",
        duration(elapsed_s(job)),
        "" if cost.usd is None else f"${cost.usd}{'' if cost.is_final else ' so far'}",
        news(job),
    ]
    return ", ".join(part for part in parts if part)
