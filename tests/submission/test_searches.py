"""`lockstep.tune` through a service, to the end of the search: a function, its trials, and what Python sees of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.testing.served import Served

WAIT_S = 240.0

CODE = """
import lockstep

def objective(x, units, *, base):
    print("trying", x, units, flush=True)
    if x > 0.9:
        raise ValueError("too large")
    for step in range(3):
        lockstep.report(base + x * step / 3, step=step)
    return base + x + units / 100
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "search_code"
    folder.mkdir()
    (folder / "search_of_mine.py").write_text(CODE)
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("search_of_mine")
    sys.modules.pop("search_of_mine")


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_a_function_is_tuned_by_a_service(service: Served, code: Any) -> None:
    space = {"x": (0.0, 1.0), "units": [1, 2]}
    search = lockstep.tune(
        code.objective, space, max_trials=5, max_parallel_trials=2, kwargs={"base": 10}, name="squares", seed=3
    )
    search.wait(WAIT_S, show=False)
    assert search.state == "SUCCEEDED"
    table = search.trials()
    assert list(table["number"]) == [1, 2, 3, 4, 5]
    assert list(table["job"]) == [f"squares.{number}" for number in range(1, 6)]
    ended = table[table["params_x"] <= 0.9]
    assert len(ended) >= 3
    assert set(ended["state"]) == {"SUCCEEDED"}
    assert set(table[table["params_x"] > 0.9]["state"]) <= {"FAILED"}
    wanted = 10 + ended["params_x"] + ended["params_units"] / 100
    assert list(ended["value"]) == pytest.approx(list(wanted), rel=1e-12)
    assert set(ended["step"]) == {3}
    best = search.best_trial
    assert best is not None
    assert best.objective == max(ended["value"])
    assert [step for step, _ in best.measurements] == [0, 1, 2, 3]
    trial = lockstep.Job(best.job)
    assert trial.result == best.objective
    assert [entry["textPayload"] for entry in trial.logs("textPayload:trying")] == [
        f"trying {best.parameters['x']} {best.parameters['units']}"
    ]
    assert search.study().best_value == best.objective
    output = search.resource["trainingOutput"]
    assert output["isHyperparameterTuningJob"] is True
    assert output["trials"][0]["trialId"] == str(best.number), "the best one first"
