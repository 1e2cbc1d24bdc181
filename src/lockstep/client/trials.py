"""The trials of a search, as the service returns them, for programs and notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self, final

from lockstep.errors import WrongStateError
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.hyperparameters import HyperparameterSpec
from lockstep.jobs.running.states import TERMINAL, JobState
from lockstep.jobs.tuning import Measurement, TrialResult, TrialState, Value, best_first, parse_value, study_of

if TYPE_CHECKING:
    import optuna


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a search.

    Attributes:
        number: its number, from 1.
        job: the name of its job, such as ``digits.3``: `lockstep.Job` reads its log, curves and files.
        state: the state of its job.
        parameters: the values of its parameters by name.
        objective: the value that is compared, the last one of the metric; None if there is none.
        step: the step of that value.
        is_stopped_early: whether the search stopped it.
        measurements: the steps and values of the metric, in the order of steps; the service may thin them.
        start_time: when it started, in UTC; None if it has not.
        end_time: when it ended, in UTC; None if it has not.
        cost_usd: what it has cost so far, or in the end, in US dollars; None if that is not known.
    """

    number: int
    job: str
    state: JobState
    parameters: Mapping[str, Value]
    objective: float | None
    step: int | None
    is_stopped_early: bool
    measurements: Sequence[tuple[int, float]]
    start_time: datetime | None
    end_time: datetime | None
    cost_usd: Decimal | None

    @classmethod
    def of(cls, document: Mapping[str, Any], *, spec: HyperparameterSpec) -> Self:
        """Returns a trial from the service's JSON form.

        Args:
            document: the trial: the contract's ``HyperparameterOutput`` with ``jobId`` and ``costUsd``.
            spec: its search.
        """
        params = {param.parameter_name: param for param in spec.params}
        final = document.get("finalMetric")
        points = [(int(point["trainingStep"]), point) for point in document.get("allMetrics", ())]
        cost = document.get("costUsd")
        return cls(
            number=int(document["trialId"]),
            job=document["jobId"],
            state=JobState(document["state"]),
            parameters={name: parse_value(params[name], text) for name, text in document["hyperparameters"].items()},
            objective=None if final is None else float(final["objectiveValue"]),
            step=None if final is None else int(final.get("trainingStep", 0)),
            is_stopped_early=document.get("isTrialStoppedEarly", False),
            measurements=[(step, float(point["objectiveValue"])) for step, point in points],
            start_time=_time(document.get("startTime")),
            end_time=_time(document.get("endTime")),
            cost_usd=None if cost is None else Decimal(cost),
        )

    def to_result(self) -> TrialResult:
        """Returns the trial as the search's decisions see it."""
        curve = dict(self.measurements)
        if self.step is not None and self.objective is not None:
            curve[self.step] = self.objective
        state = TrialState.RUNNING
        if self.state in TERMINAL:
            state = TrialState.FAILED if self.objective is None else TrialState.COMPLETED
            state = TrialState.FAILED if self.state is JobState.FAILED else state
        if self.is_stopped_early and self.objective is not None:
            state = TrialState.STOPPED
        measurements = (Measurement(step=step, value=value, time_s=0.0) for step, value in sorted(curve.items()))
        return TrialResult(
            number=self.number, parameters=self.parameters, state=state, measurements=tuple(measurements)
        )


def search_of(job: Mapping[str, Any]) -> HyperparameterSpec:
    """Returns the search of a job in the contract's JSON form.

    Raises:
        WrongStateError: the job is no search.
    """
    asked = parse_training_input({"trainingInput": job.get("trainingInput", {})}, source=f"job {job['jobId']}")
    if asked.hyperparameters is None:
        raise WrongStateError(f"job {job['jobId']} is no search", action="lockstep.tune submits one")
    return asked.hyperparameters


def best_of(spec: HyperparameterSpec, trials: Sequence[Trial]) -> Trial | None:
    """Returns the best of the trials that have a value, or None.

    A trial that failed does not count, nor one that still runs: its last value is not its final one.
    """
    ended = (TrialState.COMPLETED, TrialState.STOPPED)
    results = [result for result in (trial.to_result() for trial in trials) if result.state in ended]
    if not results:
        return None
    number = best_first(spec.goal, trials=results)[0].number
    return next(trial for trial in trials if trial.number == number)


def study_from(spec: HyperparameterSpec, trials: Sequence[Trial], *, name: str) -> optuna.Study:
    """Returns the trials of a search as a study of Optuna, in memory."""
    ordered = sorted(trials, key=lambda trial: trial.number)
    spans = {trial.number: (_naive(trial.start_time), _naive(trial.end_time)) for trial in ordered}
    jobs = {trial.number: trial.job for trial in ordered}
    return study_of(spec, trials=[trial.to_result() for trial in ordered], name=name, jobs=jobs, spans=spans)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _naive(time: datetime | None) -> datetime | None:
    """Returns a time as Optuna has it, in local time and without a zone."""
    return None if time is None else time.astimezone(UTC).astimezone().replace(tzinfo=None)
