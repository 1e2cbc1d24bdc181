"""The scripted cluster keeps what the service relies on, though it runs no programs."""

from __future__ import annotations

from pathlib import Path

from lockstep.jobs.running.orders import GangOrder
from lockstep.testing.scripted_cluster import AttemptScript, ScriptedCluster


def test_each_owner_has_its_own_generation(tmp_path: Path) -> None:
    cluster = ScriptedCluster(tmp_path, script=[AttemptScript.RUNS])
    cluster.fence(7, owner="")
    cluster.fence(6, owner="")
    cluster.fence(2, owner="another")
    for gang_id, owner, generation in (("stale-0", "", 6), ("old-0", "another", 1), ("current-0", "", 7)):
        cluster.place(GangOrder(gang_id=gang_id, replicas=(), owner=owner, generation=generation))
    cluster.place(GangOrder(gang_id="others-0", replicas=(), owner="another", generation=2))
    assert cluster.held() == ["current-0", "others-0"]
