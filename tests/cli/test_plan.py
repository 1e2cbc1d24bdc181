"""``lockstep plan`` from the command line to the report, each in processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest
import typer
from tests.cli.validating import validated
from tests.tpu_compiler import needs_tpu_compiler

from lockstep.cli.app import app
from lockstep.errors import LockstepError

TRAINS = """
    import argparse, pathlib
    import keras, numpy as np
    import lockstep

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows-per-replica", type=int, required=True)
    asked = parser.parse_args()
    strategy = lockstep.strategies.from_env()
    print("replicas:", strategy.num_replicas_in_sync)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(3)]
        )
        model.compile("adam", "mse", metrics=["mae"])
    batch_size = asked.rows_per_replica * strategy.num_replicas_in_sync
    try:
        model.fit(np.zeros((200, 8, 8, 1)), np.zeros((200, 3)), batch_size=batch_size, verbose=0)
    finally:
        pathlib.Path("after").touch()
"""


def plan(folder, *arguments, script=None, **variables):
    """Runs the command in a folder, with a script in it; returns the finished process."""
    if script is not None:
        (folder / "train.py").write_text(textwrap.dedent(script))
    command = [sys.executable, "-m", "lockstep.cli.main", "plan", *arguments]
    env = {**os.environ, "LOCKSTEP_HOME": str(folder / "home"), **variables}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.heavy
def test_a_script_is_planned_with_its_own_arguments_on_several_hosts(tmp_path):
    needs_tpu_compiler()
    # A shell that is part of some job: the plan is made in one process all the same.
    job = {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'}
    flags = ("--on", "v5e:4x4", "--json", "--usd-per-chip-hour", "1.2")
    done = plan(tmp_path, "train.py", *flags, "--", "--rows-per-replica", "2", script=TRAINS, **job)
    assert done.returncode == 0, done.stderr
    found = validated("plan", done.stdout)
    assert "replicas: 16" in done.stderr
    assert (found["fits"], found["num_hosts"], found["num_devices"]) == (True, 4, 16)
    measurement = found["measurement"]
    assert (measurement["num_rows"], measurement["num_steps"], measurement["num_devices"]) == (32, 7, 16)
    assert [entry["kind"] for entry in measurement["work"]["collectives"]] == ["all-reduce"]
    assert found["epoch_s"] == pytest.approx(7 * found["step_s"])
    assert found["cost"]["usd_per_hour"] == "19.2"
    assert not (tmp_path / "after").exists(), "nothing happens after the first step"


@pytest.mark.heavy
def test_what_does_not_fit_is_told_to_scripts_too(tmp_path):
    needs_tpu_compiler()
    script = """
        import keras, numpy as np
        from lockstep.strategies import OneDeviceStrategy

        with OneDeviceStrategy().scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2**17, "tanh"), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(np.zeros((2**16, 8)), np.zeros((2**16, 1)), batch_size=2**16, verbose=0)
    """
    done = plan(tmp_path, "train.py", "--on", "v5e:1x1", script=script)
    assert done.returncode == 1, done.stderr
    assert "memory of one chip: it DOES NOT FIT: " in done.stdout
    assert "try a smaller batch" in done.stdout


@pytest.mark.heavy
def test_cpus_stand_in_where_there_is_no_compiler_for_tpus(tmp_path):
    done = plan(tmp_path, "train.py", "--on=cpu:2", "--", "--rows-per-replica=5", script=TRAINS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fit of sequential: compiled for 2 virtual CPU devices, not run")
    assert "  global batch of 10 rows over 2 devices; 20 steps an epoch" in done.stdout
    assert "all-reduce" in done.stdout


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('I train nothing')", "ended before its first training step"),
        ("raise SystemExit(3)", "failed with exit code 3 before its first"),
        (
            "from lockstep.strategies import MirroredStrategy\nMirroredStrategy(['gpu:0'])",
            "there is no such device; received 'gpu:0'",
        ),
    ],
)
@pytest.mark.heavy
def test_a_script_that_does_not_come_to_a_step(tmp_path, script, message):
    done = plan(tmp_path, "train.py", "--on", "cpu:2", script=script)
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("lockstep: error: ")]
    assert message in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.py"], "there is no such script; received 'absent.py'"),
        (["train.py", "--on", "v5e:5x5"], "allowed: 1x1, 2x2, 2x4"),
        (["train.py", "--usd-per-chip-hour", "cheap"], "allowed: US dollars"),
        (["train.py", "--usd-per-chip-hour", "-1"], "allowed: US dollars"),
        (["train.py", "--region", "mars-north1"], "--region; received 'mars-north1'"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    command = typer.main.get_command(app)
    with pytest.raises(LockstepError, match=re.escape(message)):
        command.main(["plan", *arguments], standalone_mode=False)


def test_a_script_that_takes_too_long_is_given_up(tmp_path):
    done = plan(tmp_path, "train.py", "--on", "cpu:1", "--timeout-s", "1", script="import time\ntime.sleep(60)")
    assert done.returncode == 69
    assert "did not reach and compile its first training step in time; received '1.0 s'" in done.stderr
