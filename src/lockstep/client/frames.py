"""A job's metrics and curves as tables of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    import pandas

    from lockstep.client.trials import Trial


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


def trial_frame(trials: Iterable[Trial], *, parameters: Sequence[str]) -> pandas.DataFrame:
    """Returns the trials of a search, one row for each, with the names of columns that Optuna's tables have.

    Args:
        trials: the trials.
        parameters: the names of the parameters.

    Returns:
        A table with the columns ``number``, ``job``, ``state``, ``value``, ``step``, ``params_NAME`` for each
        parameter, ``stopped_early``, ``start_time``, ``end_time`` (UTC) and ``cost_usd``. The value, step and cost of
        a trial without one are missing.

    Raises:
        ConfigError: pandas is not installed.
    """
    pandas = _pandas("Job.trials()")
    rows = [
        {
            "number": trial.number,
            "job": trial.job,
            "state": str(trial.state),
            "value": trial.objective,
            "step": trial.step,
            **{f"params_{name}": trial.parameters.get(name) for name in parameters},
            "stopped_early": trial.is_stopped_early,
            "start_time": trial.start_time,
            "end_time": trial.end_time,
            "cost_usd": None if trial.cost_usd is None else float(trial.cost_usd),
        }
        for trial in trials
    ]
    names = [f"params_{name}" for name in parameters]
    columns = ["number", "job", "state", "value", "step", *names, "stopped_early", "start_time", "end_time", "cost_usd"]
    frame = pandas.DataFrame(rows, columns=columns)
    times = {name: pandas.to_datetime(frame[name], utc=True).dt.as_unit("us") for name in ("start_time", "end_time")}
    types = {"number": "int64", "value": "float64", "step": "Int64", "stopped_early": "bool", "cost_usd": "float64"}
    return frame.assign(**times).astype(types)


def _typed(frame: Any, *, pandas: ModuleType, integer: str) -> Any:
    """Returns a table whose columns have the same types, whether or not it has rows."""
    times = pandas.to_datetime(frame["time"].astype("float64"), unit="s", utc=True)
    texts = {name: "str" for name in frame.columns if name not in {"time", "value", integer}}
    types = {"value": "float64", integer: "int64", **texts}
    return frame.assign(time=times.dt.as_unit("us")).astype(types)
