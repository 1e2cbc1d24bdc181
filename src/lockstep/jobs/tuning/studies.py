"""Shows the trials of a search to Optuna, whose plots and tables then work on them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from lockstep.jobs.input.hyperparameters import Goal, HyperparameterSpec, ParameterSpec, ParameterType, ScaleType
from lockstep.jobs.tuning.space import contains, discrete_values
from lockstep.jobs.tuning.trials import TrialResult, TrialState

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

JOB_ATTRIBUTE: Final = "job"
"""The user attribute of an Optuna trial with the name of the trial's job."""

Span = tuple[datetime | None, datetime | None]
"""The start and end of a trial."""


@contextmanager
def quiet_optuna() -> Generator[None]:
    """Silences Optuna's notes about new studies, and its warnings about arguments that were experimental once."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def study_of(
    spec: HyperparameterSpec,
    *,
    trials: Sequence[TrialResult],
    name: str,
    jobs: Mapping[int, str],
    spans: Mapping[int, Span],
) -> optuna.Study:
    """Returns a study in memory with the trials of a search.

    Args:
        spec: the search.
        trials: its trials; those outside of its space are left out.
        name: the study's name.
        jobs: the names of the trials' jobs by the trials' numbers, for the user attribute ``job``.
        spans: the start and end of trials by their numbers; those that are not known are left out.

    Returns:
        The study. The number of a trial is that of the search less one, if none is left out: Optuna counts from 0. Its
        intermediate values are the finite measurements by step. The values of a DISCRETE are categories, so that plots
        show each.
    """
    # Imported on use: Optuna takes a second, and only searches need it.
    import optuna

    distributions = {param.parameter_name: _distribution(param) for param in spec.params}
    with quiet_optuna():
        study = optuna.create_study(study_name=name, direction="maximize" if spec.goal is Goal.MAXIMIZE else "minimize")
    for trial in trials:
        if contains(spec, parameters=trial.parameters):
            study.add_trial(
                _frozen(
                    trial,
                    distributions=distributions,
                    job=jobs.get(trial.number),
                    span=spans.get(trial.number, (None, None)),
                )
            )
    return study


def _distribution(param: ParameterSpec) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if param.type is ParameterType.CATEGORICAL:
        return CategoricalDistribution(param.categorical_values)
    if param.type is ParameterType.DISCRETE:
        return CategoricalDistribution(tuple(discrete_values(param)))
    assert param.min_value is not None
    assert param.max_value is not None
    log = (
        param.scale_type is ScaleType.UNIT_LOG_SCALE
    )  # Optuna has no reverse one, and would show that on a linear axis
    if param.type is ParameterType.INTEGER:
        return IntDistribution(int(param.min_value), int(param.max_value), log=log)
    return FloatDistribution(param.min_value, param.max_value, log=log)


def _frozen(
    trial: TrialResult, *, distributions: dict[str, BaseDistribution], job: str | None, span: Span
) -> optuna.trial.FrozenTrial:
    from optuna.trial import TrialState as State
    from optuna.trial import create_trial

    states = {
        TrialState.RUNNING: State.RUNNING,
        TrialState.COMPLETED: State.COMPLETE,
        TrialState.STOPPED: State.PRUNED,
        TrialState.FAILED: State.FAIL,
        TrialState.LOST: State.FAIL,
    }
    state = states[trial.state]
    if state is State.COMPLETE and trial.objective is None:
        state = State.FAIL
    frozen = create_trial(
        state=state,
        value=trial.objective if state in (State.COMPLETE, State.PRUNED) else None,
        params={name: trial.parameters[name] for name in distributions},
        distributions=distributions,
        user_attrs={} if job is None else {JOB_ATTRIBUTE: job},
        intermediate_values={one.step: one.value for one in trial.measurements if math.isfinite(one.value)},
    )
    started, ended = span
    frozen.datetime_start = started or frozen.datetime_start
    frozen.datetime_complete = ended or frozen.datetime_complete
    return frozen
