"""A job's metrics and curves as tables of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    import pandas


def _pandas(what: str) -> ModuleType:
    """Imports pandas, which Lockstep does not install.

    Args:
        what: what needs it, for the message.

    Raises:
        ConfigError: pandas is not installed.
    """
    try:
        import pandas  # an optional package
    except ImportError as error:
        if error.name != "pandas":
            raise
        raise ConfigError(f"{what} needs pandas, which is not installed", action="run: pip install pandas") from None
    return pandas


def metric_frame(pages: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Returns the metrics of a job's replicas, one row for each measurement.

    Args:
        pages: the pages of the service; see `lockstep.client.Client.metric_pages`.

    Returns:
        A table with the columns ``time`` (UTC), ``replica``, ``attempt``, ``metric``, ``unit`` and ``value``.

    Raises:
        ConfigError: pandas is not installed.
    """
    pandas = _pandas("Job.metrics()")
    rows = [
        (time_s, series["replica"], series["attempt"], series["name"], series["unit"], value)
        for page in pages
        for series in page["series"]
        for time_s, value in series["points"]
    ]
    frame = pandas.DataFrame(rows, columns=["time", "replica", "attempt", "metric", "unit", "value"])
    return _typed(frame, pandas=pandas, integer="attempt")


def scalar_frame(curves: Mapping[str, Any]) -> pandas.DataFrame:
    """Returns the curves that a job wrote for TensorBoard, one row for each point.

    Args:
        curves: the curves, as the service returns them: ``{"runs": [{"run", "tags": [{"tag", "points"}]}]}``.

    Returns:
        A table with the columns ``run``, ``tag``, ``step``, ``time`` (UTC) and ``value``. A value that is not finite is
        NaN.

    Raises:
        ConfigError: pandas is not installed.
    """
    pandas = _pandas("Job.scalars()")
    rows = [
        (run["run"], curve["tag"], step, time_s, value)
        for run in curves["runs"]
        for curve in run["tags"]
        for step, time_s, value in curve["points"]
    ]
    frame = pandas.DataFrame(rows, columns=["run", "tag", "step", "time", "value"])
    return _typed(frame, pandas=pandas, integer="step")


def _typed(frame: Any, *, pandas: ModuleType, integer: str) -> Any:
    """Returns a table whose columns have the same types, whether or not it has rows."""
    times = pandas.to_datetime(frame["time"].astype("float64"), unit="s", utc=True)
    texts = {name: "str" for name in frame.columns if name not in {"time", "value", integer}}
    types = {"value": "float64", integer: "int64", **texts}
    return frame.assign(time=times.dt.as_unit("us")).astype(types)
