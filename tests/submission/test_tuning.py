"""`lockstep.tune`: which job it submits, and the trials that Python sees."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import optuna
import pytest

import lockstep
from lockstep.client import Client, Job
from lockstep.client.trials import Trial
from lockstep.errors import ConfigError, InvalidInputError, WrongStateError
from lockstep.testing.served import Served

SPACE = {"rate": (1e-4, 1e-1, "log"), "units": [16, 32]}
PARAMS = [
    {
        "parameterName": "rate",
        "type": "DOUBLE",
        "minValue": 1e-4,
        "maxValue": 0.1,
        "scaleType": "UNIT_LOG_SCALE",
    },
    {"parameterName": "units", "type": "DISCRETE", "discreteValues": [16.0, 32.0]},
]


def objective(rate: float, units: int, *, data: str = "d") -> float:
    return rate * units


def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text("print('training')\n")
    return path


def test_a_search_is_a_job_of_the_contract_s_form(service: Served, tmp_path: Path) -> None:
    job = lockstep.tune(
        script(tmp_path),
        SPACE,
        max_trials=12,
        max_parallel_trials=3,
        metric="validation/epoch_accuracy",
        early_stopping="ASHA",
        seed=5,
        name="digits",
        args=["--epochs", 3],
        min_measurements=2,
        config={"trainingInput": {"scheduling": {"priority": 3}}, "labels": {"team": "vision"}},
    )
    asked = job.resource["trainingInput"]
    assert job.name == "digits"
    assert job.resource["labels"] == {"team": "vision"}
    assert asked["hyperparameters"] == {
        "params": PARAMS,
        "maxTrials": 12,
        "maxParallelTrials": 3,
        "hyperparameterMetricTag": "validation/epoch_accuracy",
        "enableTrialEarlyStopping": True,
    }
    assert asked["lockstep"]["tuning"] == {"seed": 5, "earlyStopping": "ASHA", "minMeasurements": 2}
    assert asked["args"] == ["--epochs", "3"]
    assert asked["scheduling"] == {"priority": 3}


def test_a_function_s_arguments_are_checked_before_anything_is_sent(service: Served, tmp_path: Path) -> None:
    for space, options, message in (
        ({"rate": (0.1, 0.2)}, {}, "does not take these arguments: missing a required argument: 'units'"),
        ({**SPACE, "depth": (1, 2)}, {}, "does not take these arguments: got an unexpected keyword argument 'depth'"),
        (SPACE, {"kwargs": {"rate": 0.1}}, r"kwargs has parameters of the search; received \['rate'\]; leave them out"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            lockstep.tune(objective, space, max_trials=2, name="f", **options)
    with pytest.raises(ConfigError, match=r"maxTrials; received 0; allowed: greater than or equal to 1"):
        lockstep.tune(objective, SPACE, max_trials=0, name="f")
    assert service.http.get("/v1/projects/local/jobs").json().get("jobs", []) == []
    shown = lockstep.tune(objective, SPACE, max_trials=2, name="f", kwargs={"data": "e"}, dry_run=True)
    assert isinstance(shown, dict)


class SearchWithTrials:
    """What `Job` asks of a client, with the answers of a service that has run a search."""

    project = "local"
    url = "http://127.0.0.1:1"

    def __init__(self, trials: Sequence[Mapping[str, Any]], *, search: Mapping[str, Any]) -> None:
        self._trials, self._search = trials, search

    def find_again(self) -> None:
        pass

    def job(self, job_id: str) -> dict[str, Any]:
        return {"jobId": job_id, "state": "RUNNING", "trainingInput": dict(self._search)}

    def trials(self, job_id: str) -> list[dict[str, Any]]:
        return [dict(trial) for trial in self._trials]


def answer(number: int, state: str, rate: float, values: Sequence[float] = (), **more: Any) -> dict[str, Any]:
    points = [{"trainingStep": str(step), "objectiveValue": value} for step, value in enumerate(values)]
    return {
        "trialId": str(number),
        "jobId": f"digits.{number}",
        "hyperparameters": {"rate": str(rate), "units": "16"},
        "state": state,
        "allMetrics": points,
        **({"finalMetric": points[-1]} if points else {}),
        **more,
    }


def made(goal: str = "MAXIMIZE") -> Job:
    trials = [
        answer(4, "RUNNING", 0.04, [0.99], startTime="2026-01-02T03:05:00Z", costUsd=None),
        answer(3, "CANCELLED", 0.03, [0.2], isTrialStoppedEarly=True, costUsd="0.10"),
        answer(
            2,
            "SUCCEEDED",
            0.02,
            [0.5, 0.9],
            startTime="2026-01-02T03:04:05.5Z",
            endTime="2026-01-02T03:06:05.5Z",
            costUsd="0.25",
        ),
        answer(1, "FAILED", 0.01, [0.95], costUsd="0.00"),
        answer(5, "QUEUED", 0.05),
    ]
    search = {"hyperparameters": {"params": PARAMS, "goal": goal, "maxTrials": 9}}
    return Job("digits", client=cast("Client", SearchWithTrials(trials, search=search)))


def test_the_trials_of_a_search_are_a_table() -> None:
    table = made().trials()
    assert list(table.columns) == [
        "number",
        "job",
        "state",
        "value",
        "step",
        "params_rate",
        "params_units",
        "stopped_early",
        "start_time",
        "end_time",
        "cost_usd",
    ]
    assert list(table["number"]) == [1, 2, 3, 4, 5]
    assert list(table["state"]) == ["FAILED", "SUCCEEDED", "CANCELLED", "RUNNING", "QUEUED"]
    assert list(table["value"])[:4] == [0.95, 0.9, 0.2, 0.99]
    assert math.isnan(table["value"][4])
    assert list(table["step"].dropna()) == [0, 1, 0, 0]
    assert list(table["params_units"]) == [16] * 5
    assert table["start_time"][1].to_pydatetime() == datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)
    assert table["cost_usd"].sum() == pytest.approx(0.35)
    empty = Job("e", client=cast("Client", SearchWithTrials([], search={"hyperparameters": {"params": PARAMS}})))
    assert list(empty.trials().columns) == list(table.columns)
    assert empty.best_trial is None


@pytest.mark.parametrize(("goal", "number"), [("MAXIMIZE", 2), ("MINIMIZE", 3)])
def test_the_best_trial_is_one_that_ended_with_a_value(goal: str, number: int) -> None:
    best = made(goal).best_trial
    assert isinstance(best, Trial)
    assert (best.number, best.job) == (number, f"digits.{number}")
    assert best.parameters == {"rate": number / 100, "units": 16}
    assert best.cost_usd == Decimal("0.25" if number == 2 else "0.10")


def test_optuna_s_plots_show_a_search() -> None:
    study = made().study()
    states = optuna.trial.TrialState
    assert [trial.state for trial in study.trials] == [
        states.FAIL,
        states.COMPLETE,
        states.PRUNED,
        states.RUNNING,
        states.RUNNING,
    ]
    assert study.study_name == "digits"
    assert study.best_trial.number == 1
    assert study.best_params == {"rate": 0.02, "units": 16}
    assert study.trials[1].intermediate_values == {0: 0.5, 1: 0.9}
    assert study.trials[1].duration is not None
    assert study.trials[1].duration.total_seconds() == 120
    assert study.trials[1].user_attrs == {"job": "digits.2"}
    assert len(study.trials_dataframe()) == 5
    warnings.simplefilter("ignore")  # about their interface, and about plots of one point
    for plot in ("plot_optimization_history", "plot_intermediate_values", "plot_slice"):
        assert getattr(optuna.visualization.matplotlib, plot)(study) is not None


def test_a_job_that_is_no_search_has_no_trials() -> None:
    job = Job("plain", client=cast("Client", SearchWithTrials([], search={})))
    with pytest.raises(WrongStateError, match=r"job plain is no search; lockstep\.tune submits one"):
        job.trials()
