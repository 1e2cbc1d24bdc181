"""Real processes with rows of their own: one ends earlier, one has none."""

import itertools
import json
import math
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from tests.strategies import shared_rows

from lockstep.testing.ports import free_port

TIMEOUT_S = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    shared_rows.write_files(folder)
    return folder


def run(num_workers, *arguments):
    """What each of several workers with two devices says."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(num_workers)]
    workers = []
    for rank in range(num_workers):
        env = {name: value for name, value in os.environ.items() if name != "NPROC"}
        env.update({"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8"})
        env["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
        command = [sys.executable, shared_rows.__file__, *arguments, str(rank)]
        workers.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        outputs = [worker.communicate(timeout=TIMEOUT_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * num_workers, "\n".join(error for _, error in outputs)
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.fixture(scope="module")
def found(folder):
    return run(2, str(folder))


@pytest.mark.heavy
@pytest.mark.parametrize("num_workers", [3, 4])
def test_no_row_is_lost_and_none_comes_twice(num_workers):
    of_workers = [[rows for rows in shared_rows.random_shares(rank) if len(rows)] for rank in range(num_workers)]
    steps = itertools.zip_longest(*of_workers, fillvalue=np.arange(0))
    expected = [np.concatenate(shares).tolist() for shares in steps]
    assert len({len(batches) for batches in of_workers}) > 1  # they do not end together
    for worker in run(num_workers, "random"):
        assert worker == [[math.gcd(len(rows), 2 * num_workers), rows] for rows in expected]


@pytest.mark.heavy
def test_a_batch_is_what_the_workers_read_for_it(found):
    # Two batches of three rows a worker and step; the second worker has but two batches in all.
    expected = [
        [4, [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105]],
        [2, [6, 7, 8, 9, 10, 11]],
        [1, [12, 13, 14]],
    ]
    assert found[0]["function"] == found[1]["function"] == expected


def test_without_sharding_each_worker_s_batches_are_its_share(found):
    expected = [
        [2, [0, 1, 2, 100, 101, 102]],
        [2, [3, 4, 5, 103, 104, 105]],
        [1, [6, 7, 8]],
        [1, [9, 10, 11]],
        [1, [12, 13, 14]],
    ]
    assert found[0]["off"] == found[1]["off"] == expected


def test_a_worker_without_any_row(found):
    expected = [[1, [100, 101, 102]], [1, [103, 104, 105]]]
    assert found[0]["one has none"] == found[1]["one has none"] == expected
    assert found[0]["none has any"] == found[1]["none has any"] == []


def test_the_same_batches_in_both_workers_and_values_of_replicas(found):
    for worker in found:
        assert worker["same"] == [[2, list(range(6))], [4, list(range(8))]]
        assert worker["values"] == [0, 1, 2, 3]


def test_batches_that_do_not_look_alike_are_refused_in_both(found):
    assert found[0]["unlike"] == found[1]["unlike"]
    assert "float32" in found[0]["unlike"]
    assert "in worker 0" in found[0]["unlike"]


def test_fit_over_files_of_different_sizes_gives_the_numbers_of_one_device(found, folder):
    shares = {"even": [(0, 1, 7, 8), (2, 3, 9), (4, 5), (6,)], "empty": [(10, 11), (12, 13), (14, 15)]}

    def batches(name, epochs):
        return (shared_rows.decode(numbers) for _ in range(epochs) for numbers in shares[name])

    keras.utils.set_random_seed(4)
    model = shared_rows.make_model()
    losses = model.fit(batches("even", 2), steps_per_epoch=4, epochs=2, shuffle=False, verbose=0).history["loss"]
    evaluation = model.evaluate(batches("empty", 1), steps=3, verbose=0)
    for worker in found:
        assert worker["steps"] == [4, 3]
        np.testing.assert_allclose(worker["fit"][0], losses, rtol=1e-5)
        np.testing.assert_allclose(worker["fit"][1], evaluation, rtol=1e-5)
        for weight, variable in zip(worker["weights"], model.weights, strict=True):
            value = np.asarray(variable)
            assert np.linalg.norm(weight - value) <= 1e-5 * np.linalg.norm(value)
