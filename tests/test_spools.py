"""What stays of a replica's spool folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.spools import LOG_FOLDER, METRICS_FOLDER, RUNNER_LOG, clear_spool


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
