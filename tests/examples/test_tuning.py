"""The example of a search: its configuration, its script, and what twenty trials on Fashion-MNIST find."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

from lockstep.data.sources.fashion_mnist import DEBIAN_FOLDER
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.hyperparameters import HyperparameterSpec
from lockstep.jobs.tuning import Measurement, TrialResult, TrialState, arguments_of, best_first, propose
from lockstep.topology import TENSORBOARD_DIR

FOLDER = Path(__file__).parents[2] / "examples" / "tuning"
MARGIN = 0.03
"""By how much the accuracy on the test images of the best of 20 trials is above that of the script's defaults."""


def search() -> tuple[HyperparameterSpec, int]:
    asked = parse_training_input(yaml.safe_load((FOLDER / "config.yaml").read_text()), source="config.yaml")
    assert asked.hyperparameters is not None
    return asked.hyperparameters, asked.lockstep.tuning.seed


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tuning_example", FOLDER / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the script as a trial does, and returns the curve of its metric and its accuracy on the test images."""
    runs: list[Path] = []

    def run_script(*arguments: str) -> tuple[Sequence[tuple[int, float]], float]:
        runs.append(tmp_path / f"{len(runs)}")
        monkeypatch.setenv(TENSORBOARD_DIR, str(runs[-1]))
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        script.train(script.parse_arguments())
        found = re.search(r"^validation accuracy \S+, test accuracy (\S+)$", capsys.readouterr().out, re.MULTILINE)
        assert found is not None
        shown = EventMultiplexer().AddRunsFromDirectory(str(runs[-1])).Reload()
        run_name, _, tag = search()[0].hyperparameter_metric_tag.partition("/")
        events = shown.Tensors(run_name, tag)
        return [(event.step, float(event.tensor_proto.float_val[0])) for event in events], float(found[1])

    return run_script


def test_the_script_takes_the_flags_that_the_configuration_searches(script: ModuleType, monkeypatch) -> None:
    spec, seed = search()
    proposed = propose(spec, trials=[], seed=seed)
    assert proposed is not None
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments_of(proposed)])
    arguments = script.parse_arguments()
    assert {name: getattr(arguments, name.replace("-", "_")) for name in proposed} == proposed


@pytest.mark.heavy
def test_a_trial_writes_the_metric_that_the_configuration_names(run) -> None:
    curve, accuracy = run("--data", "digits", "--epochs", "3", "--learning-rate", "0.01", "--batch-size", "16")
    assert [step for step, _ in curve] == [0, 1, 2]
    assert curve[-1][1] > 0.7
    assert accuracy > 0.7


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="without the package dataset-fashion-mnist")
def test_a_search_of_twenty_trials_beats_the_defaults_on_fashion_mnist(run) -> None:
    spec, seed = search()
    _, default = run()
    trials: list[TrialResult] = []
    accuracies: dict[int, float] = {}
    for number in range(1, spec.max_trials + 1):
        parameters = propose(spec, trials=trials, seed=seed)
        assert parameters is not None
        curve, accuracies[number] = run(*arguments_of(parameters))
        measurements = tuple(Measurement(step=step, value=value, time_s=number + step) for step, value in curve)
        trials.append(
            TrialResult(number=number, parameters=parameters, state=TrialState.COMPLETED, measurements=measurements)
        )
    best = best_first(spec.goal, trials=trials)[0]
    print(f"defaults {default:.4f}; best trial {best.number}: {accuracies[best.number]:.4f} with {best.parameters}")
    assert accuracies[best.number] >= default + MARGIN
