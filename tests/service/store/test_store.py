"""The database: its migrations, and its promises under several writers."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, event, text

from lockstep.errors import NotFoundError, UnavailableError, WrongStateError
from lockstep.jobs.billing.bills import Bill
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.running.orders import (
    Fault,
    ProgramEnd,
    ProgramUsage,
    ReplicaPhase,
    ReplicaRestart,
    ReplicaStatus,
)
from lockstep.jobs.running.progress import Progress
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.service.store import (
    JobRecord,
    JobStore,
    ModelStore,
    NewWebhook,
    OperationCode,
    ReplicaRecord,
    VersionRecord,
    VersionState,
    WebhookStore,
    open_database,
)
from lockstep.service.store.database import reading
from lockstep.service.store.tables import METADATA

DIE_IN_THE_MIGRATION = """
import os, signal, sys
from sqlalchemy import Engine, event, insert
from tests.service.postgres import PASSWORD, Server
from lockstep.service.store import open_database

made = []

@event.listens_for(Engine, "after_cursor_execute")
def count(connection, cursor, statement, *rest):
    if "CREATE TABLE" in statement:
        made.append(statement)
        if len(made) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

open_database(sys.argv[1])
"""

OPEN_WHEN_TOLD = """
import sys
from lockstep.service.store import open_database

print("ready", flush=True)
sys.stdin.readline()
open_database(sys.argv[1]).dispose()
"""


def _job(store: JobStore, job_id: str = "j", **fields: Any) -> JobRecord:
    return store.create(
        project="p", job_id=job_id, training_input={}, labels={}, simulated=False, outputs={"logs": "/l"}, **fields
    )


def _create(store: JobStore) -> str:
    return _job(store).uid


def _version(models: ModelStore, name: str = "v1") -> VersionRecord:
    models.create_version(
        project="p", model="m", name=name, description="", labels={}, deployment_uri="/m", machine_type="n1-standard-4"
    )
    return models.get_version(project="p", model="m", name=name)


@pytest.fixture
def models(database: Engine) -> ModelStore:
    store = ModelStore(database)
    store.create_model(project="p", name="m", description="", labels={})
    return store


def test_the_migrations_make_the_tables_of_the_code(database: Engine) -> None:
    with database.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_a_death_in_the_first_migration_leaves_a_database_that_opens(url: str) -> None:
    died = subprocess.run([sys.executable, "-c", DIE_IN_THE_MIGRATION, url], timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    again = open_database(url)
    assert _job(JobStore(again)).state is JobState.QUEUED
    again.dispose()


def test_several_first_openers_at_once_all_open_it(url: str) -> None:
    command = [sys.executable, "-c", OPEN_WHEN_TOLD, url]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    openers = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("\n")
        opener.stdin.flush()
    answers = [(opener.communicate(timeout=60)[1], opener.returncode) for opener in openers]
    assert answers == [("", 0)] * 2


def test_webhooks_of_an_earlier_version_are_notified_of_what_they_were_not(url: str, sqlite: Engine) -> None:
    store = JobStore(sqlite)
    for job_id in ("told", "waits"):
        hook = NewWebhook(sealed=b"url", display_url="https://h", secret=None, states=())
        store.create(
            project="p", job_id=job_id, training_input={}, labels={}, simulated=False, outputs={}, webhooks=[hook]
        )
    told, waits = (store.get(project="p", job_id=job_id) for job_id in ("told", "waits"))
    store.record_event(waits.uid, kind="note", detail="no change of its state")
    hooks = WebhookStore(sqlite)
    (hook,) = hooks.of_job(told.uid)
    hooks.save(replace(hook, seq=store.events(told.uid)[-1].seq))
    with sqlite.begin() as connection:  # as version 0004 left it
        for name in ("webhooks_behind", "jobs_limited_wait", "jobs_awaiting_machines", "jobs_kind_state"):
            connection.execute(text(f"DROP INDEX ix_{name}"))
        connection.execute(text("ALTER TABLE webhooks DROP COLUMN event_seq"))
        connection.execute(text("ALTER TABLE jobs DROP COLUMN revision"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0004'"))
    again = open_database(url)
    due = WebhookStore(again).due_of_jobs(time.time(), without=(), limit=9)
    assert [queue.job_uid for queue in due] == [waits.uid]
    WebhookStore(again).save(replace(due[0], seq=store.events(waits.uid)[0].seq))
    assert WebhookStore(again).due_of_jobs(time.time(), without=(), limit=9) == []
    again.dispose()


def test_a_reader_waits_for_no_writer(database: Engine) -> None:
    store = JobStore(database)
    _job(store, "before")
    with database.begin():  # holds the only writer's turn
        assert [job.job_id for job in store.unfinished()] == ["before"]


def test_opening_twice_changes_nothing(url: str, sqlite: Engine) -> None:
    uid = _create(JobStore(sqlite))
    again = open_database(url)
    assert JobStore(again).get(project="p", job_id="j").uid == uid
    again.dispose()


def test_a_database_of_another_version_is_refused_as_it_is(url: str, sqlite: Engine) -> None:
    with sqlite.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'of_a_later_version'"))
    with pytest.raises(
        UnavailableError, match=r"cannot be opened: .*of_a_later_version.*another version of Lockstep made it"
    ):
        open_database(url)
    with sqlite.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "of_a_later_version"


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "d.db").write_text("this is not a database, and longer than a header would be" * 10)
    with pytest.raises(UnavailableError, match="cannot be opened"):
        open_database(f"sqlite:///{tmp_path / 'd.db'}")


def test_an_event_that_does_not_fit_changes_nothing(database: Engine) -> None:
    store = JobStore(database)
    uid = _create(store)
    before = store.get(project="p", job_id="j")
    with pytest.raises(WrongStateError):
        store.advance(uid, JobEvent.SUCCEEDED, detail="too soon", error_message="x")
    assert store.get(project="p", job_id="j") == before
    assert len(store.events(uid)) == 1


def test_of_many_writers_one_makes_a_transition(database: Engine) -> None:
    store = JobStore(database)
    uid = _create(store)
    outcomes: list[str] = []
    gate = threading.Barrier(8)

    def write() -> None:
        gate.wait()
        try:
            store.advance(uid, JobEvent.PREPARING, detail="mine")
            outcomes.append("won")
        except WrongStateError:
            outcomes.append("lost")

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]
    assert [event.state for event in store.events(uid)] == ["QUEUED", "PREPARING"]
    assert store.get(project="p", job_id="j").state is JobState.PREPARING


def test_replicas_and_a_bill_are_read_as_they_were_written_and_leave_the_jobs_version(database: Engine) -> None:
    store = JobStore(database)
    uid = _create(store)
    progress = Progress(time_s=2.0, step=7, metrics={"loss": 0.5}, not_finite=("accuracy",), steps_per_s=1.5)
    master = ReplicaStatus(
        name="master-replica-0",
        phase=ReplicaPhase.RUNNING,
        pid=12,
        started_time_s=1.0,
        usage=ProgramUsage(cpu_s=0.5, wall_s=2.0, peak_memory_bytes=2**40),
        progress=progress,
        metrics={"cpuCores": 1.0},
    )
    end = ProgramEnd(signal="SIGKILL", tail=("a", "b\0c"), num_log_entries=3, fault=Fault.MEMORY)
    restart = ReplicaRestart(number=1, time_s=1.5, reason="NODE_LOST(worker-0)")
    worker = ReplicaStatus(name="worker-replica-0", phase=ReplicaPhase.ENDED, end=end, restarts=(restart,))
    gpus = AcceleratorConfig(type=AcceleratorType.NVIDIA_TESLA_V100, count=2)
    both = (
        ReplicaRecord(status=master, machine_type="n1-standard-8", accelerator=gpus),
        ReplicaRecord(status=worker, machine_type="n1-standard-4"),
    )
    later = (replace(both[0], status=replace(master, progress=replace(progress, step=8))), both[1])
    for replicas in (both, later, later[:1], (), both):
        store.update(uid, replicas=replicas)
        assert store.get_by_uid(uid).replicas == replicas
    assert [job.replicas for job in store.get_by_uids([uid])] == [both]
    charged = Bill(ml_units=Decimal("1.79"), cost_usd=Decimal("0.8771"), unpriced=("a2",), sources=("list",))
    ended = store.advance(uid, JobEvent.FAILED, detail="x", bill=charged, replicas=())
    assert (ended.bill, ended.replicas, ended.version) == (charged, (), 1)


def test_a_list_reads_all_replicas_of_unfinished_jobs_and_one_that_reported_of_those_that_are_over(
    database: Engine,
) -> None:
    store = JobStore(database)
    statuses = [ReplicaStatus(name=f"worker-replica-{number}", phase=ReplicaPhase.ENDED) for number in range(4)]
    for number in (2, 3):
        statuses[number] = replace(statuses[number], progress=Progress(time_s=1.0, step=number))
    replicas = tuple(ReplicaRecord(status=status, machine_type="n1-standard-4") for status in statuses)
    uids = [_job(store, name).uid for name in ("waits", "ran", "silent")]
    for uid, own in zip(uids, (replicas, replicas, replicas[:2]), strict=True):
        store.update(uid, replicas=own)
    charged = Bill(ml_units=Decimal("1.79"), cost_usd=Decimal("0.8771"), unpriced=(), sources=("list",))
    for uid in uids[1:]:
        store.advance(uid, JobEvent.FAILED, detail="x", bill=charged)
    shown = {job.job_id: job.replicas for job in store.get_shown(uids)}
    assert shown == {"waits": replicas, "ran": (replicas[2],), "silent": ()}
    assert [job.replicas for job in store.get_by_uids(uids)] == [replicas, replicas, replicas[:2]]
    assert store.get_shown([]) == []


def test_changes_of_a_projects_jobs_are_counted_and_those_of_replicas_are_not(database: Engine) -> None:
    store = JobStore(database)
    assert store.num_changes("p") == 0
    uid = _create(store)
    counts = [store.num_changes("p")]
    replica = ReplicaRecord(status=ReplicaStatus(name="m", phase=ReplicaPhase.RUNNING), machine_type="m")
    for change in (
        lambda: store.update(uid, replicas=(replica,)),
        lambda: store.set_labels(uid, labels={"a": "b"}, version=99),
        lambda: store.set_labels(uid, labels={"a": "b"}, version=None),
        lambda: store.update(uid, gang_released=True),
        lambda: store.advance(uid, JobEvent.PREPARING, detail="x"),
    ):
        change()
        counts.append(store.num_changes("p"))
    assert [after - before for before, after in itertools.pairwise(counts)] == [0, 0, 1, 1, 1]
    assert store.num_changes("other") == 0


def test_jobs_that_have_waited_for_longer_than_they_may_are_overdue(database: Engine) -> None:
    times = iter([3.0, 4.0, 1.0])
    store = JobStore(database, clock=lambda: next(times))
    late = _job(store, "late")
    urgent = _job(store, "urgent", priority=5, max_wait_time_s=60.0)
    begun = _job(store, "begun", priority=9, max_wait_time_s=1.0)
    JobStore(database).advance(begun.uid, JobEvent.PREPARING, detail="")
    assert (urgent.priority, urgent.max_wait_time_s, urgent.attempt) == (5, 60.0, 0)
    assert (late.priority, late.max_wait_time_s) == (0, None)
    assert JobStore(database, clock=lambda: 64.0).overdue() == []
    assert JobStore(database, clock=lambda: 64.1).overdue() == [urgent]


def test_placed_jobs_are_those_past_the_queue_until_their_gang_is_gone(database: Engine) -> None:
    store = JobStore(database)
    uid = _create(store)
    _job(store, "waits")

    def placed() -> list[str]:
        return [job.job_id for job in store.placed_jobs()]

    def counted() -> list[str]:
        return sorted(store.get_by_uid(uid).job_id for uids in store.active_uids().values() for uid in uids)

    def unfinished() -> list[str]:
        return [job.job_id for job in store.unfinished()]

    assert (placed(), unfinished(), counted()) == ([], ["j", "waits"], ["j", "waits"])
    store.advance(uid, JobEvent.PREPARING, detail="", gang_released=False)
    assert (placed(), unfinished()) == (["j"], ["j", "waits"])
    store.advance(uid, JobEvent.CANCEL_REQUESTED, detail="")
    assert placed() == ["j"]
    ended = store.advance(uid, JobEvent.CANCELLED, detail="")
    assert ended.state in TERMINAL
    assert (placed(), unfinished(), counted()) == (["j"], ["waits"], ["j", "waits"])
    assert store.active_uids()[JobState.CANCELLED] == {uid}
    store.update(uid, gang_released=True)
    assert (placed(), counted()) == ([], ["waits"])


def test_a_job_that_was_cancelled_in_the_queue_is_left_to_the_controller(database: Engine) -> None:
    store = JobStore(database)
    store.advance(_create(store), JobEvent.CANCEL_REQUESTED, detail="")
    assert [job.job_id for job in store.placed_jobs()] == ["j"]


def test_no_pass_of_the_controller_reads_every_job_there_ever_was(sqlite: Engine) -> None:
    store = JobStore(sqlite)
    job = _job(store)
    queries: list[tuple[str, Any]] = []

    @event.listens_for(sqlite, "before_cursor_execute")
    def _note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        queries.append((statement, parameters))

    store.get_by_uid(job.uid)
    store.overdue()
    store.active_uids()
    store.placed_jobs()
    store.placed_jobs(known={})
    store.unfinished()
    store.count_unfinished()
    store.running()
    store.first_running(limit=20)
    store.servers()
    store.last_server("nobody")
    event.remove(sqlite, "before_cursor_execute", _note)
    selects = [(statement, parameters) for statement, parameters in queries if statement.startswith("SELECT")]
    assert len(selects) == 12, "eleven, and the replicas of the job that one of them finds"
    with reading(sqlite) as connection:
        for statement, parameters in selects:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            assert not [step.detail for step in plan if step.detail.startswith("SCAN")], statement


@pytest.mark.parametrize(
    ("look", "index"),
    [
        (lambda engine: JobStore(engine).overdue(), "ix_jobs_limited_wait"),
        (lambda engine: JobStore(engine).awaiting_machines(), "ix_jobs_awaiting_machines"),
        (lambda engine: JobStore(engine).servers(), "ix_jobs_kind_state"),
        (lambda engine: WebhookStore(engine).due_of_jobs(1.0, without=(), limit=9), "ix_webhooks_behind"),
    ],
)
def test_what_is_looked_for_all_the_time_is_found_without_reading_the_whole_queue(
    sqlite: Engine, look: Callable[[Engine], object], index: str
) -> None:
    queries: list[tuple[str, Any]] = []

    @event.listens_for(sqlite, "before_cursor_execute")
    def _note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        queries.append((statement, parameters))

    look(sqlite)
    event.remove(sqlite, "before_cursor_execute", _note)
    ((statement, parameters),) = [query for query in queries if query[0].startswith("SELECT")]
    with reading(sqlite) as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    assert index in plan[0].detail, plan


def test_who_looked_before_a_deletion_cannot_undo_it(models: ModelStore) -> None:
    seen = _version(models)
    operation = models.begin_delete_version(project="p", model="m", name="v1")
    assert models.update_version(seen, state=VersionState.READY) is False
    assert models.get_version(project="p", model="m", name="v1").state is VersionState.DELETING
    models.remove_version(models.get_version(project="p", model="m", name="v1"))
    assert models.get_operation(project="p", name=operation.name).end_time_s is not None
    with pytest.raises(NotFoundError):
        models.begin_delete_version(project="p", model="m", name="v1")


def _ready_version(models: ModelStore, name: str = "v1") -> VersionRecord:
    assert models.update_version(_version(models, name), state=VersionState.READY)
    return models.get_version(project="p", model="m", name=name)


def test_a_deletion_that_is_refused_changes_nothing(models: ModelStore) -> None:
    default = _ready_version(models)
    _version(models, "v2")
    with pytest.raises(WrongStateError, match="version v1 has 100% of the traffic of m, and is its default; give it"):
        models.begin_delete_version(project="p", model="m", name="v1")
    assert models.get_version(project="p", model="m", name="v1") == default
    with pytest.raises(WrongStateError, match="has versions"):
        models.delete_model(project="p", name="m")


def test_only_a_version_that_answers_becomes_the_default(models: ModelStore) -> None:
    def default() -> str | None:
        return models.get_model(project="p", name="m").default_version

    failed = _version(models, "v0")
    assert models.update_version(failed, state=VersionState.FAILED, error_message="the reason")
    _version(models, "v1")
    assert default() is None
    for name, state in (("v0", "FAILED"), ("v1", "CREATING")):
        with pytest.raises(WrongStateError, match=f"version {name} of m is {state}, and answers no requests"):
            models.set_default(project="p", model="m", name=name, changed_by="ann")
    with pytest.raises(UnavailableError, match="no default version; the newest of its versions, v1, is CREATING"):
        models.get_traffic(project="p", model="m")
    _ready_version(models, "v2")
    _ready_version(models, "v3")
    assert default() == "v2", "the first that was ready"
    models.set_default(project="p", model="m", name="v3", changed_by="ann")
    assert default() == "v3"
    models.begin_delete_version(project="p", model="m", name="v2")
    with pytest.raises(WrongStateError, match="version v2 of m is DELETING"):
        models.set_default(project="p", model="m", name="v2", changed_by="ann")
    assert default() == "v3"


def test_a_creation_that_got_ready_first_cannot_be_cancelled(models: ModelStore) -> None:
    record = _version(models)
    (operation,) = models.page_operations(project="p", size=10)
    assert models.update_version(record, state=VersionState.READY)
    with pytest.raises(WrongStateError, match="is over already"):
        models.cancel_operation(project="p", name=operation.name, principal_label="ann")
    assert models.get_version(project="p", model="m", name="v1").state is VersionState.READY


def test_a_creation_that_was_cancelled_does_not_get_ready(models: ModelStore) -> None:
    record = _version(models)
    (operation,) = models.page_operations(project="p", size=10)
    models.cancel_operation(project="p", name=operation.name, principal_label="ann")
    assert not models.update_version(record, state=VersionState.READY)
    cancelled = models.get_operation(project="p", name=operation.name)
    assert (cancelled.error_code, cancelled.error_message) == (OperationCode.CANCELLED, "cancelled by ann")
