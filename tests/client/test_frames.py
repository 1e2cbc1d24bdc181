"""A job's metrics and curves as tables."""

from __future__ import annotations

import sys

import pytest

from lockstep.client.frames import metric_frame, scalar_frame
from lockstep.errors import ConfigError

SERIES = {
    "replica": "master-replica-0",
    "attempt": 1,
    "name": "cpu",
    "unit": "cores",
    "points": [[0.5, 1], [10.5, 2.5]],
}


def test_metrics_have_a_row_for_each_measurement() -> None:
    pytest.importorskip("pandas")
    other = {**SERIES, "replica": "worker-replica-0", "points": [[0.5, 3]]}
    frame = metric_frame([{"series": [SERIES]}, {"series": []}, {"series": [other]}])
    assert list(frame.columns) == ["time", "replica", "attempt", "metric", "unit", "value"]
    assert frame["value"].tolist() == [1.0, 2.5, 3.0]
    assert frame["time"][1].isoformat() == "1970-01-01T00:00:10.500000+00:00"
    assert frame.groupby("replica")["value"].max().to_dict() == {"master-replica-0": 2.5, "worker-replica-0": 3.0}
    empty = metric_frame([])
    assert empty.empty
    assert empty.dtypes.to_dict() == frame.dtypes.to_dict()


def test_curves_have_a_row_for_each_point() -> None:
    pytest.importorskip("pandas")
    curve = {"tag": "epoch_loss", "points": [[0, 1.0, 0.5], [1, 2.0, None]]}
    frame = scalar_frame({"runs": [{"run": "train", "tags": [curve]}, {"run": "validation", "tags": []}]})
    assert list(frame.columns) == ["run", "tag", "step", "time", "value"]
    assert frame["value"].isna().tolist() == [False, True]
    assert frame["step"].tolist() == [0, 1]
    assert scalar_frame({"runs": []}).dtypes.to_dict() == frame.dtypes.to_dict()


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for make, what in (
        (lambda: metric_frame([]), "Job.metrics()"),
        (lambda: scalar_frame({"runs": []}), "Job.scalars()"),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value) == f"{what} needs pandas, which is not installed; run: pip install pandas"
