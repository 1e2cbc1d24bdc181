"""Two real processes that meet on the loopback interface."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
from tests.strategies import two_workers

SCRIPT = Path(two_workers.__file__)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(arguments, *, num_devices=1, task=None, cluster=None):
    env = {name: value for name, value in os.environ.items() if name not in ("TF_CONFIG", "NPROC")}
    env.update({"JAX_NUM_CPU_DEVICES": str(num_devices), "NPROC": "8"})
    if task is not None:
        env["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def start_pair(arguments_of, **options):
    cluster = {"chief": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}"]}
    tasks = [{"type": "chief", "index": 0}, {"type": "worker", "index": 0}]
    return [start(arguments_of(rank), task=task, cluster=cluster, **options) for rank, task in enumerate(tasks)]


def finish(processes, timeout_s=100):
    try:
        return [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_two_processes_give_the_numbers_of_one(tmp_path):
    # Of 66 rows on four devices: batches of 18 are held whole by each process and laid over two groups of devices; the
    # last one, of 12, is shared out.
    pair = start_pair(lambda rank: [SCRIPT, 18, tmp_path / f"{rank}.npz"], num_devices=2)
    two_workers.main(18, str(tmp_path / "alone.npz"))
    outputs = finish(pair)
    assert [process.returncode for process in pair] == [0, 0], "\n".join(outputs)
    assert "2 processes with 4 x cpu" in outputs[0]
    assert outputs[0].splitlines()[-1].endswith("True")
    assert outputs[1].splitlines()[-1].endswith("False")
    assert (tmp_path / "0.npz.checkpoints").exists()
    assert not (tmp_path / "1.npz.checkpoints").exists()
    expected = np.load(tmp_path / "alone.npz")
    for rank in range(2):
        found = np.load(tmp_path / f"{rank}.npz")
        assert set(found.files) == set(expected.files)
        for name in expected.files:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=2e-6, err_msg=name)


def test_processes_with_different_seeds_are_told_so():
    code = (
        "import os, json, keras; from lockstep.strategies import from_env;"
        "keras.utils.set_random_seed(json.loads(os.environ['TF_CONFIG'])['task']['type'] == 'chief'); from_env()"
    )
    pair = start_pair(lambda rank: ["-c", code])
    outputs = finish(pair)
    assert all("the processes were given different random seeds; received [1, 0]" in output for output in outputs)
    assert all(process.returncode for process in pair)


def test_the_chief_s_seed_is_everyone_s_where_nobody_set_one():
    code = (
        "from lockstep.strategies import from_env; strategy = from_env(); import keras\n"
        "with strategy.scope(): print(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).get_weights()[0][0])"
    )
    outputs = finish(start_pair(lambda rank: ["-c", code]))
    values = [output.splitlines()[-1] for output in outputs]
    assert values[0] == values[1]
    assert float(values[0].strip("[]"))
