"""Samples as lines, and as series of bounded length."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs.running.metrics import (
    MAX_SERIES,
    METRICS,
    Sample,
    Series,
    Unit,
    decode_sample,
    encode_sample,
    series_of,
    unit_of,
)


def test_a_sample_is_read_as_it_was_written() -> None:
    sample = Sample(time_s=1732270000.123, values={"cpuCores": 1.5, "program/loss": 0.25})
    assert encode_sample(sample) == b'[1732270000.123,{"cpuCores":1.5,"program/loss":0.25}]\n'
    assert decode_sample(encode_sample(sample)) == sample


@pytest.mark.parametrize("line", [b"", b"{", b"{}", b"[1]", b'["1",{}]', b"[true,{}]", b"[NaN,{}]", b"[1,[]]"])
def test_what_is_no_sample_is_none(line: bytes) -> None:
    assert decode_sample(line) is None


def test_what_is_no_number_is_left_out() -> None:
    assert decode_sample(b'[1,{"a":NaN,"b":"1","c":true,"d":2}]') == Sample(time_s=1.0, values={"d": 2.0})


def test_points_are_means_of_intervals_and_gaps_stay_gaps() -> None:
    samples = [Sample(time_s=time_s, values={"step": value}) for time_s, value in ((0, 1), (5, 3), (10, 7), (30, 9))]
    (series,) = series_of(samples, names=(), since_s=0, until_s=31, interval_s=10)
    assert series == Series(name="step", points=((0, 2.0), (10, 7.0), (30, 9.0)))


def test_only_what_is_asked_for_counts_and_known_metrics_come_first() -> None:
    samples = [Sample(time_s=time_s, values={"program/loss": 1.0, "step": 2.0, "cpuCores": 3.0}) for time_s in range(9)]
    shown = series_of(samples, names=(), since_s=2, until_s=4, interval_s=1)
    assert [(series.name, [time_s for time_s, _ in series.points]) for series in shown] == [
        ("cpuCores", [2, 3]),
        ("step", [2, 3]),
        ("program/loss", [2, 3]),
    ]
    assert [s.name for s in series_of(samples, names=("step", "x"), since_s=0, until_s=9, interval_s=1)] == ["step"]


@given(
    times=st.lists(st.floats(0, 1000, allow_nan=False), min_size=1, max_size=60),
    interval_s=st.floats(0.5, 400, allow_nan=False),
)
def test_no_sample_is_lost_and_no_series_is_longer_than_its_intervals(times: list[float], interval_s: float) -> None:
    samples = [Sample(time_s=time_s, values={"step": 1.0}) for time_s in times]
    (series,) = series_of(samples, names=(), since_s=0, until_s=1001, interval_s=interval_s)
    assert len(series.points) <= 1001 // interval_s + 1
    assert {value for _, value in series.points} == {1.0}
    assert {int(time_s // interval_s) for time_s in times} == {
        round(time_s / interval_s) for time_s, _ in series.points
    }


def test_a_program_that_names_its_metrics_anew_each_time_has_series_without_end_for_nobody() -> None:
    samples = [Sample(time_s=time_s, values={f"program/{time_s}": 1.0}) for time_s in range(2 * MAX_SERIES)]
    samples.append(Sample(time_s=1000, values={"step": 1.0, "program/199": 3.0}))
    shown = series_of(samples, names=(), since_s=0, until_s=1001, interval_s=1)
    assert len(shown) == MAX_SERIES + 1
    assert shown[0].name == "step"
    assert [s.name for s in series_of(samples, names=("program/199",), since_s=0, until_s=1001, interval_s=1)] == [
        "program/199"
    ]


def test_every_metric_has_a_unit() -> None:
    assert {unit_of(name) for name in METRICS} == set(Unit) - {Unit.NONE}
    assert unit_of("program/loss") is Unit.NONE


def test_what_has_no_sum_has_a_mean_that_can_be_sent() -> None:
    samples = [Sample(time_s=time_s, values={"program/loss": -1.7e308}) for time_s in (0.0, 1.0)]
    (series,) = series_of(samples, names=(), since_s=0, until_s=5, interval_s=5)
    assert series.points == ((0, -sys.float_info.max),)
