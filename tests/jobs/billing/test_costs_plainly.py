"""Reports of costs, compared with a sum that makes fractions of each usage by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs.billing.bills import ReplicaUsage, round_half_up
from lockstep.jobs.billing.costs import CostReport, JobUsage, report_costs
from lockstep.jobs.billing.days import day_name, next_day_s
from lockstep.jobs.input.gangs import describe_machine
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.machines.catalogue import load_catalogue

CATALOGUE = load_catalogue()
P100 = AcceleratorConfig(type=AcceleratorType.NVIDIA_TESLA_P100, count=1)
TIMES = st.floats(1_700_000_000, 1_700_400_000) | st.sampled_from([1_700_006_400.0, 1_700_092_800.0])

USAGES = st.builds(
    ReplicaUsage,
    replica=st.just("master-replica-0"),
    machine_type=st.sampled_from(["n1-standard-4", "n1-highmem-2", "n1-highmem-4", "a3-highgpu-8g"]),
    accelerator=st.sampled_from([None, P100]),
    region=st.sampled_from([None, "europe-west4"]),
    start_time_s=TIMES,
    end_time_s=TIMES,
)
JOBS = st.builds(
    JobUsage,
    uid=st.uuids().map(str),
    project=st.sampled_from(["p", "q"]),
    job=st.sampled_from(["a", "b", "c"]),
    labels=st.sampled_from([{}, {"team": "vision"}]),
    simulated=st.booleans(),
    usages=st.lists(USAGES, max_size=4).map(tuple),
    busy_s=st.none() | st.floats(0, 300_000),
)


@dataclass
class _Plain:
    """The sums of one row: hours, units, dollars, owed, of servers, unused, their dollars."""

    sums: list[Fraction] = field(default_factory=lambda: [Fraction(0)] * 7)
    unpriced: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, usage: ReplicaUsage, *, hours: Fraction, owed: bool, unused: Fraction | None) -> None:
        machine = {"accelerator": usage.accelerator, "region": usage.region}
        rate = CATALOGUE.units_per_hour(usage.machine_type, **machine)
        if rate is None:
            self.unpriced[describe_machine(usage.machine_type, accelerator=usage.accelerator)] = None
        units = (rate or 0) * hours
        usd = units * CATALOGUE.ml_unit_usd(usage.region)
        served = Fraction(0) if unused is None else hours
        share = unused or Fraction(0)
        more = (hours, units, usd, usd if owed else Fraction(0), served, hours * share, usd * share)
        self.sums = [mine + other for mine, other in zip(self.sums, more, strict=True)]

    @property
    def shown(self) -> tuple[Any, ...]:
        return (*(str(round_half_up(each, decimals=4)) for each in self.sums), tuple(self.unpriced))


def _plainly(jobs: Sequence[JobUsage], *, by: str, since_s: float, until_s: float) -> dict[str, tuple[Any, ...]]:
    rows: dict[str, _Plain] = {}
    total = _Plain()
    for job in jobs:
        names = {"job": job.job, "project": job.project, "label:team": job.labels.get("team", "(none)")}
        for usage in job.usages:
            start_s, last_s = max(usage.start_time_s, since_s), min(usage.end_time_s, until_s)
            while start_s < last_s:
                end_s = min(last_s, next_day_s(start_s)) if by == "day" else last_s
                hours = Fraction(round(end_s * 10**6) - round(start_s * 10**6), 3600 * 10**6)
                machine = describe_machine(usage.machine_type, accelerator=usage.accelerator)
                name = {**names, "day": day_name(start_s), "node-type": machine}[by]
                for into in (rows.setdefault(name, _Plain()), total):
                    into.add(usage, hours=hours, owed=not job.simulated, unused=job.unused_share)
                start_s = end_s
    return {**{name: rows[name].shown for name in sorted(rows)}, "total": total.shown}


def _shown(report: CostReport) -> dict[str, tuple[Any, ...]]:
    return {
        row.name: (
            *map(str, (row.machine_hours, row.ml_units, row.cost_usd, row.owed_usd)),
            *map(str, (row.server_hours, row.unused_hours, row.unused_usd)),
            row.unpriced,
        )
        for row in (*report.rows, report.total)
    }


@pytest.mark.parametrize("by", ["job", "day", "project", "node-type", "label:team"])
@given(jobs=st.lists(JOBS, max_size=5), window=st.none() | st.tuples(TIMES, TIMES))
@pytest.mark.heavy
def test_a_report_has_the_figures_of_each_usage_summed_by_itself(
    by: str, jobs: list[JobUsage], window: tuple[float, float] | None
) -> None:
    since_s, until_s = (0.0, 1e10) if window is None else (min(window), max(window))
    report = report_costs(jobs, by=by, catalogue=CATALOGUE, since_s=since_s, until_s=until_s)
    assert _shown(report) == _plainly(jobs, by=by, since_s=since_s, until_s=until_s)
    assert list(_shown(report)) == list(_plainly(jobs, by=by, since_s=since_s, until_s=until_s)), "in order"
