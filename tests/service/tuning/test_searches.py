"""A search: its trials, their values, its end. The jobs of trials are moved by hand, and no program runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import pytest
from sqlalchemy import Connection, Engine
from tensorboardX import SummaryWriter

from lockstep.jobs.billing.bills import Bill
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.service.store import JobKind, JobRecord, JobStore, SearchStore, open_database
from lockstep.service.telemetry.scalars import ScalarCache
from lockstep.service.tuning.results import result_of
from lockstep.service.tuning.searches import GIVE_UP_S, Searches
from lockstep.storage import join_url

MAX_PASSES = 200
SPEC: dict[str, Any] = {
    "goal": "MINIMIZE",
    "hyperparameterMetricTag": "loss",
    "maxTrials": 6,
    "maxParallelTrials": 2,
    "params": [{"parameterName": "x", "type": "DOUBLE", "minValue": -1, "maxValue": 1}],
}


class Killed(BaseException):
    """The service dies."""


@final
class World:
    """A database with a search, and a service over it that may be killed before any of its transactions."""

    def __init__(self, database: Engine, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.now_s = 1_000_000.0
        self.num_writes = 0
        self.dies_at: int | None = None
        self.jobs = JobStore(database, clock=lambda: self.now_s)
        self.trials_of = SearchStore(database)
        self.searches = self.service()

    def service(self) -> Searches:
        return Searches(
            store=SearchStore(self.database, clock=lambda: self.now_s, guard=self._guard),
            jobs=JobStore(self.database, clock=lambda: self.now_s, guard=self._guard),
            scalars=ScalarCache(),
            bucket=str(self.folder),
            wake=lambda: None,
            clock=lambda: self.now_s,
            measure_every_s=0.0,
        )

    def _guard(self, connection: Connection) -> None:
        del connection
        self.num_writes += 1
        if self.num_writes == self.dies_at:
            raise Killed

    def step(self) -> None:
        """Makes a pass; if the service dies in it, another one makes the next pass."""
        self.now_s += 1.0
        try:
            self.searches.step()
        except Killed:
            self.searches = self.service()
            self.searches.step()

    def create(self, name: str = "search", *, own: dict[str, Any] | None = None, **spec: Any) -> JobRecord:
        base = join_url(str(self.folder), "local", "jobs", name)
        asked = {**SPEC, **spec}
        return self.jobs.create(
            project="local",
            job_id=name,
            training_input={"pythonModule": "train", "args": ["--epochs=2"], "hyperparameters": asked, **(own or {})},
            labels={"team": "a"},
            simulated=False,
            outputs={kind: join_url(base, kind) for kind in ("model", "checkpoints", "tensorboard", "logs")},
            kind=JobKind.SEARCH,
        )

    def get(self, name: str = "search") -> JobRecord:
        return self.jobs.get(project="local", job_id=name)

    def trials(self, name: str = "search") -> list[JobRecord]:
        return self.trials_of.trials(self.get(name).uid)

    def open_trials(self) -> list[JobRecord]:
        return [job for job in self.trials() if job.state not in TERMINAL]

    def start(self, job: JobRecord) -> JobRecord:
        if job.state is JobState.QUEUED:
            job = self.jobs.advance(job.uid, JobEvent.PREPARING, detail="test")
        if job.state is JobState.PREPARING:
            start = {"start_time_s": self.now_s, "run_start_time_s": self.now_s}
            job = self.jobs.advance(job.uid, JobEvent.STARTED, detail="test", **start)
        return job

    def measure(self, job: JobRecord, values: Sequence[float], *, tag: str = "loss", run: str = ".") -> None:
        with SummaryWriter(str(Path(job.outputs["tensorboard"]) / run)) as writer:
            for step, value in enumerate(values):
                writer.add_scalar(tag, value, step)

    def end(self, job: JobRecord, event: JobEvent = JobEvent.SUCCEEDED, *, reason: str | None = None) -> None:
        bill = Bill(ml_units=None, cost_usd=None)
        if job.start_time_s is not None:
            bill = Bill(ml_units=_decimal("0.25"), cost_usd=_decimal("0.1225"))
        self.jobs.advance(
            job.uid, event, detail="test", end_time_s=self.now_s, end_reason=reason, bill=bill, error_message=reason
        )

    def play(self, value_of: Callable[[JobRecord], float | None] = lambda job: parameter(job) ** 2) -> JobRecord:
        """Runs trials until the search is over. A trial whose value is None fails."""
        for _ in range(MAX_PASSES):
            self.step()
            if self.get().state in TERMINAL:
                return self.get()
            for job in self.open_trials():
                if job.state is JobState.CANCELLING:
                    self.end(job, JobEvent.CANCELLED, reason=job.end_reason)
                    continue
                started = self.start(job)
                value = value_of(started)
                if value is None:
                    self.end(started, JobEvent.FAILED, reason="USER_ERROR(exit 1, master-0)")
                else:
                    self.measure(started, [value + 1.0, value])
                    self.end(started)
        raise AssertionError(f"the search did not end: {self.get()}")


def _decimal(text: str) -> Any:
    from decimal import Decimal

    return Decimal(text)


def parameter(job: JobRecord) -> float:
    assert job.trial is not None
    return float(job.trial.parameters["x"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    database = open_database(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield World(database, tmp_path / "bucket")
    database.dispose()


def test_a_search_runs_its_trials_and_ends_with_the_sum_of_their_bills(world: World) -> None:
    world.create()
    world.step()
    assert [job.job_id for job in world.trials()] == ["search.1", "search.2"], "as many as may run at once"
    assert world.get().state is JobState.QUEUED
    search = world.play()
    trials = world.trials()
    assert search.state is JobState.SUCCEEDED
    assert [job.trial.number for job in trials if job.trial] == [1, 2, 3, 4, 5, 6]
    for job in trials:
        assert job.trial is not None
        number, x = job.trial.number, job.trial.parameters["x"]
        assert job.training_input["args"] == ["--epochs=2", f"--x={x}"]
        assert "hyperparameters" not in job.training_input
        assert job.outputs["tensorboard"].endswith(f"/local/jobs/search/{number}/tensorboard")
        assert job.outputs["logs"].endswith(f"/local/jobs/search/logs/trials/{number}")
        assert job.labels == {"team": "a"}
        assert result_of(job).objective == pytest.approx(float(x) ** 2, rel=1e-6)
    assert search.bill is not None
    assert (str(search.bill.ml_units), str(search.bill.cost_usd)) == ("1.50", "0.7350")
    kinds = [event.kind for event in world.jobs.events(search.uid)]
    assert kinds == ["enqueued", "preparing", "started", "succeeded"]
    assert world.jobs.unfinished() == []
    assert world.jobs.active_uids() == {}, "a search never waits for a place of its own"


@pytest.mark.heavy
def test_wherever_the_service_is_killed_no_trial_is_lost_or_doubled(tmp_path: Path) -> None:
    def played(dies_at: int | None) -> tuple[World, list[Any]]:
        folder = tmp_path / str(dies_at)
        folder.mkdir()
        database = open_database(f"sqlite:///{folder / 'jobs.db'}")
        world = World(database, folder / "bucket")
        world.create(maxTrials=4)
        world.dies_at = dies_at
        search = world.play()
        found = [(job.job_id, job.trial.parameters, job.state) for job in world.trials() if job.trial]
        events = [event.kind for event in world.jobs.events(search.uid)]
        database.dispose()
        return world, [search.state, found, events]

    whole, expected = played(None)
    assert whole.num_writes > 10
    for dies_at in range(1, whole.num_writes + 1):
        _, found = played(dies_at)
        assert found == expected, dies_at


def test_a_program_that_fails_is_counted_and_a_lost_machine_is_not(world: World) -> None:
    world.create(maxTrials=3, maxParallelTrials=1)
    world.step()
    (first,) = world.open_trials()
    world.end(world.start(first), JobEvent.FAILED, reason="NODE_LOST")
    world.step()
    (second,) = world.open_trials()
    assert second.trial is not None
    assert first.trial is not None
    assert second.trial.parameters == first.trial.parameters, "it is tried again"
    world.end(world.start(second), JobEvent.FAILED, reason="USER_ERROR(exit 1, master-0)")
    assert world.play().state is JobState.SUCCEEDED
    assert [job.state for job in world.trials()] == [JobState.FAILED] * 2 + [JobState.SUCCEEDED] * 2


@pytest.mark.parametrize(("asked", "expected"), [({"maxFailedTrials": 1}, 1), ({}, 3), ({"maxTrials": 20}, 10)])
def test_so_many_failed_trials_end_a_search(world: World, asked: dict[str, int], expected: int) -> None:
    world.create(maxParallelTrials=1, **asked)
    search = world.play(lambda job: None)
    assert (search.state, search.end_reason) == (JobState.FAILED, "TRIALS_FAILED")
    assert search.error_message == (
        f"{expected} trials failed; the last one, search.{expected}: USER_ERROR(exit 1, master-0)"
    )
    assert len(world.trials()) == expected


def test_a_search_that_loses_its_machines_again_and_again_ends(world: World) -> None:
    world.create(maxTrials=4, maxParallelTrials=1)
    for _ in range(MAX_PASSES):
        world.step()
        for job in world.open_trials():
            world.end(world.start(job), JobEvent.FAILED, reason="NODE_LOST(master-0)")
        if world.get().state in TERMINAL:
            break
    assert world.get().state is JobState.FAILED
    assert str(world.get().error_message).startswith("5 trials were lost; the last one, search.5")


def test_without_a_value_a_trial_has_failed(world: World) -> None:
    world.create(maxTrials=1)
    world.step()
    (job,) = world.open_trials()
    world.measure(world.start(job), [1.0], tag="another")
    world.end(world.jobs.get_by_uid(job.uid))
    world.step()
    search = world.get()
    assert (search.state, search.error_message) == (JobState.FAILED, "no trial has a value of the metric loss")


def test_a_cancelled_search_ends_its_trials_first(world: World) -> None:
    search = world.create()
    world.step()
    first, second = world.open_trials()
    world.start(first)
    world.jobs.advance(search.uid, JobEvent.CANCEL_REQUESTED, detail="test", end_reason="CANCELLED(by ann)")
    world.step()
    assert [job.state for job in world.trials()] == [JobState.CANCELLING] * 2
    assert world.get().state is JobState.CANCELLING
    for job in (first, second):
        world.end(world.jobs.get_by_uid(job.uid), JobEvent.CANCELLED, reason="SEARCH_ENDED")
    world.step()
    found = world.get()
    assert (found.state, found.end_reason) == (JobState.CANCELLED, "CANCELLED(by ann)")
    assert len(world.trials()) == 2


def test_a_search_that_is_cancelled_before_its_first_trial_ends(world: World) -> None:
    search = world.create()
    world.jobs.advance(search.uid, JobEvent.CANCEL_REQUESTED, detail="test", end_reason="CANCELLED(by ann)")
    world.step()
    assert world.get().state is JobState.CANCELLED
    assert world.trials() == []


def test_the_maximum_running_time_is_that_of_the_whole_search(world: World) -> None:
    world.create(own={"scheduling": {"maxRunningTime": "3600s"}})
    world.step()
    for job in world.open_trials():
        world.start(job)
    world.step()
    world.now_s += 3601.0
    world.step()
    assert (world.get().state, world.get().end_reason) == (JobState.CANCELLING, "MAX_RUNNING_TIME")
    world.step()
    assert [job.state for job in world.trials()] == [JobState.CANCELLING] * 2


def test_a_trial_that_is_worse_than_others_is_stopped_early_and_its_value_counts(world: World) -> None:
    world.create(enableTrialEarlyStopping=True, maxTrials=7, maxParallelTrials=1)
    for _ in range(6):
        world.step()
        (job,) = world.open_trials()
        world.measure(world.start(job), [0.5, 0.4])
        world.end(world.jobs.get_by_uid(job.uid))
    world.step()
    (bad,) = world.open_trials()
    world.measure(world.start(bad), [9.0, 8.0])
    world.step()
    bad = world.jobs.get_by_uid(bad.uid)
    assert bad.state is JobState.CANCELLING
    assert bad.end_reason == "STOPPED_EARLY"
    assert "stopped early: its best value" in world.jobs.events(bad.uid)[-1].detail
    world.end(bad, JobEvent.CANCELLED, reason=bad.end_reason)
    world.step()
    assert world.get().state is JobState.SUCCEEDED
    assert result_of(world.trials()[-1]).objective == 8.0


@pytest.mark.parametrize(
    ("tag", "written", "expected"),
    [
        ("loss", {".": [3.0], "validation": [2.0], "train": [1.0]}, 2.0),
        ("loss", {"report": [4.0], "validation": [2.0]}, 4.0),
        ("train/loss", {"validation": [2.0], "train": [1.0]}, 1.0),
        ("loss", {"a": [5.0]}, 5.0),
        ("loss", {".": [1.0, float("nan")]}, 1.0),
        ("loss", {".": [float("nan")]}, None),
    ],
)
def test_the_metric_is_found_by_tag_or_by_run_and_tag(
    world: World, tag: str, written: dict[str, list[float]], expected: float | None
) -> None:
    world.create(maxTrials=1, hyperparameterMetricTag=tag)
    world.step()
    (job,) = world.open_trials()
    for run, values in written.items():
        world.measure(world.start(job) if job.state is JobState.QUEUED else job, values, run=run)
        job = world.jobs.get_by_uid(job.uid)
    world.end(job)
    world.step()
    (job,) = world.trials()
    assert result_of(job).objective == expected


def test_a_search_takes_up_the_trials_of_an_earlier_one(world: World) -> None:
    grid = {"params": [{"parameterName": "x", "type": "DISCRETE", "discreteValues": [1, 2, 3]}]}
    world.create(algorithm="GRID_SEARCH", maxTrials=2, **grid)
    assert world.play().state is JobState.SUCCEEDED
    world.create("more", algorithm="GRID_SEARCH", maxTrials=9, resumePreviousJobId="search", **grid)
    world.step()
    assert [parameter(job) for job in world.trials("more")] == [3.0], "the grid's only point that is left"


def test_measurements_that_cannot_be_read_are_given_up_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create(maxTrials=1)
    world.step()
    (job,) = world.open_trials()
    world.measure(world.start(job), [1.0])
    world.end(world.jobs.get_by_uid(job.uid))
    folder = Path(job.outputs["tensorboard"])
    elsewhere = folder.with_name("elsewhere")
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)  # which the service refuses to follow
    for _ in range(3):
        world.step()
    unread = world.get().state not in TERMINAL
    world.now_s += GIVE_UP_S
    world.step()
    world.step()
    assert unread
    assert world.get().state is JobState.FAILED
    assert "not_measured" in [event.kind for event in world.jobs.events(job.uid)]


def test_a_search_that_this_version_cannot_read_fails_with_the_reason(world: World) -> None:
    search = world.create()
    world.step()
    world.jobs.update(search.uid, training_input={**search.training_input, "nobodyKnowsThis": 1})
    world.step()
    for job in world.open_trials():
        world.end(job, JobEvent.CANCELLED, reason=job.end_reason)
    world.step()
    assert world.get().state is JobState.FAILED
    assert "nobodyKnowsThis" in str(world.get().error_message)


def test_records_of_trials_come_back_as_they_were(world: World) -> None:
    world.create()
    world.step()
    job = world.trials()[0]
    assert job.trial is not None
    changed = replace(job.trial, parameters={"a": 1, "b": 1.0, "c": "1"}, is_read=True)
    world.trials_of.set_trial(job.uid, changed)
    found = world.jobs.get_by_uid(job.uid).trial
    assert found == changed
    assert [type(value) for value in found.parameters.values()] == [int, float, str]
