"""Defines what is known of a search's trials: their parameters, states and measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from lockstep.jobs.input.hyperparameters import Goal

Value = float | int | str
"""A parameter's value: a float of DOUBLE, an int of INTEGER, a text of CATEGORICAL, either number of DISCRETE."""


@final
class TrialState(StrEnum):
    """The stages of a trial, as far as they matter for the next decisions."""

    RUNNING = "RUNNING"
    """The trial was created and has not ended; also while its job waits in the queue."""
    COMPLETED = "COMPLETED"
    """The program succeeded and reported the metric."""
    STOPPED = "STOPPED"
    """The search stopped the trial early. Its last value counts."""
    FAILED = "FAILED"
    """The program failed, or ended without a finite value of the metric. It counts as worse than all others."""
    LOST = "LOST"
    """The trial ended for a reason that says nothing about its parameters, which are proposed again: a lost node."""


@final
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One value of the metric.

    Attributes:
        step: the step that the program gave, such as the epoch.
        value: the metric's value; may be NaN or infinite.
        time_s: the time of the measurement, in seconds since 1970 UTC.
    """

    step: int
    value: float
    time_s: float


@final
@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One trial and what it measured.

    Attributes:
        number: the trial's number in its search, from 1.
        parameters: the values of all parameters, by name.
        state: the trial's stage.
        measurements: the values of the metric in increasing order of steps, at most one for each step.
    """

    number: int
    parameters: Mapping[str, Value]
    state: TrialState
    measurements: tuple[Measurement, ...] = ()

    @property
    def final(self) -> Measurement | None:
        """The last measurement with a finite value; None if there is none."""
        return next((m for m in reversed(self.measurements) if math.isfinite(m.value)), None)

    @property
    def objective(self) -> float | None:
        """The last finite value of the metric, which the search compares; None if there is none."""
        return None if self.final is None else self.final.value


def is_better(goal: Goal, *, value: float, other: float) -> bool:
    """Returns whether a finite value of the metric is strictly better than another one."""
    return value > other if goal is Goal.MAXIMIZE else value < other


def best_first(goal: Goal, *, trials: Iterable[TrialResult]) -> list[TrialResult]:
    """Returns trials in the contract's order: the best objective first, those without one last, then by number."""

    def place(trial: TrialResult) -> tuple[bool, float, int]:
        objective = trial.objective
        signed = 0.0 if objective is None else (-objective if goal is Goal.MAXIMIZE else objective)
        return objective is None, signed, trial.number

    return sorted(trials, key=place)
