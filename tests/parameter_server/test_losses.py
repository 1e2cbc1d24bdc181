"""Processes of a cluster are killed, and no update is lost or applied twice, nobody waits for the dead."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from lockstep.testing.script_cluster import ScriptCluster

SCRIPTS = Path(__file__).parent / "scripts"
KILLED_FOR_S = 120
NOTICED_WITHIN_S = 5.0


def ended(cluster: ScriptCluster) -> dict[str, object]:
    assert cluster.end(timeout_s=300) == 0, cluster.text("chief")
    return json.loads(cluster.text("chief").strip().splitlines()[-1])


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_workers_killed_at_random_for_two_minutes_lose_no_update_and_double_none(tmp_path: Path) -> None:
    chance = random.Random(1)
    with ScriptCluster(
        [SCRIPTS / "counted_updates.py", KILLED_FOR_S],
        folder=tmp_path,
        num_workers=3,
        num_servers=2,
        max_restarts=10_000,
    ) as cluster:
        cluster.wait_for("epoch 1 ")
        num_killed = 0
        until = time.monotonic() + KILLED_FOR_S
        while time.monotonic() < until:
            before = cluster.text("chief")
            cluster.kill("worker", chance.randrange(3))
            num_killed += 1
            again = time.monotonic() + chance.uniform(0.1, 3.0)
            # An epoch at least is trained between two deaths now and then, so that they fall at all places of a step.
            cluster.wait_until(
                lambda before=before, again=again: time.monotonic() > again and cluster.text("chief") != before
            )
        found = ended(cluster)
    assert num_killed > 10
    assert found["weights"] == [-float(str(found["num_steps"]))], "each step took one from every weight"


@pytest.mark.heavy
def test_the_rest_go_on_at_once_and_a_successor_joins(tmp_path: Path) -> None:
    with ScriptCluster([SCRIPTS / "counted_updates.py", 25], folder=tmp_path, num_workers=2, num_servers=1) as cluster:
        cluster.wait_for("epoch 3 ")
        cluster.kill("worker", 1)
        cluster.wait_for("worker 1 is lost", timeout_s=NOTICED_WITHIN_S)
        seen = cluster.text("chief").count("epoch")
        cluster.wait_until(lambda: cluster.text("chief").count("epoch") > seen + 1, timeout_s=NOTICED_WITHIN_S)
        cluster.restart("worker", 1)
        found = ended(cluster)
        assert cluster.end("worker", 1) == 0, "it took part, and was told that it is over"
    assert found["weights"] == [-float(str(found["num_steps"]))]
