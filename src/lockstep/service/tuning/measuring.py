"""Finds the metric of a trial in the curves that its program wrote for TensorBoard."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from lockstep.service.store import MeasuredPoint, TrialRecord
from lockstep.service.telemetry.scalars import Scalars, TagCurve

MAX_POINTS: Final = 200
"""How many values of a trial are kept, chosen evenly."""
REPORT_RUN: Final = "report"
"""The run that `lockstep.report` writes."""
PREFERRED_RUNS: Final = (REPORT_RUN, "validation")
"""Of several runs with the metric, the first of these is taken, or the one that was written last."""


def tags_of(metric: str) -> list[str]:
    """Returns the tags that a metric may name: the whole name, and what follows each slash, if a run stands before it.

    Args:
        metric: the search's ``hyperparameterMetricTag``.
    """
    parts = metric.split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def with_points(trial: TrialRecord, scalars: Scalars) -> TrialRecord:
    """Returns a trial with the values of its metric. A run that was read before is kept.

    Args:
        trial: the trial.
        scalars: the curves of its job with the tags of `tags_of`.
    """
    found = {
        run: curve
        for run, curves in scalars.runs
        for curve in curves
        if trial.metric in (curve.tag, f"{run}/{curve.tag}")
    }
    if not found:
        return trial
    named = {run: curve for run, curve in found.items() if trial.metric == f"{run}/{curve.tag}"}
    run = _choose(named or found, known=trial.run)
    curve = found[run]
    points = tuple(
        MeasuredPoint(step=step, value=value if math.isfinite(value) else None, time_s=time_s)
        for step, time_s, value in zip(curve.steps.tolist(), curve.times_s.tolist(), curve.values.tolist(), strict=True)
    )
    return replace(trial, points=points, run=run)


def _choose(curves: dict[str, TagCurve], *, known: str | None) -> str:
    for run in (*PREFERRED_RUNS, known):
        if run in curves:
            return run
    return max(curves, key=lambda run: float(curves[run].times_s[-1]))
