"""What stays of a replica's spool folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.spools import (
    LOG_FOLDER,
    METRICS_FOLDER,
    RUNNER_LOG,
    STATUS_FILE,
    URL_FILE,
    clear_spool,
    forget_status,
    segments_in,
    segments_of,
)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    made = tmp_path / "gang" / "replica"
    for name in (LOG_FOLDER, METRICS_FOLDER, "work", "home"):
        (made / name).mkdir(parents=True)
        (made / name / "url").touch()
    for name in (RUNNER_LOG, "heartbeat", "container.env"):
        (made / name).touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (made / "link").symlink_to(tmp_path / "outside")
    return made


@pytest.mark.parametrize("name", [LOG_FOLDER, METRICS_FOLDER])
def test_what_has_to_reach_the_bucket_stays_and_nothing_else(spool: Path, name: str) -> None:
    (spool / name / "000000000042.jsonl").touch()
    clear_spool(spool)
    assert sorted(path.name for path in spool.iterdir()) == sorted([name, RUNNER_LOG])
    assert (spool / name / "url").exists()
    assert (spool.parents[1] / "outside" / "file").exists()


def test_where_nothing_waits_it_goes_with_its_gangs_folder(spool: Path) -> None:
    other = spool.with_name("other")
    other.mkdir()
    clear_spool(spool)
    assert not spool.exists()
    clear_spool(other)
    assert not spool.parent.exists()
    assert (spool.parents[1] / "outside" / "file").exists()
    clear_spool(other)


def test_what_a_runner_said_stays_until_it_is_recorded(spool: Path) -> None:
    (spool / STATUS_FILE).touch()
    clear_spool(spool)
    assert sorted(path.name for path in spool.iterdir()) == [RUNNER_LOG, STATUS_FILE]
    forget_status(spool)
    assert not spool.parent.exists()
    forget_status(spool)


def test_the_folder_of_one_that_still_runs_stays_when_its_status_is_forgotten(spool: Path) -> None:
    before = sorted(path.name for path in spool.iterdir())
    (spool / STATUS_FILE).touch()
    forget_status(spool)
    assert sorted(path.name for path in spool.iterdir()) == before


def test_segments_are_found_in_order_and_nothing_else(spool: Path) -> None:
    for name in ("000000000010.jsonl", "000000000002.jsonl", "000000000011.partial", "of a program.jsonl"):
        (spool / LOG_FOLDER / name).touch()
    (spool / METRICS_FOLDER / "001732270000123.jsonl").touch()
    assert segments_of(spool) == [
        "log/000000000002.jsonl",
        "log/000000000010.jsonl",
        "metrics/001732270000123.jsonl",
    ]
    assert segments_in(spool / LOG_FOLDER / "url") == segments_in(spool / "nowhere") == []


@pytest.mark.parametrize("look", [segments_of, clear_spool])
def test_a_folder_that_goes_while_it_is_looked_at_has_no_segments(
    spool: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[Path], Any]
) -> None:
    folder = spool / LOG_FOLDER

    def after_it_went(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def reading(path: Any) -> Any:
            if folder.exists():
                (folder / URL_FILE).unlink()
                folder.rmdir()
            return read(path)

        return reading

    with monkeypatch.context() as patched:
        for name in ("listdir", "scandir"):
            patched.setattr(os, name, after_it_went(getattr(os, name)))
        assert not look(spool)
    assert not folder.exists()


def test_where_it_cannot_be_seen_what_has_to_stay_all_stays(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (spool / LOG_FOLDER / "000000000042.jsonl").touch()
    before = sorted(spool.rglob("*"))

    def refuse(path: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refuse)
        clear_spool(spool)
    assert sorted(spool.rglob("*")) == before
