"""What projects have spent: as the report of costs has it, from a few rows at each look, over deaths of the service."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, update
from tests.service.postgres import PASSWORD, Server

from lockstep.jobs.billing.budgets import Budget, Period
from lockstep.jobs.billing.days import month_start_s
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import NodeRecord
from lockstep.jobs.running.orders import GANG_ORDER, GangOrder, ReplicaOrder
from lockstep.jobs.running.states import JobEvent
from lockstep.service.api.billing.budgets import budget_form
from lockstep.service.billing import spending as spending_module
from lockstep.service.billing.accounting import Accounts
from lockstep.service.billing.spending import PAGE_SIZE, REFRESH_S, Spending
from lockstep.service.store import (
    AttemptRecord,
    JobRecord,
    JobStore,
    LeaseLostError,
    NodeStore,
    SpendingStore,
    StoredSizeStore,
    open_database,
)
from lockstep.service.store.billing import spending as spending_store
from lockstep.service.store.tables import BUDGET_ALERTS, JOB_ATTEMPTS, JOB_EVENTS, JOBS, SPENT_DAYS

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
NOON_S = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
ONE = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "pythonModule": "program"}  # $0.19 an hour
BOTH = Budget(usd={Period.DAY: Decimal("100"), Period.MONTH: Decimal("1000")})


class Town:
    """A database with jobs and nodes that somebody runs by hand, and what looks at their spending."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.now_s = NOON_S
        self.jobs = JobStore(self.engine, clock=lambda: self.now_s)
        self.nodes = NodeStore(self.engine)
        self.budgets = {"p": BOTH}
        self.num_jobs = 0
        self.restart()

    def restart(self, *, guard: Any = lambda _connection: None) -> None:
        """Acts as a service that is killed and started again."""
        self.spending = Spending(
            store=SpendingStore(self.engine, guard=guard),
            catalogue=load_catalogue(),
            budgets=self.budgets,
            quotas={},
        )

    def refresh(self, *, acts: bool = True) -> None:
        """Refreshes the figures as often as it takes to sum everything."""
        self.now_s += REFRESH_S
        self.spending.refresh(now_s=self.now_s, acts=acts)
        while not self.spending.states():
            self.spending.refresh(now_s=self.now_s, acts=acts)

    def run(self, *, project: str = "p", machine: str = "", **columns: Any) -> str:
        """Has a job start now."""
        self.num_jobs += 1
        name = f"job_{self.num_jobs}"
        job = self.jobs.create(project=project, job_id=name, training_input=ONE, labels={}, simulated=False, outputs={})
        self.jobs.update(job.uid, **columns)
        self.place(job.uid, machine=machine)
        return job.uid

    def place(self, uid: str, *, machine: str = "") -> None:
        job = self.jobs.get_by_uid(uid)
        replica = ReplicaOrder(
            name="master-replica-0", role="master", index=0, job="", command=(), spool="", log_url="", machine=machine
        )
        order = GangOrder(gang_id=f"{uid}-{job.attempt}", replicas=(replica,))
        self.jobs.advance(
            uid,
            JobEvent.PREPARING,
            detail="",
            gang_order=GANG_ORDER.dump_python(order, mode="json"),
            gang_released=False,
        )
        self.jobs.advance(
            uid, JobEvent.STARTED, detail="", start_time_s=job.start_time_s or self.now_s, run_start_time_s=self.now_s
        )

    def end(self, uid: str, *, kind: JobEvent = JobEvent.SUCCEEDED) -> None:
        """Has a job end now; or its gang, if it is to be restarted."""
        job = self.jobs.get_by_uid(uid)
        assert job.gang_order is not None
        machine = job.gang_order["replicas"][0]["machine"]
        ended = AttemptRecord(
            attempt=job.attempt,
            start_time_s=job.run_start_time_s,
            end_time_s=self.now_s,
            end_reason=None,
            machines=(machine,) if machine else (),
        )
        changes: dict[str, Any] = {"end_time_s": self.now_s}
        if kind is JobEvent.RESTARTED:
            changes = {"attempt": job.attempt + 1, "run_start_time_s": None}
        self.jobs.advance(uid, kind, detail="", ended=ended, gang_released=True, **changes)

    def ask(self, name: str, *, asked_for: str | None = None, **columns: Any) -> None:
        """Has a node come up now."""
        self.nodes.record(
            asked=[
                NodeRecord(
                    name=name,
                    slot=name,
                    node_type="cpu",
                    asked_for=asked_for,
                    asked_time_s=self.now_s,
                    up_time_s=self.now_s,
                    **{"machine": "n1-standard-4", "usd_per_hour": "0.36", "price_source": "test", **columns},
                )
            ]
        )

    def spent(self, project: str = "p") -> dict[str, str]:
        """What is shown of a project, by the day and the month."""
        forms = [budget_form(state) for state in self.spending.states() if state.project == project]
        return {form["period"]: form["spentUsd"] for form in forms}

    def reported(self, project: str = "p") -> dict[str, str]:
        """What the report of costs says of the same periods."""
        sizes = StoredSizeStore(self.engine)
        accounts = Accounts(jobs=self.jobs, nodes=self.nodes, sizes=sizes, catalogue=load_catalogue(), bucket="/b")
        month = month_start_s(self.now_s)
        report = accounts.report(project=project, by="day", since_s=month, until_s=self.now_s, now_s=self.now_s)
        today = Period.DAY.name_of(self.now_s)
        days = {row.name: str(row.owed_usd) for row in report.rows}
        return {today: days.get(today, "0.0000"), Period.MONTH.name_of(self.now_s): str(report.total.owed_usd)}

    @property
    def alerts(self) -> list[tuple[str, str]]:
        with self.engine.connect() as connection:
            query = select(BUDGET_ALERTS.c.period, BUDGET_ALERTS.c.share).order_by(BUDGET_ALERTS.c.seq)
            return [(period, share) for period, share in connection.execute(query)]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    engine = open_database(f"sqlite:///{tmp_path / 'town.db'}")
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    engine.dispose()  # connections from here on wait for no disk
    yield Town(engine)
    engine.dispose()


def test_what_runs_counts_up_to_now_and_what_has_ended_once(town: Town) -> None:
    job = town.run()
    town.refresh()
    town.now_s += HOUR_S - 2 * REFRESH_S
    town.refresh()
    assert town.spent() == {"2026-11-22": "0.1900", "2026-11": "0.1900"}
    town.end(job, kind=JobEvent.RESTARTED)
    for _ in range(2):
        town.refresh()
        assert town.spent()["2026-11-22"] == "0.1900"
    town.place(job)
    town.now_s += HOUR_S
    town.end(job)
    for _ in range(2):
        town.refresh()
        assert town.spent()["2026-11-22"] == "0.3800"
    town.restart()
    town.refresh()
    assert town.spent() == {"2026-11-22": "0.3800", "2026-11": "0.3800"}


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, id=str(seed), marks=[pytest.mark.heavy] if seed else []) for seed in range(12)]
)
def test_at_any_time_it_is_what_the_report_says(town: Town, seed: int) -> None:
    _live(town, random.Random(seed))


@pytest.mark.heavy
def test_on_postgresql_it_is_the_same(postgres: Server) -> None:
    engine = open_database(postgres.url(postgres.create_database_with_tables()), password=PASSWORD)
    try:
        town = Town(engine)
        _live(town, random.Random(0))
        town.budgets = {"p": Budget(usd={Period.MONTH: Decimal("0.01")}, alert_shares=(Decimal(1),))}
        for _ in range(2):
            town.restart()
            town.refresh()
        assert town.alerts == [(Period.MONTH.name_of(town.now_s), "1")]
    finally:
        engine.dispose()


def _live(town: Town, chance: random.Random) -> None:
    """Has things happen by chance, and compares what is spent with the report every now and then."""
    town.budgets["q"] = replace(BOTH)
    town.restart()
    running: list[str] = []
    nodes: list[str] = []
    for step in range(60):
        town.now_s += chance.choice((30.0, 700.0, HOUR_S, 5 * HOUR_S))
        act = chance.choice(
            ("run", "run", "end", "end", "restart job", "node", "node goes", "fails", "refresh", "service")
        )
        if act == "run":
            machine = chance.choice(["", *nodes])
            running.append(town.run(project=chance.choice("pqr"), machine=machine, simulated=chance.random() < 0.2))
        elif act in ("end", "restart job") and running:
            job = running.pop(chance.randrange(len(running)))
            town.end(job, kind=JobEvent.SUCCEEDED if act == "end" else JobEvent.RESTARTED)
            if act == "restart job":
                town.place(job, machine=chance.choice(["", *nodes]))
                running.append(job)
        elif act == "node":
            nodes.append(f"node-{step}")
            town.ask(nodes[-1], asked_for=chance.choice([None, *running]), usd_per_hour=chance.choice(("0.36", None)))
            town.nodes.mark(nodes[-1], ready_time_s=town.now_s + 20.0)
        elif act in ("node goes", "fails") and nodes:
            node = nodes.pop(chance.randrange(len(nodes)))
            left = [job for job in running if node in str(town.jobs.get_by_uid(job).gang_order)]
            for job in left:
                running.remove(job)
                town.end(job)
            changes = {"down_time_s": town.now_s} if act == "node goes" else {"failed_time_s": town.now_s}
            town.nodes.mark(node, **changes)
        elif act == "service":
            town.restart()
        if act != "refresh":
            continue
        town.refresh()
        for project in "pq":
            assert town.spent(project) == town.reported(project)
    town.refresh()
    assert town.spent("p") == town.reported("p")
    assert town.spent("q") == town.reported("q")


def test_simulated_machines_are_owed_nothing_and_unpriced_ones_are_named(town: Town) -> None:
    town.run(simulated=True)
    town.run(training_input={**ONE, "masterType": "n1-highmem-4"})
    town.now_s += HOUR_S
    town.refresh()
    [day, _] = map(budget_form, town.spending.states())
    assert (day["spentUsd"], day["unpriced"]) == ("0.0000", ["n1-highmem-4"])
    town.budgets = {"p": replace(BOTH, count_simulated=True)}
    town.restart()
    town.refresh()
    assert town.spent()["2026-11-22"] == "0.1905"  # an hour and two looks


def test_an_alert_is_raised_once_a_share_and_period_also_by_the_next_service(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    town.budgets = {"p": Budget(usd={Period.DAY: Decimal("0.38")})}
    town.restart()
    town.run()
    town.refresh()
    assert town.alerts == []
    town.now_s += HOUR_S
    town.refresh()
    assert town.alerts == [("2026-11-22", "0.5")]
    [said] = [record.getMessage() for record in caplog.records]
    assert said == "50% of a budget of project p: $0.19 of $0.38 a day is spent (2026-11-22, UTC)"
    for _ in range(2):
        town.restart()
        town.refresh()
    assert len(town.alerts) == len(caplog.records) == 1
    town.now_s += HOUR_S
    town.refresh()
    assert town.alerts[1:] == [("2026-11-22", "0.9"), ("2026-11-22", "1")]
    town.now_s = NOON_S + DAY_S
    town.refresh()
    assert {period for period, _ in town.alerts} == {"2026-11-22", "2026-11-23"}
    assert len(town.alerts) == 6


def test_a_service_that_stands_by_says_the_same_and_writes_nothing(town: Town) -> None:
    town.budgets = {"p": Budget(usd={Period.DAY: Decimal("0.01"), Period.MONTH: Decimal("0.01")})}

    def forbid(_connection: object) -> None:
        raise LeaseLostError("another service acts")

    town.restart(guard=forbid)
    town.run()
    town.now_s += HOUR_S
    town.refresh(acts=False)
    assert town.spent() == town.reported()
    town.now_s += 2 * DAY_S
    town.refresh(acts=False)
    assert town.spent() == town.reported()
    with pytest.raises(LeaseLostError):
        town.refresh(acts=True)


def test_a_refresh_is_summed_as_a_whole_or_not_at_all(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    user = town.run()
    town.ask("n", asked_for=user)
    town.now_s += HOUR_S
    town.end(user)
    town.nodes.mark("n", down_time_s=town.now_s)
    town.now_s += HOUR_S
    with monkeypatch.context() as patch:
        patch.setattr(spending_store, "_mark_nodes", _fail)  # the last thing that the transaction does
        with pytest.raises(ZeroDivisionError):
            town.refresh()
    with town.engine.connect() as connection:
        assert connection.execute(select(SPENT_DAYS)).all() == []
    for _ in range(2):
        town.restart()
        town.refresh()
        assert town.spent() == town.reported()
    with town.engine.connect() as connection:
        [(day, owed_usd)] = connection.execute(select(SPENT_DAYS.c.day, SPENT_DAYS.c.owed_usd)).all()
        assert (day, Fraction(owed_usd)) == ("2026-11-22", Fraction("0.19") + Fraction("0.36"))


def _fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def test_a_node_that_went_counts_while_its_job_is_not_known_to_be_over(town: Town) -> None:
    town.ask("n")
    job = town.run(machine="n")
    town.now_s += HOUR_S
    town.nodes.mark("n", down_time_s=town.now_s)
    town.refresh()
    for _ in range(3):  # the engine does not answer for as long
        town.now_s += HOUR_S
        town.refresh()
        assert town.spent() == town.reported()
    town.end(job)
    town.refresh()
    assert town.spent() == town.reported()


def test_an_end_that_appears_after_a_later_event_of_another_kind_counts(town: Town) -> None:
    town.budgets = {"p": Budget(usd={Period.DAY: Decimal("100")})}
    town.restart()
    job = town.run()
    town.now_s += HOUR_S
    town.jobs.record_event(job, kind="exec", detail="")
    _renumber(town, "exec", 100)
    town.refresh(acts=False)
    town.end(job)
    _renumber(town, JobEvent.SUCCEEDED.value, 99)  # as on PostgreSQL, where what began earlier may be there later
    town.refresh(acts=False)
    assert town.spent()["2026-11-22"] == town.reported()["2026-11-22"]


def _renumber(town: Town, kind: str, seq: int) -> None:
    with town.engine.begin() as connection:
        connection.execute(update(JOB_EVENTS).where(JOB_EVENTS.c.kind == kind).values(seq=seq))


def test_a_day_that_is_over_is_kept_and_not_read_again(town: Town) -> None:
    job = town.run()
    town.refresh()
    town.now_s = NOON_S + DAY_S
    town.end(job)
    town.refresh()
    with town.engine.connect() as connection:
        kept = connection.execute(select(SPENT_DAYS.c.day, SPENT_DAYS.c.owed_usd).order_by(SPENT_DAYS.c.day)).all()
    assert [(day, Fraction(usd)) for day, usd in kept] == [
        ("2026-11-22", Fraction("2.28")),
        ("2026-11-23", Fraction("2.28")),
    ]
    with town.engine.begin() as connection:  # what is kept is what counts
        connection.execute(update(SPENT_DAYS).where(SPENT_DAYS.c.day == "2026-11-22").values(owed_usd="5"))
    town.restart()
    town.refresh()
    assert town.spent() == {"2026-11-23": "2.2800", "2026-11": "7.2800"}
    town.budgets["q"] = BOTH  # whose days are added up now
    town.restart()
    town.refresh()
    assert town.spent() == {"2026-11-23": "2.2800", "2026-11": "7.2800"}


def test_whoever_had_a_node_last_has_its_idle_time_after_a_restart_on_a_later_day(town: Town) -> None:
    town.ask("n", asked_for=town.run(project="other"))
    user = town.run(machine="n")
    town.now_s += HOUR_S
    town.end(user)
    town.now_s = NOON_S + 2 * DAY_S
    town.restart()
    town.refresh()
    town.restart()
    town.refresh()
    assert town.spent() == town.reported()
    assert town.spent()["2026-11-24"] == "4.3210"  # twelve hours and two looks at $0.36


def _fill(town: Town, number: int) -> None:
    """Has so many jobs of today be over."""
    times = dict.fromkeys(("create_time_s", "start_time_s", "run_start_time_s"), NOON_S)
    counts = dict.fromkeys(("attempt", "priority", "num_restarts", "candidate"), 0)
    job = {"project": "p", "training_input": ONE, "state": "SUCCEEDED", "version": 1, "simulated": False} | {
        **times,
        **counts,
        "end_time_s": NOON_S + 60.0,
        "gang_released": True,
        "submitted_by": "home",
        "labels": {},
        "replicas": [],
        "outputs": {},
    }
    start = {"attempt": 0, "candidate": 0, "start_time_s": NOON_S, "end_time_s": NOON_S + 60.0, "machines": []}
    end = {"time_s": NOON_S + 60.0, "kind": "succeeded", "state": "SUCCEEDED", "detail": ""}
    uids = [f"{index:032x}" for index in range(number)]
    with town.engine.begin() as connection:
        connection.execute(insert(JOBS), [{**job, "uid": uid, "job_id": f"j{uid}"} for uid in uids])
        connection.execute(insert(JOB_ATTEMPTS), [{**start, "job_uid": uid} for uid in uids])
        connection.execute(insert(JOB_EVENTS), [{**end, "job_uid": uid} for uid in uids])


class Work:
    """Counts what a database does: its statements, and the steps of SQLite's machine, in thousands."""

    def __init__(self, engine: Engine) -> None:
        self.num_statements = self.num_steps = 0
        event.listen(engine, "before_cursor_execute", self._count)
        with engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.set_progress_handler(self._note, 100)

    def _count(self, *_: object) -> None:
        self.num_statements += 1

    def _note(self) -> int:
        self.num_steps += 100
        return 0

    def take(self) -> tuple[int, int]:
        """Returns what was done since the last call."""
        done = self.num_statements, self.num_steps
        self.num_statements = self.num_steps = 0
        return done


@pytest.mark.parametrize(
    "number", [pytest.param(600, id="600"), pytest.param(10_000, marks=pytest.mark.heavy, id="10000")]
)
def test_a_look_costs_what_is_new_and_not_what_is_over(
    town: Town, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(town, number)
    num_read: list[int] = []
    read = spending_module.job_usage

    def counting(job: JobRecord, **options: Any) -> Any:
        num_read[-1] += 1
        return read(job, **options)

    monkeypatch.setattr(spending_module, "job_usage", counting)
    while not town.spending.states():  # the first looks: a page each, and nothing starts meanwhile
        num_read.append(0)
        town.spending.refresh(now_s=town.now_s + 120.0, acts=True)
    assert max(num_read) <= PAGE_SIZE
    assert sum(num_read) == number
    expected = f"{Decimal(number) * Decimal('0.19') / 60:.4f}"
    assert town.spent()["2026-11-22"] == expected
    town.now_s += 120.0
    running, ends = [town.run() for _ in range(3)], town.run()
    town.end(ends)
    num_read[:] = [0]
    work = Work(town.engine)
    town.refresh()
    num_statements, num_steps = work.take()
    assert num_read == [4], "three that run, one that has ended"
    assert num_statements <= 16, "transactions' beginnings and ends among them"
    assert num_steps <= 5000
    town.spending.refresh(now_s=town.now_s + REFRESH_S / 2, acts=True)
    assert work.take() == (0, 0), "between two looks nothing is asked"
    assert len(running) == 3
