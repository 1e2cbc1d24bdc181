"""Curves of TensorBoard files: merged as TensorBoard does it, read on from where a look ended, and bounded."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import tensorboardX
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto

from lockstep.client import Client
from lockstep.client.addresses import ServiceAddress
from lockstep.data import frame
from lockstep.jobs.security.access import Scope
from lockstep.service.control.job_outputs import AbstractOutputFolder, open_output
from lockstep.service.telemetry import scalars
from lockstep.service.telemetry.scalars import ScalarCache, Scalars
from lockstep.storage import StoredObject
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

FILE = "events.out.tfevents.{:010d}.host"


def _event(step: int, value: float | Summary.Value, *, tag: str = "loss", time_s: float | None = None) -> bytes:
    shown = value if isinstance(value, Summary.Value) else Summary.Value(tag=tag, simple_value=value)
    event = Event(wall_time=step if time_s is None else time_s, step=step, summary=Summary(value=[shown]))
    return frame(event.SerializeToString())


def _start(step: int) -> bytes:
    return frame(Event(step=step, session_log=SessionLog(status=SessionLog.START)).SerializeToString())


def _tensor(dtype: int, *, dims: int = 0, plugin: str = "scalars", **content: Any) -> Summary.Value:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)] * dims)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    return Summary.Value(tag="loss", metadata=metadata, tensor=TensorProto(dtype=dtype, tensor_shape=shape, **content))


class Looks:
    """A job's folder of files, and the looks at it."""

    def __init__(self, bench: Bench) -> None:
        self.job = bench.create("j", "pass")
        self.folder = Path(self.job.outputs["tensorboard"])
        self.bucket = str(bench.home.bucket)
        self.now_s = 0.0  # does not go on during a look: one that takes long reads a part of the files
        self.cache = ScalarCache(clock=lambda: self.now_s)

    def write(self, records: Sequence[bytes] | bytes, *, number: int = 0, run: str = "train", mode: str = "ab") -> Path:
        path = self.folder / run / FILE.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(records if isinstance(records, bytes) else b"".join(records))
        return path

    def look(self, *tags: str, max_points: int = 500, opened: AbstractOutputFolder | None = None) -> Scalars:
        folder = opened or open_output(self.job, "tensorboard", bucket=self.bucket)
        self.now_s += 60
        return self.cache.read(self.job.uid, folder, tags=tags, max_points=max_points)

    def points(self, **options: Any) -> list[tuple[int, float]]:
        """Returns the steps and values of the only curve."""
        (run,) = self.look(**options).runs
        ((_, (curve,)),) = (run,)
        return list(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


@pytest.fixture
def looks(bench: Bench) -> Looks:
    return Looks(bench)


class Counted(AbstractOutputFolder):
    """A folder that counts the bytes that are read of its files."""

    def __init__(self, folder: AbstractOutputFolder) -> None:
        self._folder = folder
        self.num_bytes = 0

    def files(self) -> list[StoredObject]:
        return self._folder.files()

    def open(self, key: str) -> BinaryIO:
        file = self._folder.open(key)
        counted = self

        class Reader:
            def __enter__(self) -> Reader:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def read(self, size: int) -> bytes:
                data = file.read(size)
                counted.num_bytes += len(data)
                return data

            def seek(self, *place: int) -> int:
                return file.seek(*place)

        return Reader()  # type: ignore[return-value]


def test_runs_and_tags_are_read_from_what_programs_write(looks: Looks) -> None:
    for run in ("train", "validation"):
        with tensorboardX.SummaryWriter(str(looks.folder / run)) as writer:
            for step in range(3):
                writer.add_scalar("epoch_loss", 1 / (step + 1), step)
                writer.add_scalar("epoch_accuracy", step, step)
            writer.add_histogram("weights", np.arange(10), 0)
            writer.add_text("note", "hello", 0)
    found = looks.look()
    assert [(run, [curve.tag for curve in curves]) for run, curves in found.runs] == [
        ("train", ["epoch_accuracy", "epoch_loss"]),
        ("validation", ["epoch_accuracy", "epoch_loss"]),
    ]
    loss = found.runs[1][1][1]
    assert loss.steps.tolist() == [0, 1, 2]
    assert loss.values == pytest.approx([1, 1 / 2, 1 / 3])
    assert (found.notes, found.more) == ((), False)
    assert [len(curves) for _, curves in looks.look("epoch_loss").runs] == [1, 1]
    assert looks.look("nothing").runs == ()


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (_tensor(1, float_val=[0.5]), 0.5),
        (_tensor(1, tensor_content=np.float32(0.25).tobytes()), 0.25),
        (_tensor(2, tensor_content=np.float64(0.1).tobytes()), 0.1),
        (_tensor(9, int64_val=[7], plugin=""), 7.0),
        (_tensor(19, tensor_content=np.float16(2).tobytes()), 2.0),
        (_tensor(1, float_val=[0.5], plugin="images"), None),
        (_tensor(1, float_val=[0.5], dims=1), None),
        (_tensor(1, tensor_content=b"123"), None),
        (_tensor(1), None),
        (_tensor(7, string_val=[b"text"]), None),
        (Summary.Value(tag="", simple_value=1.0), None),
        (Summary.Value(tag="t" * 301, simple_value=1.0), None),
    ],
)
def test_numbers_are_read_in_each_form_and_nothing_else(
    looks: Looks, value: Summary.Value, number: float | None
) -> None:
    looks.write([_event(3, value)])
    if number is None:
        assert looks.look().runs == ()
    else:
        assert looks.points() == [(3, number)]


def test_files_of_a_run_are_merged_by_step_and_a_later_one_wins(looks: Looks) -> None:
    looks.write([_event(step, 1.0) for step in (0, 2, 4)], number=1)
    looks.write([_event(step, 2.0) for step in (1, 2, 5)], number=2)
    assert looks.points() == [(0, 1.0), (1, 2.0), (2, 2.0), (4, 1.0), (5, 2.0)]


def test_a_restart_drops_the_steps_from_its_first_one_on(looks: Looks) -> None:
    looks.write([_event(step, 1.0) for step in range(6)], number=1)
    assert len(looks.points()) == 6
    looks.write([_start(3), _event(3, 2.0)], number=2)
    assert looks.points() == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0)]
    looks.write([_event(4, 2.0), _event(5, 2.0), _start(4), _event(4, 3.0)], number=2)  # within one file
    assert looks.points() == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 2.0), (4, 3.0)]
    looks.write([_start(1), _event(1, 4.0)], number=3)
    assert looks.points() == [(0, 1.0), (1, 4.0)]


def test_only_what_was_added_is_read(looks: Looks) -> None:
    path = looks.write([_event(step, 1.0) for step in range(1000)])
    folder = Counted(open_output(looks.job, "tensorboard", bucket=looks.bucket))
    looks.look(opened=folder)
    assert folder.num_bytes == path.stat().st_size
    folder.num_bytes = 0
    looks.look(opened=folder)
    assert folder.num_bytes == 0
    added = _event(1000, 2.0)
    looks.write(added)
    assert looks.points(opened=folder, max_points=2)[-1] == (1000, 2.0)
    assert folder.num_bytes == len(added)


def test_a_record_that_is_not_written_whole_is_read_when_it_is(looks: Looks) -> None:
    record = _event(1, 2.0)
    looks.write([_event(0, 1.0)])
    for cut in range(len(record)):
        looks.write([_event(0, 1.0), record[:cut]], mode="wb")
        assert looks.points() == [(0, 1.0)], cut
        assert looks.look().notes == ()
    looks.write([_event(0, 1.0), record], mode="wb")
    assert looks.points() == [(0, 1.0), (1, 2.0)]


def test_a_file_that_was_replaced_by_a_shorter_one_is_read_anew(looks: Looks) -> None:
    looks.write([_event(step, 1.0) for step in range(5)])
    assert len(looks.points()) == 5
    path = looks.write([_event(7, 3.0)], mode="wb")
    assert looks.points() == [(7, 3.0)]
    path.unlink()
    assert looks.look().runs == ()


def test_damage_is_said_and_what_can_be_read_is_read(looks: Looks) -> None:
    wrong = bytearray(_event(1, 9.0))
    wrong[-1] ^= 1
    no_event = frame(b"\xff\xff\xff")
    looks.write([_event(0, 1.0), bytes(wrong), no_event, _event(2, 2.0)])
    assert looks.points() == [(0, 1.0), (2, 2.0)]
    assert "is damaged, and was left out" in looks.look().notes[0]
    looks.write([_event(0, 1.0), b"\0" * 16, _event(2, 2.0)], mode="wb", number=1)
    assert any("what follows was not read" in note for note in looks.look().notes)
    looks.write(b"this is no event file at all", run="other")
    assert [run for run, _ in looks.look().runs] == ["train"]


def test_long_records_are_passed_over(looks: Looks) -> None:
    picture = Summary.Value(tag="loss", image=Summary.Image(encoded_image_string=b"x" * (2 << 20)))
    looks.write([_event(0, picture), _event(1, 2.0)])
    folder = Counted(open_output(looks.job, "tensorboard", bucket=looks.bucket))
    assert looks.points(opened=folder) == [(1, 2.0)]
    assert folder.num_bytes < 1000
    looks.write(_event(2, picture)[: 1 << 20])  # not there as a whole yet
    assert looks.points() == [(1, 2.0)]


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 5000, 20_001])
def test_curves_are_thinned_evenly_and_keep_their_ends(looks: Looks, count: int) -> None:
    looks.write([_event(step, float(step)) for step in range(count)])
    steps = [step for step, _ in looks.points(max_points=100)]
    assert len(steps) == min(count, 100)
    assert (steps[0], steps[-1]) == (0, count - 1)
    gaps = np.diff(steps)
    assert gaps.size == 0 or gaps.max() <= 2 * max(1, gaps.min()) + count / 1000
    looks.write([_event(count, -1.0)])
    assert looks.points(max_points=100)[-1] == (count, -1.0)


def test_what_is_kept_of_many_points_is_bounded_and_a_restart_still_works(looks: Looks) -> None:
    looks.write([_event(step, float(step)) for step in range(30_000)])
    looks.look()
    (job,) = looks.cache._jobs.values()
    assert job.num_points <= 2 * scalars.MAX_KEPT
    looks.write([_start(10_000), _event(10_000, -1.0)], number=1)
    points = looks.points(max_points=2000)
    assert points[-1] == (10_000, -1.0)
    assert 9900 < points[-2][0] < 10_000


def test_tags_and_files_are_bounded(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalars, "MAX_CURVES", 3)
    monkeypatch.setattr(scalars, "MAX_FILES", 2)
    looks.write([_event(0, 1.0, tag=f"t{number}") for number in range(9)], number=0)
    looks.write([_event(0, 1.0, tag=f"t{number}") for number in range(9)], number=1)
    looks.write([_event(0, 1.0, tag=f"t{number}") for number in range(9)], number=2)
    found = looks.look()
    assert [len(curves) for _, curves in found.runs] == [3]
    assert found.notes == ("only the last 2 of 3 files were read", "only the first 3 curves were read")


def test_a_look_takes_a_bounded_time_and_the_next_one_goes_on(looks: Looks) -> None:
    looks.write([_event(step, 1.0) for step in range(10)], number=0)
    looks.write([_event(step, 1.0, tag="other") for step in range(10)], number=1)
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += scalars.SCAN_S / 3
        return now_s

    looks.cache = ScalarCache(clock=clock)
    sizes: list[int] = []
    more = True
    while more:
        found = looks.look()
        sizes.append(sum(curve.steps.size for _, curves in found.runs for curve in curves))
        more = found.more
    assert sizes == sorted(sizes)
    assert (sizes[-1], len(sizes) > 4) == (20, True)


def test_the_cache_forgets_the_jobs_that_nobody_looked_at(looks: Looks) -> None:
    looks.write([_event(step, 1.0) for step in range(100)])
    looks.cache = ScalarCache(max_points=150)
    folder = open_output(looks.job, "tensorboard", bucket=looks.bucket)
    for uid in ("a", "b", "c"):
        looks.cache.read(uid, folder, tags=(), max_points=10)
    assert list(looks.cache._jobs) == ["c"]


def _get(service: Served, **query: Any) -> dict[str, Any]:
    answer = service.http.get("/v1/projects/local/jobs/j/scalars", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_curves_over_rest_are_json_even_where_they_are_no_numbers(looks: Looks, service: Served) -> None:
    assert _get(service) == {"runs": [], "notes": [], "more": False}
    values = [1.0, math.nan, math.inf]
    looks.write([_event(step, value, time_s=math.nan) for step, value in enumerate(values)], run=".")
    assert _get(service)["runs"] == [
        {"run": ".", "tags": [{"tag": "loss", "points": [[0, 0.0, 1.0], [1, 0.0, None], [2, 0.0, None]]}]}
    ]
    assert _get(service, maxPoints=2)["runs"][0]["tags"][0]["points"] == [[0, 0.0, 1.0], [2, 0.0, None]]
    assert _get(service, tag="other")["runs"] == []
    for query in ({"maxPoints": 0}, {"maxPoints": 99999}):
        assert service.http.get("/v1/projects/local/jobs/j/scalars", params=query).status_code == 400
    other = service.client(service.key(Scope.VIEWER, project="other"))
    assert other.get("/v1/projects/local/jobs/j/scalars").status_code == 404


def test_a_client_reads_large_files_to_their_end(
    looks: Looks, service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks.write([_event(step, 1.0) for step in range(100)])
    monkeypatch.setattr(scalars, "SCAN_S", 0.0)  # a record for each request
    with Client(ServiceAddress(url=service.url, token=HOME_TOKEN)) as client:
        found = client.scalars("j", tag="loss", max_points=10)
    assert found["runs"][0]["tags"][0]["points"][-1] == [99, 99.0, 1.0]
    assert "more" not in found


def test_a_batch_prediction_has_no_curves(looks: Looks, bench: Bench, service: Served) -> None:
    bench.store.update(looks.job.uid, outputs={"predictions": "/p", "logs": "/l"})
    assert _get(service)["runs"] == []


def test_many_curves_have_fewer_points_each(looks: Looks, service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalars, "MAX_SHOWN_POINTS", 100)
    looks.write([_event(step, 1.0, tag=f"t{number}") for number in range(10) for step in range(50)])
    tags = _get(service)["runs"][0]["tags"]
    assert [len(each["points"]) for each in tags] == [10] * 10
    assert len(json.dumps(tags)) < 10_000
