"""A job as a notebook shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import htpy as h

from lockstep.client.job_cost import JobCost
from lockstep.client.job_text import elapsed_s, news
from lockstep.client.wording import duration


def job_html(name: str, *, job: Mapping[str, Any] | None, url: str, problem: str) -> str:
    """Returns a job as HTML, with all text escaped.

    Args:
        name: the job's name.
        job: the job, in the contract's JSON form; None if it was never read.
        url: the URL of the job's page in the console.
        problem: why the job could not be read now; "" if it could.
    """
    rows: list[tuple[str, h.Node]] = [] if job is None else _rows(job)
    if problem:
        rows.append(("not read now", problem))
    table = h.table[
        ((h.tr[h.th(style="text-align: left")[term], h.td(style="text-align: left")[value]]) for term, value in rows)
    ]
    link = h.a(href=url, target="_blank", rel="noopener noreferrer")["open in the console"]
    return str(h.div[h.p[h.strong[f"Job {name}"], " · ", link], table])


def _rows(job: Mapping[str, Any]) -> list[tuple[str, h.Node]]:
    own = job["lockstep"]
    rows: list[tuple[str, h.Node]] = [
        ("state", [h.strong[job["state"]], " (simulated machines)" if own["simulated"] else ""]),
        ("elapsed" if "startTime" in job else "waiting", duration(elapsed_s(job))),
        ("cost", str(JobCost.of(job))),
    ]
    if text := news(job):
        known = "waits for" if own["waitingFor"] else "progress"
        rows.append(("error" if job.get("errorMessage") else known, text))
    return rows
