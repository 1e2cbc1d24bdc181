"""The database: its migrations, and its promises under several writers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine

from lockstep.errors import UnavailableError, WrongStateError
from lockstep.jobs import JobEvent, JobState
from lockstep.service.store import JobStore, open_database
from lockstep.service.store.tables import METADATA


@pytest.fixture
def database(tmp_path: Path) -> Engine:
    return open_database(f"sqlite:///{tmp_path / 'd.db'}")


def _create(store: JobStore) -> str:
    return store.create(
        project="p", job_id="j", training_input={}, labels={}, simulated=False, outputs={"logs": "/l"}
    ).uid


def test_the_migrations_make_the_tables_of_the_code(database: Engine) -> None:
    with database.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    database.dispose()


def test_opening_twice_changes_nothing(tmp_path: Path, database: Engine) -> None:
    uid = _create(JobStore(database))
    database.dispose()
    again = open_database(f"sqlite:///{tmp_path / 'd.db'}")
    assert JobStore(again).get(project="p", job_id="j").uid == uid
    again.dispose()


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
    database.dispose()


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
    database.dispose()
