"""What jobs keep in the bucket, measured from time to time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import StorageError
from lockstep.jobs.running.states import JobEvent
from lockstep.service.billing import storage_meter as meter_module
from lockstep.service.billing.storage_meter import INTERVAL_S, StorageMeter
from lockstep.service.store import JobStore, StoredSizeStore, open_database
from lockstep.storage import AbstractBucket, open_bucket

ONE = {"scaleTier": "BASIC", "pythonModule": "program"}


class Attic:
    """A bucket in which jobs keep things, and a meter."""

    def __init__(self, folder: Path) -> None:
        self.engine = open_database(f"sqlite:///{folder / 'attic.db'}")
        self.now_s = 1000.0
        self.jobs = JobStore(self.engine, clock=lambda: self.now_s)
        self.sizes = StoredSizeStore(self.engine)
        self.bucket: AbstractBucket = open_bucket(str(folder / "bucket"))
        self.bucket.create()
        self.meter = StorageMeter(bucket=self.bucket, sizes=self.sizes, clock=lambda: self.now_s)

    def create(self, name: str, *kinds: JobEvent, project: str = "p") -> str:
        uid = self.jobs.create(
            project=project, job_id=name, training_input=ONE, labels={}, simulated=False, outputs={}
        ).uid
        for kind in kinds:
            changes: dict[str, Any] = {} if kind is not JobEvent.SUCCEEDED else {"end_time_s": self.now_s}
            self.jobs.advance(uid, kind, detail="", **changes)
        self.now_s += 1.0
        return uid

    def round(self) -> None:
        self.meter.step(threading.Event())
        self.now_s += INTERVAL_S

    def kept(self, project: str | None = None) -> list[tuple[str, int, float, float]]:
        spans = self.sizes.between(project=project, since_s=0.0, until_s=self.now_s)
        return [(span.job, span.size_bytes, span.start_s, span.end_s) for span in spans]


@pytest.fixture
def attic(tmp_path: Path) -> Iterator[Attic]:
    made = Attic(tmp_path)
    yield made
    made.engine.dispose()


def test_a_size_holds_until_another_is_measured(attic: Attic, tmp_path: Path) -> None:
    attic.create("job", JobEvent.PREPARING, JobEvent.STARTED)
    attic.create("job_2", JobEvent.PREPARING, project="other")
    start_s = attic.now_s
    attic.bucket.write("p/jobs/job/model/weights", b"x" * 70)
    attic.bucket.write("p/jobs/job_2/model", b"of another job")
    attic.bucket.write("p/jobs/job/logs/0.jsonl", b"x" * 30)
    attic.bucket.write("other/jobs/job_2/model", b"x" * 7)
    link = tmp_path / "bucket/p/jobs/job/all"
    link.symlink_to(tmp_path / "bucket")
    for _ in range(2):
        attic.round()
    attic.bucket.write("p/jobs/job/logs/1.jsonl", b"x" * 50)
    attic.round()
    link.unlink()
    attic.bucket.delete_prefix("p/jobs/job/")
    attic.round()
    assert attic.kept("p") == [
        ("job", 100, start_s, start_s + 2 * INTERVAL_S),
        ("job", 150, start_s + 2 * INTERVAL_S, start_s + 3 * INTERVAL_S),
    ]
    assert attic.kept("other") == [("job_2", 7, start_s, attic.now_s)]


def test_a_round_is_bounded_and_others_come_in_turn(attic: Attic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "NUM_OTHERS", 2)
    for number in range(5):
        attic.create(f"old_{number}", JobEvent.PREPARING, JobEvent.STARTED, JobEvent.SUCCEEDED)
        attic.bucket.write(f"p/jobs/old_{number}/model", b"x")
    attic.now_s += 3 * INTERVAL_S
    attic.create("waits")
    attic.create("runs", JobEvent.PREPARING, JobEvent.STARTED)
    attic.bucket.write("p/jobs/runs/model", b"x")
    seen: list[set[str]] = []
    for _ in range(3):
        attic.round()
        seen.append({job for job, *_ in attic.kept()})
    assert seen == [
        {"runs", "old_0", "old_1"},
        {"runs", "old_0", "old_1", "old_2", "old_3"},
        {"runs", "old_0", "old_1", "old_2", "old_3", "old_4"},
    ]
    monkeypatch.setattr(meter_module, "NUM_NEW", 0)
    attic.bucket.write("p/jobs/old_0/model", b"xx")
    for _ in range(3):
        attic.round()
    assert ("old_0", 2) in {(job, size_bytes) for job, size_bytes, *_ in attic.kept()}, "and begin anew"


def test_a_bucket_that_cannot_be_listed_changes_nothing(attic: Attic, monkeypatch: pytest.MonkeyPatch) -> None:
    attic.create("job", JobEvent.PREPARING, JobEvent.STARTED)
    attic.bucket.write("p/jobs/job/model", b"x")
    attic.round()

    def refuse(_prefix: str) -> None:
        raise StorageError("no")

    monkeypatch.setattr(attic.bucket, "_folder_size_bytes", refuse)
    with pytest.raises(StorageError):
        attic.round()
    assert attic.kept() == [("job", 1, 1001.0, attic.now_s)]


def test_one_folder_that_cannot_be_listed_keeps_no_other_waiting(
    attic: Attic, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    attic.create("good", JobEvent.PREPARING, JobEvent.STARTED)
    attic.create("deep", JobEvent.PREPARING, JobEvent.STARTED)  # the newest one is looked at first
    for job in ("good", "deep"):
        attic.bucket.write(f"p/jobs/{job}/model", b"x")
    name = "down" * 60
    folder = os.open(tmp_path / "bucket/p/jobs/deep", os.O_RDONLY)
    for _ in range(20):  # a program may make a path that is longer than the system takes
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    attic.round()
    assert [job for job, *_ in attic.kept()] == ["good"]
    assert "not measured: 1 folder of jobs; the last: cannot list" in caplog.text
