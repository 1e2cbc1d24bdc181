"""Lines that no runner could carry reach the bucket once it takes them."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.clusters.runner_process import RunnerProcess
from lockstep.jobs.running.orders import ReplicaOrder, ReplicaPhase
from lockstep.runner.logs import segment_key
from lockstep.service.control import leftovers
from lockstep.service.control.leftovers import LeftoverUploader
from lockstep.service.problems import Part, Problems
from lockstep.spools import URL_FILE, forget_status, keep_segment
from lockstep.storage import open_bucket


def test_lines_of_a_bucket_that_refused_are_carried_later(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the bucket's folder should be")
    replica = tmp_path / "spool" / "gang" / "master-replica-0"
    (replica / "work").mkdir(parents=True)
    order = ReplicaOrder(
        name="master-replica-0",
        role="master",
        index=0,
        job="j",
        command=(sys.executable, "-c", "for i in range(100): print(i)"),
        spool=str(replica),
        log_url=str(blocked / "log"),
    )
    status = RunnerProcess().run(order, report=lambda _status: None)  # of its own: it ends whatever its process started
    assert status.phase is ReplicaPhase.ENDED
    assert status.end is not None
    assert status.end.num_log_entries == 100
    forget_status(replica)  # as who has recorded its end does
    problems = Problems()
    uploader = LeftoverUploader(tmp_path / "spool", problems=problems)
    uploader.step()
    assert any((replica / "log").glob("*.jsonl")), "the bucket still refuses: the lines stay"
    (problem,) = problems.all()
    assert problem.part is Part.BUCKET
    assert str(blocked) in problem.text
    # The first line may have gone before the others.
    assert re.match(r"(1 segment|2 segments) of logs and metrics, ", problem.kept)
    blocked.unlink()
    uploader.step()
    assert problems.all() == []
    bucket = open_bucket(str(blocked / "log"))
    lines = [json.loads(line)["text"] for item in bucket.list() for line in bucket.read(item.key).splitlines()]
    assert lines == [str(number) for number in range(100)]
    assert not (tmp_path / "spool" / "gang").exists()


def test_one_folder_that_nobody_can_carry_keeps_no_other(tmp_path: Path) -> None:
    for gang, url in (("damaged", "no-such-kind://b"), ("well", str(tmp_path / "bucket"))):
        log = tmp_path / "spool" / gang / "master-replica-0" / "log"
        log.mkdir(parents=True)
        (log / URL_FILE).write_text(url)
        (log / "000000000000.jsonl").write_text("a line\n")
    problems = Problems()
    LeftoverUploader(tmp_path / "spool", problems=problems).step()
    assert open_bucket(str(tmp_path / "bucket")).read("000000000000.jsonl") == b"a line\n"
    (problem,) = problems.all()
    assert "no-such-kind://b" in problem.text
    assert problem.kept.startswith("1 segment")


def test_segments_that_come_while_others_are_carried_are_carried_too(tmp_path: Path) -> None:
    log = tmp_path / "spool" / "gang" / "master-replica-0" / "log"
    bucket = str(tmp_path / "bucket")
    keys = [segment_key(number) for number in range(300)]

    def spill() -> None:
        for key in keys:
            keep_segment(log, url=bucket, key=key, data=b"a line\n")

    spilling = threading.Thread(target=spill, daemon=True)
    uploader = LeftoverUploader(tmp_path / "spool", problems=Problems())
    spilling.start()
    while spilling.is_alive():
        uploader.step()
    uploader.step()
    assert [item.key for item in open_bucket(bucket).list()] == keys
    assert not (tmp_path / "spool" / "gang").exists()


def test_a_segment_that_comes_while_its_folder_is_removed_is_carried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "spool" / "gang" / "master-replica-0" / "log"
    bucket = str(tmp_path / "bucket")
    keep_segment(log, url=bucket, key="0.jsonl", data=b"first\n")
    late = [log / "1.jsonl"]
    unlink = os.unlink

    def remove(path: str | os.PathLike[str], **options: Any) -> None:
        if late and Path(path).name == URL_FILE:  # all others are carried by now
            late.pop().write_bytes(b"last\n")
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", remove)
    uploader = LeftoverUploader(tmp_path / "spool", problems=Problems())
    uploader.step()
    assert not late
    uploader.step()
    assert [open_bucket(bucket).read(key) for key in ("0.jsonl", "1.jsonl")] == [b"first\n", b"last\n"]
    assert not (tmp_path / "spool" / "gang").exists()


def test_containers_that_cannot_be_looked_at_keep_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Any]:
        raise ValueError("what a container engine said is no JSON")

    monkeypatch.setattr(leftovers, "reap_dead", fail)
    monkeypatch.setattr(leftovers, "INTERVAL_S", 0.01)
    log = tmp_path / "spool" / "gang" / "master-replica-0" / "log"
    log.mkdir(parents=True)
    (log / URL_FILE).write_text(str(tmp_path / "bucket"))
    (log / "000000000000.jsonl").write_text("a line\n")
    stop = threading.Event()
    carrying = threading.Thread(
        target=LeftoverUploader(tmp_path / "spool", problems=Problems()).run, args=(stop,), daemon=True
    )
    carrying.start()
    deadline = time.monotonic() + 20
    while log.exists() and carrying.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stop.set()
    carrying.join()
    assert not log.exists()
