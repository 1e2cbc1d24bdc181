"""What one strategy saved, any other loads as the same model, with any number of devices and processes."""

import jax
import numpy as np
import pytest
from tests.strategies.job_processes import job
from tests.training import saving_process
from tests.training.saving_process import loaded, train_and_save

from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, ShardedStrategy

STRATEGIES = {
    "one_device": OneDeviceStrategy,
    "mirrored_2": lambda: MirroredStrategy(jax.devices()[:2]),
    "mirrored_3": lambda: MirroredStrategy(jax.devices()[:3]),
    "sharded_4": lambda: ShardedStrategy(jax.devices()[:4], stage=3, min_shard_elements=1),
    "central_2": lambda: CentralStorageStrategy(jax.devices()[:2]),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with what each strategy saved, and what each model held."""
    folder = tmp_path_factory.mktemp("saved")
    contents = {}
    for name, make_strategy in STRATEGIES.items():
        (folder / name).mkdir()
        contents[name] = train_and_save(make_strategy(), folder / name)
        np.savez(folder / name / "content.npz", **contents[name])
    return folder, contents


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("loader", STRATEGIES)
@pytest.mark.heavy
def test_any_strategy_loads_what_any_other_saved(saved, loader):
    folder, contents = saved
    for name, expected in contents.items():
        for found in loaded(STRATEGIES[loader](), folder / name):
            assert_same(found, expected)


@pytest.mark.heavy
def test_two_processes_load_what_one_saved_and_the_other_way_round(saved, tmp_path):
    folder, contents = saved
    target = tmp_path / "multi_worker"
    target.mkdir()
    env = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8", "LOCKSTEP_MEETING_TIMEOUT_S": "90", "TARGET": str(target)}
    with job(tmp_path, [saving_process.__file__, folder], num_processes=2, env=env) as processes:
        for process in processes.values():
            assert process.end() == 0, process.text
            assert process.text.count("loaded") == len(contents)
    expected = dict(np.load(target / "content.npz"))
    for name in ("one_device", "mirrored_3", "sharded_4"):
        for found in loaded(STRATEGIES[name](), target):
            assert_same(found, expected)
