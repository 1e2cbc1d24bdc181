"""An evaluator in a process of its own beside a training of several processes, killed once and started again."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from tests.strategies.job_processes import Process, job, loopback_cluster
from tests.training import evaluated_run

from lockstep.testing.script_cluster import ScriptCluster

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

SCRIPT = Path(evaluated_run.__file__)
PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"
SECONDS = 240
NUM_EPOCHS = 6
LAST_STEP = 4 * NUM_EPOCHS
LINE = re.compile(r"^checkpoint of step (\d+): loss ([\d.e+-]+)$", re.MULTILINE)


def check(folder, *, texts, trained):
    """Checks what the lives of an evaluator have printed and left, beside what the training printed."""
    evaluated = [(int(step), float(loss)) for text in texts for step, loss in LINE.findall(text)]
    steps = [step for step, _ in evaluated]
    assert steps == sorted(set(steps)), "no step twice"
    assert steps[-1] == LAST_STEP, "the last one too"
    assert f"the evaluator ends after {len(steps)} evaluations" in texts[-1]
    losses = re.findall(r"trained: loss ([\d.e+-]+)", trained)
    assert losses
    assert evaluated[-1][1] == pytest.approx(float(losses[0]), rel=2e-3)
    results = json.loads((folder / "checkpoints" / "evaluations.json").read_text())
    assert [int(step) for step in results] == steps
    best = min(results, key=lambda step: results[step]["loss"])
    data = evaluated_run.make_data()
    model = keras.saving.load_model(folder / "best" / "model.keras")
    assert model.evaluate(*data, verbose=0) == pytest.approx(results[best]["loss"], rel=1e-4)
    assert list((folder / "board" / "validation").iterdir())


@pytest.mark.parametrize("name", ["multi_worker", "sharded"])
def test_beside_processes_that_train_in_step(tmp_path, name):
    cluster = loopback_cluster(2)
    arguments = [SCRIPT, name, tmp_path, NUM_EPOCHS]
    env = {"JAX_NUM_CPU_DEVICES": "1", "LOCKSTEP_MEETING_TIMEOUT_S": "90"}
    task = json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}})

    def start(life):
        return Process(arguments, output=tmp_path / f"evaluator-{life}.log", env={**env, "TF_CONFIG": task})

    with job(tmp_path, arguments, num_processes=2, cluster=cluster, env=env) as processes:
        lives = [start(0)]
        try:
            lives[0].wait_for("checkpoint of step ")
            lives[0].process.send_signal(signal.SIGKILL)
            lives[0].end()
            lives.append(start(1))
            (tmp_path / "go_on").touch()
            for process in processes.values():
                assert process.end(SECONDS) == 0, process.text
            assert lives[1].end(SECONDS) == 0, lives[1].text
        finally:
            for life in lives:
                life.process.kill()
                life.process.wait()
        trained = processes[0].text
    check(tmp_path, texts=[life.text for life in lives], trained=trained)


def test_beside_parameter_servers(tmp_path):
    arguments = [SCRIPT, "parameter_server", tmp_path, NUM_EPOCHS]
    with ScriptCluster(arguments, folder=tmp_path, num_workers=1, num_servers=1, evaluator=True) as cluster:
        cluster.wait_for("checkpoint of step ", "evaluator")
        (tmp_path / "go_on").touch()
        assert cluster.end(timeout_s=SECONDS) == 0
        cluster.wait_until(lambda: "evaluator 0" in cluster.codes, timeout_s=SECONDS)
        assert cluster.codes["evaluator 0"] == 0, cluster.text("evaluator")
        texts, trained = [cluster.text("evaluator")], cluster.text("chief")
    check(tmp_path, texts=texts, trained=trained)


def test_the_examples_of_the_page_run_beside_each_other(tmp_path):
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    training, evaluation = examples[0], next(one for one in examples if "SidecarEvaluator" in one)
    started = []
    for number, example in enumerate((evaluation, training)):
        (tmp_path / f"{number}.py").write_text(example)
        command = [sys.executable, f"{number}.py"]
        started.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True))
    try:
        texts = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], texts
    assert re.search(r"^checkpoint of step 96: loss [\d.]+$", texts[0], flags=re.MULTILINE), texts[0]
    assert "checkpoints are evaluated" in texts[0]
    assert (tmp_path / "best_of_evaluator" / "model.keras").exists()
