"""What `lockstep metrics` draws."""

from __future__ import annotations

import pytest

from lockstep.cli.metrics import _writer, sparkline


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ([[0, 5.0]], "▁"),
        ([[0, 1.0], [10, 1.0]], "▁▁"),
        ([[0, 0.0], [10, 3.5], [20, 7.0], [50, 0.0]], "▁▅█  ▁"),
        ([[0, 1.7e308], [10, -1.7e308]], "█▁"),
    ],
    ids=["one", "level", "gap", "diverging"],
)
def test_points_are_bars_and_gaps_are_gaps(points: list[list[float]], line: str) -> None:
    assert sparkline(points, interval_s=10.0) == line


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("bytes", 3 << 20, "3.0 MiB"),
        ("share", 0.934, "93%"),
        ("cores", 1.234567, "1.235"),
        ("steps", 123456, "123,456"),
        ("", 0.0001, "0.0001"),
    ],
    ids=["bytes", "share", "cores", "steps", "none"],
)
def test_amounts_are_written_by_their_unit(unit: str, value: float, text: str) -> None:
    assert _writer(unit)[0](value) == text
