"""Threads of a service write to SQLite in the order in which they ask, and none keeps its turn."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import OperationalError

from lockstep.service.store import database as database_module
from lockstep.service.store import open_database
from lockstep.service.store.turns import FairLock

TIMEOUT_S = 30.0


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_those_who_wait_get_it_in_their_order() -> None:
    lock, order = FairLock(), list[int]()
    assert lock.acquire(timeout_s=0)

    def take(number: int) -> None:
        assert lock.acquire(timeout_s=TIMEOUT_S)
        order.append(number)
        lock.release()

    threads: list[threading.Thread] = []
    for number in range(5):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        _until(lambda: len(lock._waiting) == len(threads))
    lock.release()
    assert lock.acquire(timeout_s=TIMEOUT_S)
    assert order == [0, 1, 2, 3, 4], "the one that released it does not overtake them"
    for thread in threads:
        thread.join(TIMEOUT_S)


def test_one_that_gives_up_loses_its_place() -> None:
    lock = FairLock()
    assert lock.acquire(timeout_s=0)
    assert not lock.acquire(timeout_s=0.01)
    lock.release()
    assert lock.acquire(timeout_s=0)
    lock.release()
    assert lock.acquire(timeout_s=0)


@pytest.fixture
def sqlite_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Path]:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.2)
    path = tmp_path / "d.db"
    return open_database(f"sqlite:///{path}"), path


def _write(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET priority = priority"))


def _is_free(engine: Engine) -> bool:
    """Whether a writer need not wait. It uses another connection than the one that was used last."""
    with engine.connect():
        started_s = time.monotonic()
        _write(engine)
        return time.monotonic() - started_s < 0.2


def test_a_writer_waits_for_another_thread_without_asking_the_database(sqlite_file: tuple[Engine, Path]) -> None:
    engine, _ = sqlite_file
    begun, statements = threading.Event(), list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    def write() -> None:
        begun.set()
        _write(engine)

    event.listen(engine, "before_cursor_execute", note)
    with engine.begin():
        thread = threading.Thread(target=write)
        thread.start()
        assert begun.wait(TIMEOUT_S)
        thread.join(0.1)
        assert statements == ["BEGIN IMMEDIATE"], "the database would have it sleep, and let others overtake it"
    thread.join(TIMEOUT_S)
    assert statements[1:] == ["BEGIN IMMEDIATE", "UPDATE jobs SET priority = priority"]


def test_a_transaction_that_fails_gives_its_turn_back(sqlite_file: tuple[Engine, Path]) -> None:
    engine, _ = sqlite_file
    with pytest.raises(OperationalError), engine.begin() as connection:
        connection.execute(text("UPDATE no_table SET a = 1"))
    with pytest.raises(RuntimeError), engine.begin():
        raise RuntimeError
    assert _is_free(engine)
    with engine.connect() as connection:
        for _ in range(2):
            with connection.begin():
                connection.execute(text("UPDATE jobs SET priority = priority"))
    assert _is_free(engine)
    with engine.connect() as connection:
        connection.begin()
        connection.invalidate()
    assert _is_free(engine)


def test_another_process_is_waited_for_as_sqlite_does(sqlite_file: tuple[Engine, Path]) -> None:
    engine, path = sqlite_file
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OperationalError, match="locked"):
        _write(engine)
    other.execute("COMMIT")
    other.close()
    assert _is_free(engine)
