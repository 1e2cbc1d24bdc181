"""Real processes that train together on the loopback interface."""

import time
from pathlib import Path

import numpy as np
import pytest
from tests.strategies import training_process, two_workers
from tests.strategies.job_processes import job

from lockstep.errors import PeerLostError

SCRIPT = Path(two_workers.__file__)
ENV = {"JAX_NUM_CPU_DEVICES": "1", "NPROC": "8", "LOCKSTEP_MEETING_TIMEOUT_S": "90", "LOCKSTEP_PEER_TIMEOUT_S": "15"}
TIMEOUT_S = 3.0
# gRPC asks a proxy for every address that no variable excepts: nobody answers at this one.
PROXY = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "grpc_proxy": "http://127.0.0.1:9"}


def train_alone(tmp_path, batch_size):
    two_workers.main(batch_size, str(tmp_path / "alone.npz"))
    return np.load(tmp_path / "alone.npz")


def assert_numbers_of_one(found, expected):
    assert set(found.files) == set(expected.files)
    for name in expected.files:
        one, two = found[name].astype(np.float64), expected[name].astype(np.float64)
        assert np.linalg.norm(one - two) <= 1e-5 * np.linalg.norm(two) + 1e-7, name


@pytest.mark.parametrize(
    ("num_processes", "num_devices", "batch_size"),
    [
        # Of 66 rows on four devices: batches of 18 are held whole by each process and laid over two groups of devices;
        # the last one, of 12, is shared out.
        (2, 2, 18),
        pytest.param(3, 1, 18, marks=pytest.mark.heavy),
        pytest.param(3, 2, 16, marks=pytest.mark.heavy),
        pytest.param(4, 1, 18, marks=pytest.mark.heavy),
    ],
)
def test_several_processes_give_the_numbers_of_one(tmp_path, num_processes, num_devices, batch_size):
    env = {**ENV, **PROXY, "JAX_NUM_CPU_DEVICES": str(num_devices), "FOLDER": str(tmp_path)}
    with job(tmp_path, [SCRIPT, batch_size], num_processes=num_processes, env=env) as processes:
        expected = train_alone(tmp_path, batch_size)
        for rank, process in processes.items():
            assert process.end() == 0, process.text
            assert process.last_line.endswith(str(rank == 0))
            assert (tmp_path / f"{rank}.npz.checkpoints").exists() == (rank == 0)
            assert_numbers_of_one(np.load(tmp_path / f"{rank}.npz"), expected)
        assert f"{num_processes} processes with {num_processes * num_devices} x cpu" in processes[0].text


def train_until(folder, what, *, victim, num_processes=2):
    env = {**ENV, "LOCKSTEP_PEER_TIMEOUT_S": str(TIMEOUT_S), "VICTIM": str(victim)}
    return job(folder, [training_process.__file__, what], num_processes=num_processes, env=env)


@pytest.mark.parametrize(
    ("num_processes", "what", "victim", "happened"),
    [
        (2, "kill", 1, "died: its connection ended without a goodbye"),
        (3, "kill", 1, "died: its connection ended without a goodbye"),
        (3, "kill", 0, "died: its connection ended without a goodbye"),
        (4, "stop", 1, "hangs or cannot be reached"),
        (3, "stop", 0, "hangs or cannot be reached"),
        (3, "leave", 1, "has ended its program, but others start fit"),
    ],
)
@pytest.mark.heavy
def test_who_is_lost_in_training_is_the_last_thing_that_the_others_say(tmp_path, num_processes, what, victim, happened):
    with train_until(tmp_path, what, victim=victim, num_processes=num_processes) as processes:
        for process in processes.values():
            process.wait_for("training")
        began_at = time.monotonic()
        for rank, process in processes.items():
            if rank != victim:
                assert process.end() == PeerLostError.exit_code, process.text
                assert f"(rank {victim}, 127.0.0.1:" in process.last_line
                assert happened in process.last_line
        assert time.monotonic() - began_at < TIMEOUT_S + 2


@pytest.mark.parametrize(
    ("what", "difference"),
    [
        ("another model", "the processes differ at variable sequential/dense/kernel: chief 0"),
        ("another optimizer", "the processes differ at variable sgd/learning_rate"),
        ("other data", "the processes differ at the first batch: chief 0"),
        ("another method", "starts fit and worker 0"),
    ],
)
@pytest.mark.heavy
def test_processes_that_do_not_do_the_same_are_told_so(tmp_path, what, difference):
    with train_until(tmp_path, what, victim=1) as processes:
        for process in processes.values():
            assert process.end() == 1
            assert difference in process.last_line


@pytest.mark.heavy
def test_processes_with_different_seeds_are_told_so(tmp_path):
    code = (
        "import os, json, keras; from lockstep.strategies import from_env;"
        "keras.utils.set_random_seed(json.loads(os.environ['TF_CONFIG'])['task']['type'] == 'chief'); from_env()"
    )
    with job(tmp_path, ["-c", code], num_processes=2, env=ENV) as processes:
        for process in processes.values():
            assert process.end() == 1
            assert "the processes were given different random seeds; received [1, 0]" in process.last_line


@pytest.mark.parametrize("strategy", ["MultiWorkerMirroredStrategy", "ShardedStrategy"])
@pytest.mark.heavy
def test_processes_with_different_numbers_of_devices_are_told_so(tmp_path, strategy):
    code = f"from lockstep.strategies import {strategy}; {strategy}()"
    counts = {0: "1", 1: "3"}
    with job(
        tmp_path, ["-c", code], num_processes=2, env=ENV, env_of=lambda rank: {"JAX_NUM_CPU_DEVICES": counts[rank]}
    ) as processes:
        for process in processes.values():
            assert process.end() == 1
            assert "different numbers of devices; received [1, 3]" in process.last_line


@pytest.mark.heavy
def test_the_chief_s_seed_is_everyone_s_where_nobody_set_one(tmp_path):
    code = (
        "from lockstep.strategies import from_env; strategy = from_env(); import keras\n"
        "with strategy.scope(): print(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).get_weights()[0][0])"
    )
    with job(tmp_path, ["-c", code], num_processes=2, env=ENV) as processes:
        ends = [process.end() for process in processes.values()]
        assert ends == [0, 0], [process.last_line for process in processes.values()]
        assert processes[0].last_line == processes[1].last_line
        assert float(processes[0].last_line.strip("[]"))


@pytest.mark.heavy
def test_a_model_made_before_does_not_make_the_next_one_another(tmp_path):
    # Keras then numbers its layers differently.
    code = (
        "import os; from lockstep.strategies import from_env; strategy = from_env(); import keras, numpy as np\n"
        "if not strategy.is_chief: keras.layers.Dense(1).build((None, 1))\n"
        "keras.utils.set_random_seed(1)\n"  # the layer has drawn from it
        "with strategy.scope():\n"
        "  model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]); model.compile('sgd', 'mse')\n"
        "print(model.layers[0].name); model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)"
    )
    with job(tmp_path, ["-c", code], num_processes=2, env=ENV) as processes:
        assert [process.end() for process in processes.values()] == [0, 0]
        assert (processes[0].last_line, processes[1].last_line) == ("dense", "dense_1")
