"""Sampled requests and responses, which are written to a bucket."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, final

import pytest

from lockstep.errors import StoragePermissionError, StorageWriteError
from lockstep.service.prediction import request_logs as module
from lockstep.service.prediction.metrics import VersionName
from lockstep.service.prediction.request_logs import PART_BYTES, PART_S, RequestLogs
from lockstep.service.store import ModelStore, RequestLogging, open_database
from lockstep.storage import AbstractBucket, open_bucket

V1 = VersionName(project="p", model="digits", version="v1")
DAY_S = 1_764_115_200.0  # 2025-11-26


@final
class Site:
    """The log of the requests of one version, with clocks and a bucket that a test sets."""

    def __init__(self, path: Path) -> None:
        self.folder = path / "logs"
        self.asked = RequestLogging(sampling=0.25, url=str(self.folder))
        self.models = ModelStore(open_database(f"sqlite:///{path / 'd.db'}"))
        self.models.create_model(project="p", name="digits", description="", labels={})
        self.models.create_version(
            project="p",
            model="digits",
            name="v1",
            description="",
            labels={},
            deployment_uri="/x",
            machine_type="n1-standard-4",
            request_logging=self.asked,
        )
        self.uid = self.models.get_version(project="p", model="digits", name="v1").uid
        self.now_s = 0.0
        self.chance = 0.0
        self.error: Exception | None = None
        self.logs = self.start()

    def start(self) -> RequestLogs:
        return RequestLogs(
            models=self.models,
            open_folder=self._open,
            clock=lambda: DAY_S + self.now_s,
            timer=lambda: self.now_s,
            chance=lambda: self.chance,
        )

    def _open(self, url: str) -> AbstractBucket:
        if self.error is not None:
            raise self.error
        return open_bucket(url)

    def add(
        self, request: bytes = b'{"instances": [1]}', response: bytes = b'{"predictions": [2]}', **other: Any
    ) -> None:
        values = {"name": V1, "status": 200, "latency_s": 0.0123456, **other}
        self.logs.add(self.asked, request=request, response=response, **values)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.logs.step()

    @property
    def parts(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*.jsonl"))

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for part in self.parts for line in (self.folder / part).read_text().splitlines()]


def _no_answer() -> StorageWriteError:
    error = StorageWriteError("no answer")
    error.__cause__ = ConnectionResetError()
    return error


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_share_of_requests_that_was_asked_for_is_sampled_once_it_has_been_read(site: Site) -> None:
    assert site.logs.sample(site.uid) is None, "not read yet"
    site.logs.step()
    assert site.logs.sample(site.uid) == site.asked
    site.chance = 0.2499
    assert site.logs.sample(site.uid) == site.asked
    site.chance = 0.25
    assert site.logs.sample(site.uid) is None
    site.chance = 0.0
    assert site.logs.sample("another") is None
    changed = RequestLogging(sampling=0.0, url="/elsewhere")
    site.models.patch_version(project="p", model="digits", name="v1", change=lambda _: {"request_logging": changed})
    site.logs.step()
    assert site.logs.sample(site.uid) is None


def test_a_part_has_the_requests_of_ten_seconds_as_lines_of_json(site: Site) -> None:
    site.add()
    site.pass_time(PART_S - 1)
    assert site.parts == []
    site.add(b'{\n "instances": [[0.5,\r\n 1]]}', b'{"error": "no"}', status=400)
    site.pass_time(1)
    (part,) = site.parts
    assert part.startswith("digits/v1/2025-11-26/000000-")
    first, second = site.lines
    assert first == {
        "time": "2025-11-26T00:00:00.000+00:00",
        "model": "digits",
        "version": "v1",
        "status": 200,
        "latency_s": 0.012346,
        "request": {"instances": [1]},
        "response": {"predictions": [2]},
    }
    assert (second["status"], second["request"]) == (400, {"instances": [[0.5, 1]]})
    assert site.logs.counts() == {V1: (2, 0)}


@pytest.mark.parametrize("body", [b"\xff\n[", b"[1, NaN]", b"", "✓\n".encode(), b"[" * 300 + b"]" * 300])
def test_what_is_not_json_that_can_be_written_is_a_string_and_one_line(site: Site, body: bytes) -> None:
    site.add(body, b'{"error": "not JSON"}', status=400)
    site.pass_time(PART_S)
    (line,) = site.lines
    assert line["request"] == body.decode(errors="replace")


def test_much_is_written_at_once(site: Site) -> None:
    site.add(b'"%b"' % (b"1" * PART_BYTES))
    site.pass_time(0.1)
    assert len(site.lines) == 1


def test_services_and_parts_have_names_of_their_own(site: Site) -> None:
    for _ in range(2):
        for _ in range(2):
            site.add()
            site.pass_time(PART_S)
            site.now_s = 0.0
        site.logs = site.start()
    assert len(site.parts) == len(site.lines) == 4


def test_what_does_not_fit_is_left_out_and_counted(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_VERSION_BYTES", 3000)
    monkeypatch.setattr(module, "MAX_BYTES", 4000)
    other = VersionName(project="p", model="digits", version="v2")
    for _ in range(4):
        site.add(b"1" * 1000)
    site.add(b"1" * 1000, name=other)
    site.add(b"1" * 1000, name=other)
    site.pass_time(PART_S)
    assert site.logs.counts() == {V1: (1, 3), other: (1, 1)}
    assert "4 sampled requests for predictions not written" in caplog.text
    for _ in range(2):
        site.add(b"1" * 1000)
    site.pass_time(PART_S)
    assert site.logs.counts()[V1] == (2, 4), "there is room again"


def test_a_bucket_that_fails_is_tried_again_and_what_waits_is_bounded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_VERSION_BYTES", 3 * 600)
    site.error = _no_answer()
    for number in range(5):
        site.add(b'{"instances": [%d]}' % number)
        site.pass_time(PART_S)
    assert site.parts == []
    site.error = None
    site.pass_time(PART_S)
    assert [line["request"]["instances"] for line in site.lines] == [[0], [1], [2]]
    assert site.logs.counts() == {V1: (3, 2)}


def test_a_bucket_that_refuses_is_not_tried_again(site: Site) -> None:
    site.error = StoragePermissionError("not yours")
    site.add()
    site.pass_time(PART_S)
    site.error = None
    site.pass_time(PART_S)
    assert site.parts == []
    assert site.logs.counts() == {V1: (0, 1)}
    site.add()
    site.pass_time(PART_S)
    assert site.logs.counts() == {V1: (1, 1)}


def test_what_is_left_is_written_at_the_end(site: Site) -> None:
    stop = threading.Event()
    stop.set()
    site.add()
    site.logs.run(stop)
    assert len(site.lines) == 1


def test_what_is_lost_at_the_end_is_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    stop.set()
    site.error = _no_answer()
    site.add()
    site.logs.run(stop)
    assert "1 sampled request for predictions not written before the end" in caplog.text
