"""The summary at the end of fit: exact arithmetic of its times, and its numbers under each synchronous strategy."""

import contextlib
from types import SimpleNamespace

import jax
import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

from lockstep.errors import InvalidInputError
from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, ShardedStrategy
from lockstep.strategies.observing import Wait
from lockstep.training import BackupAndRestore, Summary, collective_times, summary
from lockstep.training.peaks import PEAKS, Peak, find_peak
from lockstep.training.step_times import MAX_TIMES, StepTimes

PARTS = ("compute_s", "collective_s", "data_s", "checkpoint_s", "validation_s", "first_s", "other_s")
ROWS, BATCH, EPOCHS = 128, 8, 2
STEPS = EPOCHS * ROWS // BATCH


def begin(times, now_s, *, num_rows=8):
    times.begin(num_steps=1, num_rows=num_rows, now_s=now_s)


def test_a_wait_counts_only_while_nothing_is_computed():
    times = StepTimes(now_s=0.0)
    times.wait(Wait.DATA, began_s=0.0, ended_s=1.0)
    begin(times, 2.0)  # until here: 1 s of data, 1 s of something else
    times.complete(now_s=5.0)  # the first step: 3 s
    begin(times, 5.0)
    times.wait(Wait.DATA, began_s=5.5, ended_s=6.5)  # hidden: the second step is computed until 7
    begin(times, 6.5)
    times.complete(now_s=7.0)
    times.complete(now_s=9.0)  # it began when the one before was complete
    times.wait(Wait.DATA, began_s=8.0, ended_s=9.5)  # half a second of it is not hidden
    times.wait(Wait.CHECKPOINT, began_s=9.5, ended_s=11.5)
    begin(times, 12.0)
    times.complete(now_s=13.0)
    times.interrupt()  # the epoch ends
    times.begin_validation(now_s=13.0)
    times.end_validation(now_s=15.0)
    begin(times, 15.0, num_rows=4)  # another size: compiled
    times.complete(now_s=18.0)
    begin(times, 18.0, num_rows=4)
    times.complete(now_s=19.0)
    times.wait(Wait.CHECKPOINT, began_s=19.0, ended_s=20.0)
    times.end(now_s=20.0)
    assert times.waits_s == {Wait.DATA: 1.5, Wait.CHECKPOINT: 3.0}
    assert (times.first_s, times.busy_s, times.validation_s) == (3.0 + 3.0, 2.0 + 2.0 + 1.0 + 1.0, 2.0)
    assert (times.num_steps, times.num_rows) == (6, 40)
    assert (times.steady_s, times.steady_steps, times.steady_rows) == (2.0 + 2.0 + 4.0 + 1.0, 4, 28)
    assert [times.percentile_s(percent) for percent in (0, 50, 95)] == [1.0, 2.0, 4.0]


def test_the_times_of_very_many_steps_take_no_more_memory():
    times = StepTimes(now_s=0.0)
    for number in range(2 * MAX_TIMES):
        begin(times, float(number))
        times.complete(now_s=number + 1.0)
    assert len(times._times) <= MAX_TIMES
    assert times.steady_steps == 2 * MAX_TIMES - 1
    assert times.percentile_s(95) == 1.0


def make(strategy):
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        layers = [keras.Input((4,)), keras.layers.Dense(16), keras.layers.Dense(2)]
        model = keras.Sequential(layers, name="tiny")
        model.compile("sgd", "mse")
    return model


STRATEGIES = {
    "none": lambda: None,
    "one": OneDeviceStrategy,
    "mirrored": lambda: MirroredStrategy(jax.devices()[:2]),
    "sharded": lambda: ShardedStrategy(jax.devices()[:2], stage=3),
    "central": lambda: CentralStorageStrategy(compute_devices=jax.devices()[:2]),
}


@pytest.mark.parametrize("kind", STRATEGIES)
def test_it_says_where_the_time_of_fit_went(kind, tmp_path, monkeypatch):
    peak = Peak(name="a test's CPU", kind="", half=2e9, single=1e9, source="")
    monkeypatch.setattr(summary, "find_peak", lambda device_kind: peak)
    lines = []
    callback = Summary(log_dir=tmp_path / "logs", write=lines.append)
    x, y = np.ones((ROWS, 4), "float32"), np.ones((ROWS, 2), "float32")
    model = make(STRATEGIES[kind]())
    callbacks = [BackupAndRestore(tmp_path / "checkpoints"), callback]
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, validation_data=(x, y), verbose=0, callbacks=callbacks)
    report = callback.report
    assert (report.num_steps, report.num_examples) == (STEPS, EPOCHS * ROWS)
    assert sum(getattr(report, part) for part in PARTS) == pytest.approx(report.total_s, rel=0.02)
    assert min(report.first_s, report.checkpoint_s, report.validation_s, report.compute_s) > 0
    assert report.step_p50_s <= report.step_p95_s
    # Forward: 4x16 and 16x2; backward: the same twice, without the gradient of the inputs.
    assert report.step_operations == pytest.approx(2 * BATCH * (3 * (64 + 32) - 64))
    num_devices = 1 if kind in ("none", "one") else 2
    assert report.num_devices == num_devices
    assert (report.collective_s > 0) is (num_devices > 1)
    assert ("measured by a profile of 3 steps" in report.collective_note) is (num_devices > 1)
    assert report.peak_memory_bytes > 4 * (16 * 5 + 2 * 17)
    assert report.utilisation == pytest.approx(
        report.step_operations * report.examples_per_s / BATCH / (1e9 * num_devices), rel=1e-3
    )
    assert lines[0].startswith("summary of fit of tiny: 32 steps, 256 examples, ")
    assert max(map(len, lines)) <= 100
    assert "3.584 KFLOP a step in matrix products and convolutions" in "".join(lines)
    assert "".join(lines).splitlines() == report.lines
    written = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "logs"))
    written.Reload()
    scalars = {tag: written.Scalars("train", tag)[0].value for tag in written.Runs()["train"]["scalars"]}
    assert scalars == pytest.approx(dict(report.scalars))
    assert "summary/data_seconds" in scalars
    assert "summary/text_summary" in written.PluginRunToTagToContent("text")["train"]


def test_what_cannot_be_known_is_said(tmp_path):
    lines = []
    callback = Summary(profile_steps=0, write=lines.append)
    model = make(STRATEGIES["mirrored"]())
    x, y = np.ones((16, 4), "float32"), np.ones((16, 2), "float32")
    model.fit(x, y, batch_size=16, verbose=0)
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[callback])
    text = "".join(lines)
    for said in ("too few steps", "not measured: fewer than 10 steps", "no published peak of cpu in float32"):
        assert said in text
    with pytest.raises(InvalidInputError, match="profile_steps"):
        Summary(profile_steps=-1)
    model.compile("sgd", "mse", run_eagerly=True)
    eager = Summary(write=lines.append)
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[eager])
    assert (eager.report.step_operations, eager.report.num_steps) == (None, 1)
    no_steps = Summary(write=lines.append)
    with pytest.raises(ValueError, match="x"):
        model.fit(np.ones((16, 3), "float32"), y, verbose=0, callbacks=[no_steps])
    assert no_steps.report is None


def test_communication_that_computation_hides_does_not_count(monkeypatch, tmp_path):
    def line(name, *events):
        found = [SimpleNamespace(name=what, start_ns=start * 1e9, duration_ns=(end - start) * 1e9)
                 for what, start, end in events]  # fmt: skip
        return SimpleNamespace(name=name, events=found)

    nccl, kernel = "ncclDevKernel_AllReduce_Sum_f32", "loop_add_fusion"
    gpu = SimpleNamespace(
        name="/device:GPU:0", lines=[line("Stream #1", (kernel, 0, 4)), line("Stream #2", (nccl, 3, 6), (nccl, 5, 7))]
    )
    tpu = SimpleNamespace(
        name="/device:TPU:0",
        lines=[line("XLA Ops", ("all-gather.1", 0, 2), ("fusion.1", 2, 5)), line("Steps", ("all-gather.1", 0, 9))],
    )
    host = SimpleNamespace(
        name="/host:CPU", lines=[line("tf_XLAEigen/1", ("all-reduce.7", 0, 2), ("dot.1", 2, 5)), line("python")]
    )
    (tmp_path / "a.xplane.pb").write_bytes(b"")
    for plane, seconds in ((gpu, 3.0), (tpu, 2.0), (host, 2.0)):
        data = SimpleNamespace(planes=[plane])
        monkeypatch.setattr(jax.profiler, "ProfileData", SimpleNamespace(from_file=lambda path, data=data: data))
        assert collective_times.collective_s(tmp_path, num_devices=2) == pytest.approx(seconds / 2)


@pytest.mark.parametrize(
    ("kind", "name", "dtype", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM", "bfloat16", 989),
        ("NVIDIA H100 PCIe", "H100 PCIe", "float16", 756),
        ("NVIDIA H200", "H200 SXM", "float32", 494),
        ("NVIDIA A100-SXM4-40GB", "A100", "bfloat16", 312),
        ("Tesla V100-SXM2-16GB", "V100 SXM2", "bfloat16", None),
        ("Tesla T4", "T4", "float16", 65),
        ("NVIDIA L4", "L4", "bfloat16", 121),
        ("NVIDIA L40S", "L40S", "bfloat16", 362),
        ("NVIDIA A10", "A10", "bfloat16", 125),
        ("NVIDIA A10G", "A10G", "float32", 35),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", "bfloat16", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, "bfloat16", None),
        ("NVIDIA B200", "B200", "bfloat16", 2250),
        ("TPU v5 lite", "TPU v5e", "bfloat16", 197),
        ("TPU v5p", "TPU v5p", "bfloat16", 459),
        ("TPU v6 lite", "TPU v6e", "float32", 918),
        ("cpu", None, "float32", None),
    ],
)
def test_peaks_are_those_of_the_device_that_jax_names(kind, name, dtype, tera):
    peak = find_peak(kind)
    assert (peak.name if peak else None) == name
    rate = peak.rate(dtype) if peak else None
    assert rate == (None if tera is None else tera * 10**12)
    assert all(each.half >= each.single and each.source.startswith("https://") for each in PEAKS)
