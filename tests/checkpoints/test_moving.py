"""What one job has saved, another restores bit for bit: with other processes, devices and strategies."""

from pathlib import Path

import pytest
from gcsfs.core import GCSFileSystem
from tests.checkpoints import moving_process
from tests.checkpoints.moving_process import check_all, save
from tests.storage.servers import environment, gs_server
from tests.strategies.job_processes import job

ROOT = Path(__file__).parents[2]
STRATEGIES = ["mirrored", "sharded-1", "sharded-2", "sharded-3", "sharded-1-by-2", "sharded-3-by-2"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with what each strategy saved on four devices of one process."""
    folder = tmp_path_factory.mktemp("saved")
    for number, name in enumerate(STRATEGIES):
        (folder / name).mkdir()
        save(name, folder / name, seed=number)
    return folder


@pytest.mark.parametrize("name", STRATEGIES)
def test_any_strategy_restores_what_any_other_saved(saved, name):
    check_all(name, sorted(saved.iterdir()))


def run(folder, arguments, *, num_processes, **variables):
    env = {"JAX_NUM_CPU_DEVICES": str(4 // num_processes), "NPROC": "8", "PYTHONPATH": str(ROOT), **variables}
    with job(folder, [moving_process.__file__, *arguments], num_processes=num_processes, env=env) as processes:
        for process in processes.values():
            assert process.end(500) == 0, process.text


@pytest.mark.parametrize(
    ("num_processes", "names"),
    [
        (2, ["sharded-3"]),
        (2, STRATEGIES),
        (4, STRATEGIES[:4]),
    ],
)
@pytest.mark.heavy
def test_another_number_of_processes_restores_what_was_saved(saved, tmp_path, num_processes, names):
    target = tmp_path / "target"
    target.mkdir()
    run(tmp_path, [" ".join(names), saved], num_processes=num_processes, TARGET=str(target))
    for restorer in STRATEGIES if len(names) > 1 else ["mirrored", "sharded-3-by-2"]:
        check_all(restorer, sorted(target.iterdir()))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # gcsfs does
def test_two_processes_save_into_a_bucket(tmp_path):
    empty, target = tmp_path / "empty", tmp_path / "target"
    empty.mkdir()
    target.mkdir()
    with gs_server() as variables:
        # TensorStore has its own client, with a variable of its own, and asks for a token.
        more = {"TENSORSTORE_GCS_HTTP_URL": variables["STORAGE_EMULATOR_HOST"], "GOOGLE_AUTH_TOKEN_FOR_TESTING": "x"}
        with environment({**variables, **more, "BUCKET": "gs://bucket-of-tests/run"}):
            GCSFileSystem(use_listings_cache=False).mkdir("bucket-of-tests")
            run(tmp_path, ["sharded-3", empty], num_processes=2, TARGET=str(target))
            check_all("mirrored", [target / "sharded-3"])
    assert not (target / "sharded-3" / "checkpoints").exists()
