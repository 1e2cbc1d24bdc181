"""Proposes the parameters of the next trial.

Random search and Bayesian optimization are Optuna's: `TPESampler`, multivariate and with a constant liar (Bergstra et
al., 2011; Falkner et al., 2018). Trials enter a study in memory that is made anew for each proposal, so a proposal
depends on its arguments only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from lockstep.jobs.input.hyperparameters import (
    Algorithm,
    Goal,
    HyperparameterSpec,
    ParameterSpec,
    ParameterType,
    ScaleType,
)
from lockstep.jobs.tuning.space import contains, discrete_values, num_points, point
from lockstep.jobs.tuning.studies import quiet_optuna
from lockstep.jobs.tuning.trials import TrialResult, TrialState, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

NUM_STARTUP_TRIALS: Final = 10
"""The number of ended trials from which on proposals follow a model; before, they are random."""

_NUM_TRIES: Final = 16
"""How often another point is drawn if the proposed one was tried already."""

Point = tuple[Value, ...]
"""The values of all parameters, in the order of the search."""


def propose(spec: HyperparameterSpec, *, trials: Sequence[TrialResult], seed: int) -> Mapping[str, Value] | None:
    """Returns the parameters of the next trial of a search.

    No point is proposed twice, with one exception: the point of a trial that was lost is proposed again first. Failed
    trials count as worse than all others. Running trials are taken into account, so parallel trials differ.

    Args:
        spec: the search.
        trials: all earlier trials in the order of their creation, those of resumed searches first.
        seed: the seed of the search, 0 or more.

    Returns:
        A value for each parameter, by name in the order of the search; None if every point of the space was tried.
        Equal arguments give equal results.
    """
    names = [param.parameter_name for param in spec.params]
    # Points of a resumed search may be outside of the space, if that has changed since.
    known = [trial for trial in trials if contains(spec, parameters=trial.parameters)]
    tried = {_point(trial, names) for trial in known if trial.state is not TrialState.LOST}
    lost = next((trial for trial in known if _point(trial, names) not in tried), None)
    if lost is not None:
        return {name: lost.parameters[name] for name in names}
    size = num_points(spec)
    if size is not None and len(tried) >= size:
        return None
    if spec.algorithm is Algorithm.GRID_SEARCH:
        return _untried(spec, tried=tried, start=0)
    generator = random.Random(f"{seed} {len(trials)}")  # noqa: S311 - a search has no secrets
    proposed = _sample(spec, trials=known, seed=generator.randrange(2**31))
    if size is None:
        return proposed
    for _ in range(_NUM_TRIES):
        if tuple(proposed.values()) not in tried:
            return proposed
        proposed = _sample(spec, trials=known, seed=generator.randrange(2**31))
    return _untried(spec, tried=tried, start=generator.randrange(size))


def _point(trial: TrialResult, names: Sequence[str]) -> Point:
    return tuple(trial.parameters[name] for name in names)


def _untried(spec: HyperparameterSpec, *, tried: Collection[Point], start: int) -> dict[str, Value]:
    """Returns the first point from an index on that was not tried; there is one."""
    size = num_points(spec)
    assert size is not None
    candidates = (point(spec, index=(start + offset) % size) for offset in range(size))
    return next(candidate for candidate in candidates if tuple(candidate.values()) not in tried)


def _sample(spec: HyperparameterSpec, *, trials: Sequence[TrialResult], seed: int) -> dict[str, Value]:
    # Imported on use: Optuna takes a second, and only searches need it.
    import optuna

    dimensions = [_dimension(param) for param in spec.params]
    distributions = {dimension.name: dimension.distribution for dimension in dimensions}
    sampler: BaseSampler
    with quiet_optuna():
        if spec.algorithm is Algorithm.RANDOM_SEARCH:
            sampler = optuna.samplers.RandomSampler(seed=seed)
        else:
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=NUM_STARTUP_TRIALS, multivariate=True, constant_liar=True, seed=seed
            )
        direction = "maximize" if spec.goal is Goal.MAXIMIZE else "minimize"
        study = optuna.create_study(sampler=sampler, direction=direction)
        study.add_trials(
            [_frozen(trial, dimensions) for trial in trials if trial.state is not TrialState.LOST]
            if spec.algorithm is Algorithm.UNSPECIFIED
            else []
        )
        asked = study.ask(fixed_distributions=distributions)
    return {dimension.name: dimension.to_value(asked.params[dimension.name]) for dimension in dimensions}


@final
@dataclass(frozen=True, kw_only=True)
class _Dimension:
    """A parameter in the coordinates in which Optuna sees it."""

    name: str
    distribution: BaseDistribution
    to_value: Callable[[Any], Value]
    to_coordinate: Callable[[Any], Any]


def _dimension(param: ParameterSpec) -> _Dimension:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    name = param.parameter_name
    if param.type is ParameterType.CATEGORICAL:
        choices = CategoricalDistribution(param.categorical_values)
        return _Dimension(name=name, distribution=choices, to_value=str, to_coordinate=str)
    if param.type is ParameterType.DISCRETE:
        # By its place in the list: each value is equally likely, and neighbours are near each other.
        values = discrete_values(param)
        places = IntDistribution(0, len(values) - 1)
        return _Dimension(name=name, distribution=places, to_value=values.__getitem__, to_coordinate=values.index)
    assert param.min_value is not None
    assert param.max_value is not None
    log = param.scale_type in (ScaleType.UNIT_LOG_SCALE, ScaleType.UNIT_REVERSE_LOG_SCALE)
    mirrored = param.scale_type is ScaleType.UNIT_REVERSE_LOG_SCALE
    low, high = param.min_value, param.max_value
    if param.type is ParameterType.INTEGER:
        whole = IntDistribution(int(low), int(high), log=log)
        mirror = _mirror(int(low), int(high)) if mirrored else int
        return _Dimension(name=name, distribution=whole, to_value=mirror, to_coordinate=mirror)
    real = FloatDistribution(low, high, log=log)
    mirror = _mirror(low, high) if mirrored else float
    return _Dimension(name=name, distribution=real, to_value=mirror, to_coordinate=mirror)


def _mirror(low: float, high: float) -> Callable[[float], float]:
    """Returns the map that swaps both ends of a range, with results that rounding does not carry out of it."""
    return lambda value: min(max(low + (high - value), low), high)


def _frozen(trial: TrialResult, dimensions: Sequence[_Dimension]) -> FrozenTrial:
    """Returns a trial as Optuna knows it.

    Failed trials become pruned ones without a value, which Optuna ranks last: it ignores failed ones, and would propose
    their neighbours again.
    """
    from optuna.trial import TrialState as State
    from optuna.trial import create_trial

    parameters = {d.name: d.to_coordinate(trial.parameters[d.name]) for d in dimensions}
    distributions = {d.name: d.distribution for d in dimensions}
    objective = trial.objective
    state, value, curve = State.RUNNING, None, dict[int, float]()
    if trial.state is TrialState.COMPLETED and objective is not None:
        state, value = State.COMPLETE, objective
    elif trial.state is not TrialState.RUNNING:
        state = State.PRUNED
        if trial.state is TrialState.STOPPED:
            curve = {m.step: m.value for m in trial.measurements if math.isfinite(m.value)}
    return create_trial(
        state=state,
        value=value,
        params=parameters,
        distributions=distributions,
        intermediate_values=curve,
    )
