"""What is measured of a replica, and how it reaches the bucket."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.runner.test_runner_process import RunnerProcess, _order

from lockstep.errors import StorageError
from lockstep.jobs.running.metrics import Sample, decode_sample
from lockstep.jobs.running.progress import Progress
from lockstep.runner import series as series_module
from lockstep.runner.gpus import GpuReader
from lockstep.runner.logs import upload_leftovers
from lockstep.runner.sampling import Sampler
from lockstep.runner.series import SEGMENT_SAMPLES, SeriesWriter, key_time_s, sample_key
from lockstep.runner.usage import Consumption
from lockstep.spools import STATUS_FILE
from lockstep.storage import open_bucket


def _sampler(network: Callable[[], tuple[int, int]], gpus: Mapping[str, float] | None = None) -> Sampler:
    return Sampler(gpus=lambda: gpus or {}, network=network)


def test_rates_come_from_two_looks() -> None:
    counts: Iterator[tuple[int, int]] = iter([(1000, 0), (6000, 500)])
    sampler = _sampler(lambda: next(counts), {"gpuUtilization": 0.5})
    first = sampler.sample(Consumption(cpu_s=1.0, memory_bytes=7, disk_read_bytes=10), progress=None, now_s=100.0)
    assert first == Sample(time_s=100.0, values={"memoryBytes": 7.0, "gpuUtilization": 0.5})
    progress = Progress(time_s=104.0, step=3, steps_per_s=0.5, metrics={"loss": 0.25})
    consumption = Consumption(cpu_s=11.0, memory_bytes=8, disk_read_bytes=60, disk_written_bytes=100)
    assert sampler.sample(consumption, progress=progress, now_s=105.0).values == {
        "memoryBytes": 8.0,
        "cpuCores": 2.0,
        "diskReadBytesPerSecond": 10.0,
        "diskWrittenBytesPerSecond": 20.0,
        "networkReceivedBytesPerSecond": 1000.0,
        "networkSentBytesPerSecond": 100.0,
        "gpuUtilization": 0.5,
        "step": 3.0,
        "stepsPerSecond": 0.5,
        "program/loss": 0.25,
    }


def test_one_that_says_nothing_new_has_no_rate() -> None:
    sampler = _sampler(lambda: (0, 0))
    progress = Progress(time_s=99.0, step=3, steps_per_s=0.5, examples_per_s=16.0)
    seen = [sampler.sample(Consumption(), progress=progress, now_s=now_s).values for now_s in (100.0, 105.0)]
    assert [("stepsPerSecond" in values, "examplesPerSecond" in values) for values in seen] == [
        (True, True),
        (False, False),
    ]
    assert seen[1]["step"] == 3


def test_a_counter_or_a_clock_that_goes_back_gives_no_rate() -> None:
    sampler = _sampler(lambda: (0, 0))
    sampler.sample(Consumption(cpu_s=5.0), progress=None, now_s=100.0)
    values = sampler.sample(Consumption(cpu_s=4.0), progress=None, now_s=105.0).values
    assert "cpuCores" not in values
    assert "networkSentBytesPerSecond" in values
    assert set(sampler.sample(Consumption(cpu_s=9.0), progress=None, now_s=90.0).values) == {"memoryBytes"}


class NVMLError(Exception): ...


class Library:
    """Stands where NVML's bindings do: four GPUs, the last of which is broken."""

    NVMLError = NVMLError

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle == 3:
            raise NVMLError
        return SimpleNamespace(gpu=handle * 20)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=handle * 1000)


@pytest.mark.parametrize(
    ("visible", "values"),
    [
        (None, {"gpuUtilization": 0.2, "gpuMemoryBytes": 3000.0}),
        ("1, 2", {"gpuUtilization": 0.3, "gpuMemoryBytes": 3000.0}),
        ("GPU-2", {"gpuUtilization": 0.4, "gpuMemoryBytes": 2000.0}),
        ("", {}),
        ("-1", {}),
        ("1,3", {}),
    ],
    ids=["all", "numbers", "uuid", "none", "hidden", "broken"],
)
def test_the_gpus_of_a_replica_are_read(visible: str | None, values: dict[str, float]) -> None:
    assert GpuReader(visible, library=Library()).read() == values


def test_a_node_without_a_driver_has_no_gpus() -> None:
    library = Library()
    library.nvmlInit = lambda: (_ for _ in ()).throw(NVMLError())  # type: ignore[method-assign]
    assert GpuReader(None, library=library).read() == {}


def test_segments_are_named_by_time() -> None:
    assert sample_key(1732270000.1234) == "001732270000123.jsonl"
    assert key_time_s("001732270000123.jsonl") == 1732270000.123
    assert [key_time_s(key) for key in ("url", "x.jsonl", "1.partial", "1.jsonl.partial")] == [None] * 4


def _samples(url: str) -> list[Sample | None]:
    bucket = open_bucket(url)
    return [decode_sample(line) for item in bucket.list() for line in bucket.read(item.key).splitlines()]


def _made(count: int, *, start: int = 0) -> list[Sample]:
    return [Sample(time_s=1000.0 + number, values={"step": float(number)}) for number in range(start, start + count)]


def test_samples_reach_the_bucket_while_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "FLUSH_INTERVAL_S", 0.01)
    writer = SeriesWriter(str(tmp_path / "bucket"), spool=tmp_path / "spool")
    for first, second in ((_made(1), _made(2, start=1)), (_made(0), _made(SEGMENT_SAMPLES, start=3))):
        for sample in [*first, *second]:
            writer.add(sample)
        deadline = time.monotonic() + 10
        while second[-1] not in _samples(str(tmp_path / "bucket")) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert _samples(str(tmp_path / "bucket")) == _made(SEGMENT_SAMPLES + 3)
    assert writer.close(timeout_s=5)
    assert [item.key for item in open_bucket(str(tmp_path / "bucket")).list()] == [
        sample_key(1000.0),
        sample_key(1000.0 + SEGMENT_SAMPLES),
    ]
    assert not (tmp_path / "spool").exists()


def test_a_clock_that_is_set_back_adds_nothing(tmp_path: Path) -> None:
    writer = SeriesWriter(str(tmp_path / "bucket"), spool=tmp_path / "spool")
    for sample in (*_made(2), *_made(2), *_made(1, start=2)):
        writer.add(sample)
    assert writer.close(timeout_s=5)
    assert _samples(str(tmp_path / "bucket")) == _made(3)


def test_what_a_bucket_refuses_is_carried_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SeriesWriter(str(tmp_path / "bucket"), spool=tmp_path / "spool")

    class Refusing:
        url = str(tmp_path / "bucket")

        def write(self, key: str, data: bytes) -> None:
            raise StorageError("no")

    monkeypatch.setattr(writer, "_bucket", Refusing())
    for sample in _made(SEGMENT_SAMPLES + 5):
        writer.add(sample)
    assert not writer.close(timeout_s=5)
    assert upload_leftovers(tmp_path / "spool") == 2
    assert _samples(str(tmp_path / "bucket")) == _made(SEGMENT_SAMPLES + 5)


def test_a_runner_measures_its_program(tmp_path: Path) -> None:
    script = "held = bytearray(b'x' * (50 << 20))\nwhile True: pass"
    runner = RunnerProcess(_order(tmp_path, sys.executable, "-c", script, metrics_url=str(tmp_path / "metrics")))
    seen = next(status.metrics for status in runner.reports() if status.metrics.get("cpuCores"))
    runner.close()
    assert seen["memoryBytes"] > 50 << 20
    assert 0 < seen["cpuCores"] < 1.5
    samples = _samples(str(tmp_path / "metrics"))
    assert seen in [sample.values for sample in samples if sample is not None]
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [STATUS_FILE], "for a service that asks later"
