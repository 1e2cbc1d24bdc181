"""Lines that no runner could carry reach the bucket once it takes them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from lockstep.jobs.orders import ReplicaOrder, ReplicaPhase
from lockstep.runner.logs import URL_FILE
from lockstep.runner.run import Runner
from lockstep.service.leftovers import LeftoverCarrier
from lockstep.service.problems import Part, Problems
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
    read_end, write_end = os.pipe()
    status = Runner(order, control=read_end, report=lambda _status: None).run()
    assert status.phase is ReplicaPhase.ENDED
    assert status.end is not None
    assert status.end.num_log_entries == 100
    problems = Problems()
    carrier = LeftoverCarrier(tmp_path / "spool", problems=problems)
    carrier.step()
    assert any((replica / "log").glob("*.jsonl")), "the bucket still refuses: the lines stay"
    (problem,) = problems.all()
    assert problem.part is Part.BUCKET
    assert str(blocked) in problem.text
    assert problem.kept.startswith("1 segment of logs and metrics, ")
    blocked.unlink()
    carrier.step()
    assert problems.all() == []
    bucket = open_bucket(str(blocked / "log"))
    lines = [json.loads(line)["text"] for item in bucket.list() for line in bucket.read(item.key).splitlines()]
    assert lines == [str(number) for number in range(100)]
    assert not (tmp_path / "spool" / "gang").exists()
    os.close(read_end)
    os.close(write_end)


def test_one_folder_that_nobody_can_carry_keeps_no_other(tmp_path: Path) -> None:
    for gang, url in (("damaged", "no-such-kind://b"), ("well", str(tmp_path / "bucket"))):
        log = tmp_path / "spool" / gang / "master-replica-0" / "log"
        log.mkdir(parents=True)
        (log / URL_FILE).write_text(url)
        (log / "000000000000.jsonl").write_text("a line\n")
    problems = Problems()
    LeftoverCarrier(tmp_path / "spool", problems=problems).step()
    assert open_bucket(str(tmp_path / "bucket")).read("000000000000.jsonl") == b"a line\n"
    (problem,) = problems.all()
    assert "no-such-kind://b" in problem.text
    assert problem.kept.startswith("1 segment")
