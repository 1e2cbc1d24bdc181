"""What a pass of the controller asks of the database does not grow with the queue, or with the jobs that run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from lockstep.home import Home
from lockstep.jobs.running.orders import GangStatus
from lockstep.jobs.running.states import JobState
from lockstep.service.control.controller import Controller
from lockstep.service.problems import Problems
from lockstep.service.settings import Settings
from lockstep.service.store import JobStore, ReplicaChange, open_database
from lockstep.testing.bench import make_controller
from lockstep.testing.scripted_cluster import FIRST_START_S, AttemptScript, ScriptedCluster

WRITE = "BEGIN IMMEDIATE"


class Service:
    """A controller over a new database, with jobs that run until they are stopped and report numbers."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        num_jobs: int,
        max_running_jobs: int,
        numbers: Iterator[int],
    ) -> None:
        home = Home(path=folder)
        home.create()
        self.database = open_database(f"sqlite:///{home.database}")
        cluster = ScriptedCluster(folder / "gangs", script=[AttemptScript.RUNS])
        monkeypatch.setattr(cluster, "observe", _measuring(cluster.observe, numbers))
        settings = Settings(home=home, bucket=str(home.bucket), max_running_jobs=max_running_jobs)
        self.controller: Controller = make_controller(
            self.database, cluster=cluster, settings=settings, problems=Problems(), clock=_clock
        )
        self.store = JobStore(self.database, clock=_clock)
        for number in range(num_jobs):
            self.store.create(
                project="p",
                job_id=f"j_{number}",
                training_input={"scaleTier": "BASIC", "packageUris": ["/p.tar.gz"], "pythonModule": "m"},
                labels={},
                simulated=False,
                outputs={kind: str(home.bucket / kind) for kind in ("logs", "metrics", "job_dir")},
            )

    @contextmanager
    def noting(self) -> Iterator[list[str]]:
        """Notes the statements within the block."""
        statements: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            statements.append(statement)

        event.listen(self.database, "before_cursor_execute", note)
        yield statements
        event.remove(self.database, "before_cursor_execute", note)


def _clock() -> float:
    return FIRST_START_S + 1.0


def _measuring(
    observe: Callable[[str], GangStatus | None], numbers: Iterator[int]
) -> Callable[[str], GangStatus | None]:

    def observe_another(gang_id: str) -> GangStatus | None:
        status = observe(gang_id)
        if status is None:
            return None
        measured = {"cpuCores": float(next(numbers))}
        return replace(status, replicas=tuple(replace(replica, metrics=measured) for replica in status.replicas))

    return observe_another


def _first_pass(folder: Path, monkeypatch: pytest.MonkeyPatch, *, num_jobs: int) -> list[str]:
    service = Service(folder, monkeypatch, num_jobs=num_jobs, max_running_jobs=1, numbers=itertools.count())
    with service.noting() as statements:
        service.controller.step()
    assert len(service.store.unfinished()) == num_jobs
    return statements


def test_a_service_that_starts_reads_the_queue_in_one_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (_first_pass(tmp_path / str(number), monkeypatch, num_jobs=number) for number in (3, 40))
    assert len(many) == len(few)


def _pass_of_running(folder: Path, monkeypatch: pytest.MonkeyPatch, *, num_jobs: int) -> list[str]:
    service = Service(folder, monkeypatch, num_jobs=num_jobs, max_running_jobs=num_jobs, numbers=itertools.count())
    for _ in range(4):
        service.controller.step()
    uids = [job.uid for job in service.store.unfinished() if job.state is JobState.RUNNING]
    assert len(uids) == num_jobs
    before = [job.replicas[0].status.metrics for job in service.store.get_by_uids(uids)]
    with service.noting() as statements:
        service.controller.step()
    after = [job.replicas[0].status.metrics for job in service.store.get_by_uids(uids)]
    assert all(old != new for old, new in zip(before, after, strict=True))
    return statements


def test_what_all_running_jobs_use_is_recorded_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (_pass_of_running(tmp_path / str(number), monkeypatch, num_jobs=number) for number in (2, 9))
    assert many.count(WRITE) == few.count(WRITE) == 1
    assert len(many) == len(few)


def test_what_has_not_changed_is_neither_read_nor_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.chain([1, 2, 3, 4], itertools.repeat(5))
    service = Service(tmp_path, monkeypatch, num_jobs=1, max_running_jobs=1, numbers=numbers)
    for _ in range(8):
        service.controller.step()
    (job,) = service.store.running()
    assert job.replicas[0].status.metrics == {"cpuCores": 5.0}
    with service.noting() as statements:
        service.controller.step()
    assert WRITE not in statements
    assert not [statement for statement in statements if "job_replicas" in statement]


def test_a_service_that_takes_over_records_what_another_one_recorded_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(tmp_path, monkeypatch, num_jobs=1, max_running_jobs=1, numbers=itertools.repeat(5))
    for _ in range(4):
        service.controller.step()
    (job,) = service.store.running()
    status = replace(job.replicas[0].status, metrics={"cpuCores": 9.0})
    service.store.update_replicas([ReplicaChange(job.uid, 0, replace(job.replicas[0], status=status))])
    service.controller.lease.release()
    service.controller.step()
    service.controller.step()
    (job,) = service.store.running()
    assert job.replicas[0].status.metrics == {"cpuCores": 5.0}
