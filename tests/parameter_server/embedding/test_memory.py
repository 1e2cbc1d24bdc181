"""A table that is larger than what a worker may have is trained, in real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.testing.script_cluster import ScriptCluster

SCRIPT = Path(__file__).parents[1] / "scripts" / "large_table.py"


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_a_table_that_no_worker_could_hold_is_trained(tmp_path: Path) -> None:
    with ScriptCluster([SCRIPT], folder=tmp_path, num_workers=2, num_servers=2) as cluster:
        assert cluster.end(timeout_s=240) == 0, cluster.text("chief")
        assert [cluster.end("worker", index) for index in range(2)] == [0, 0]
        found = json.loads(cluster.text("chief").strip().splitlines()[-1])
    assert not found["fits"]
    assert found["loss"][-1] < 0.3 < found["loss"][0]
