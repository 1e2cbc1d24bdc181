"""What a budget does: a project past it starts nothing, everybody is told, and one of nothing refuses jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from lockstep.jobs.billing.budgets import Budget, Period
from lockstep.jobs.running.states import JobEvent
from lockstep.service.billing import spending as spending_module
from lockstep.service.store import AttemptRecord
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

HOUR_S = 3600.0
NOON_S = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
ONE = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "pythonModule": "program"}  # $0.19 an hour
BOTH = Budget(usd={Period.DAY: Decimal("100"), Period.MONTH: Decimal("1000")})


def test_a_project_past_its_budget_starts_nothing_until_it_has_one_again(bench: Bench) -> None:
    bench.settings = replace(
        bench.settings,
        budgets={"local": Budget(usd={Period.DAY: Decimal("0.01")}, stop_at_limit=True)},
        max_running_jobs=8,
    )
    bench.clock = lambda: NOON_S  # an hour that ends shortly after midnight is of two days
    bench.restart()
    first = bench.create("first", **{key: value for key, value in ONE.items() if key != "pythonModule"})
    now_s = first.create_time_s
    ended = AttemptRecord(attempt=0, start_time_s=now_s - HOUR_S, end_time_s=now_s, end_reason=None)
    bench.store.advance(first.uid, JobEvent.PREPARING, detail="")
    bench.store.advance(first.uid, JobEvent.STARTED, detail="", start_time_s=now_s - HOUR_S)
    bench.store.advance(first.uid, JobEvent.SUCCEEDED, detail="", end_time_s=now_s, ended=ended)
    bench.restart()
    second = bench.create("second")
    assert _starts(bench) == []
    reason = bench.controller.schedule.explain(second).reason
    assert reason.startswith("budget of project local: $0.19 of $0.01 a day is spent; the next day begins at ")
    bench.settings = replace(bench.settings, budgets={"local": Budget(usd={Period.DAY: Decimal("9")})})
    bench.restart()
    assert _starts(bench) == ["second"]


def test_a_fault_in_the_arithmetic_keeps_only_those_whose_money_is_limited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    budgets = {"local": Budget(usd={Period.DAY: Decimal("40")}, stop_at_limit=True)}
    bench.settings = replace(bench.settings, budgets=budgets)
    bench.restart()
    bench.create("held")
    bench.store.create(project="free", job_id="goes", training_input=ONE, labels={}, simulated=False, outputs={})

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(spending_module, "why_held", fail)
    assert _starts(bench) == ["goes"]
    assert _starts(bench) == ["goes"]
    assert len(caplog.records) == 1, "it is tried again after a pause"
    assert "what projects have spent is not known" in caplog.text
    reason = bench.controller.schedule.explain(bench.job("held")).reason
    assert reason == "budget of project local: what it has spent is being added up"
    monkeypatch.undo()
    monkeypatch.setattr(spending_module, "REFRESH_S", 0.0)
    assert "held" in _starts(bench)


def _starts(bench: Bench) -> list[str]:
    bench.controller.lease.acquire_or_renew()
    starts, _ = bench.controller.schedule.decide()
    return [job.job_id for job, _ in starts]


def test_budgets_are_shown_and_one_of_nothing_refuses_jobs_at_submission(bench: Bench) -> None:
    budgets = {
        "local": Budget(usd={Period.DAY: Decimal("40.00"), Period.MONTH: Decimal("0")}, stop_at_limit=True),
        "other": BOTH,
    }
    bench.settings = replace(bench.settings, budgets=budgets)
    bench.restart()
    bench.controller.lease.acquire_or_renew()
    bench.controller.schedule.decide()
    service = Served(bench)
    try:
        body = {"jobId": "job", "trainingInput": {"scaleTier": "BASIC", "pythonModule": "program"}}
        refused = service.http.post("/v1/projects/local/jobs", json=body)
        assert refused.status_code == 400
        assert "the job could never run: budget of project local: $0.00 a month is allowed" in refused.text
        assert service.http.post("/v1/projects/other/jobs", json=body).status_code == 200
        shown = service.http.get("/v1/service").json()["budgets"]
        assert [(found["project"], found["limitUsd"]) for found in shown] == [
            ("local", "40.00"),
            ("local", "0"),
            ("other", "100"),
            ("other", "1000"),
        ]
        own = service.http.get("/v1/projects/local/costs").json()["budgets"]
        assert own == shown[:2]
    finally:
        service.close()
