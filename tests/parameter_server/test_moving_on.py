"""A training moves between parameter servers and processes in lockstep, by its backups and no changed line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.strategies.job_processes import job

from lockstep.testing.script_cluster import ScriptCluster

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parent / "scripts" / "moving_on.py"


def train_with_servers(folder: Path, num_epochs: int, *, num_servers: int) -> dict[str, Any]:
    folder.mkdir()
    result = folder / "result.npz"
    arguments = [SCRIPT, "parameter_server", folder.parent / "backups", str(num_epochs), result]
    with ScriptCluster(arguments, folder=folder, num_workers=2, num_servers=num_servers) as cluster:
        assert cluster.end(timeout_s=120) == 0, cluster.text("chief")
    return dict(np.load(result))


def train_in_lockstep(folder: Path, num_epochs: int) -> dict[str, Any]:
    folder.mkdir()
    result = folder / "result.npz"
    arguments = [SCRIPT, "multi_worker", folder.parent / "backups", str(num_epochs), result]
    with job(folder, arguments, num_processes=2, env={"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8"}) as processes:
        for process in processes.values():
            assert process.end() == 0, process.text
    return dict(np.load(result))


def assert_goes_on(after: dict[str, Any], before: dict[str, Any], *, epoch: int) -> None:
    assert int(after["first.epoch"]) == epoch
    names = {name.removeprefix("last.") for name in before if name.startswith("last.")}
    assert "rows" in names
    for name in names:
        np.testing.assert_array_equal(after[f"first.{name}"], before[f"last.{name}"], err_msg=name)
        assert np.all(np.isfinite(after[f"last.{name}"]))
    assert not np.array_equal(after["last.rows"], after["first.rows"])


def test_from_servers_to_processes_in_lockstep_and_back(tmp_path: Path) -> None:
    first = train_with_servers(tmp_path / "first", 2, num_servers=2)
    second = train_in_lockstep(tmp_path / "second", 4)
    assert_goes_on(second, first, epoch=2)
    third = train_with_servers(tmp_path / "third", 6, num_servers=3)
    assert_goes_on(third, second, epoch=4)
