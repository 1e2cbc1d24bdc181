"""How far a program is, as its heartbeats tell."""

from __future__ import annotations

import math

import pytest

from lockstep.heartbeat import Beat
from lockstep.jobs.running.progress import RATE_WINDOW_S, Progress, ProgressTracker


def test_rates_are_those_of_the_last_half_minute() -> None:
    tracker = ProgressTracker()
    assert tracker.add(Beat(step=1, num_examples=64), now_s=0.0).steps_per_s is None
    for second in range(1, 101):  # one step a second, then ten
        step = second if second <= 50 else 50 + (second - 50) * 10
        progress = tracker.add(Beat(step=step, num_examples=step * 64), now_s=float(second))
    assert progress.steps_per_s == pytest.approx(10)
    assert progress.examples_per_s == pytest.approx(640)
    assert (progress.time_s, progress.step) == (100.0, 550)


def test_what_a_beat_does_not_say_is_as_it_was() -> None:
    tracker = ProgressTracker()
    tracker.add(Beat(step=1, epoch=2, metrics={"loss": 0.5}), now_s=0.0)
    assert tracker.add(Beat(), now_s=1.0) == Progress(
        time_s=1.0, step=1, epoch=2, metrics={"loss": 0.5}, steps_per_s=0.0
    )


def test_a_slow_program_has_a_rate_too() -> None:
    tracker = ProgressTracker()
    tracker.add(Beat(step=1), now_s=0.0)
    progress = tracker.add(Beat(step=2), now_s=RATE_WINDOW_S * 4)
    assert progress.steps_per_s == pytest.approx(1 / 120)


def test_a_flood_of_beats_is_counted_now_and_then() -> None:
    tracker = ProgressTracker()
    for number in range(20_000):
        progress = tracker.add(Beat(step=number), now_s=number / 1000)
    assert progress.steps_per_s == pytest.approx(1000)
    assert len(tracker._counts) < 500


@pytest.mark.parametrize(("step", "now_s"), [(1, 10.0), (200, 4.0)], ids=["another-training", "clock-set-back"])
def test_rates_begin_anew(step: int, now_s: float) -> None:
    tracker = ProgressTracker()
    tracker.add(Beat(step=100), now_s=5.0)
    assert tracker.add(Beat(step=step), now_s=now_s).steps_per_s is None


def test_numbers_that_are_none_are_named_and_not_kept() -> None:
    progress = ProgressTracker().add(Beat(step=3, metrics={"loss": math.nan, "accuracy": 0.5}), now_s=0.0)
    assert (progress.metrics, progress.not_finite) == ({"accuracy": 0.5}, ("loss",))
    assert progress.describe() == "step 3, accuracy 0.5, loss not finite"


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (
            Progress(time_s=0, step=1200, epoch=3, metrics={"loss": 0.314159}, steps_per_s=40, examples_per_s=5120.4),
            "step 1200, epoch 3, loss 0.3142, 5,120 examples/s",
        ),
        (Progress(time_s=0, step=1, steps_per_s=0.0123), "step 1, 0.0123 steps/s"),
        (Progress(time_s=0), "alive"),
    ],
    ids=["fit", "loop", "nothing"],
)
def test_it_is_said_in_a_few_words(progress: Progress, text: str) -> None:
    assert progress.describe() == text
