"""Processes of a cluster are killed: no update is lost or applied twice, and nobody waits for the dead."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.parameter_server.killing import FOR_S, kill_at_random, lost_steps

from lockstep.testing.script_cluster import ScriptCluster

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "scripts" / "counted_updates.py"
STEPS = 100
NOTICED_WITHIN_S = 5.0


def ended(cluster: ScriptCluster) -> dict[str, Any]:
    """Waits for the end; returns what the coordinator said of its model, each update of which took one from it."""
    assert cluster.end(timeout_s=300) == 0, cluster.text("chief")
    return json.loads(cluster.text("chief").strip().splitlines()[-1])


def weights(found: dict[str, Any]) -> set[float]:
    return {*found["dense"], *found["rows"]}


@pytest.mark.parametrize("steps_per_execution", [1, 7])
def test_workers_killed_at_random_for_two_minutes_lose_no_update_and_double_none(
    tmp_path: Path, steps_per_execution: int
) -> None:
    with ScriptCluster(
        [SCRIPT, str(FOR_S + 30), "--steps-per-execution", str(steps_per_execution)],
        folder=tmp_path,
        num_workers=3,
        num_servers=2,
        max_restarts=10_000,
    ) as cluster:
        cluster.wait_for("epoch 1 ")
        num_killed = kill_at_random(cluster, num_workers=3, seed=1)
        found = ended(cluster)
    assert num_killed["worker"] > 10
    assert found["num_counted"] == found["num_epochs"] * STEPS
    assert weights(found) == {-float(found["num_counted"])}, "each step took one from every weight"


@pytest.mark.parametrize(
    "options",
    [["--steps-per-execution", "7"], ["--num-backup-workers", "0"], ["--num-backup-workers", "1"]],
    ids=["nobody waits", "synchronous", "backup"],
)
def test_workers_and_servers_killed_at_random_for_two_minutes_lose_what_is_said_and_no_more(
    tmp_path: Path, options: list[str]
) -> None:
    backups = tmp_path / "backups"
    with ScriptCluster(
        [SCRIPT, str(FOR_S + 30), str(backups), *options],
        folder=tmp_path,
        num_workers=3,
        num_servers=2,
        max_restarts=10_000,
    ) as cluster:
        cluster.wait_until(lambda: any(backups.glob("[0-9]*")), what="a checkpoint")
        num_killed = kill_at_random(cluster, num_workers=3, num_servers=2, seed=2)
        found = ended(cluster)
        text = cluster.text("chief")
    assert num_killed["worker"] > 5
    assert num_killed["ps"] > 3
    lost = lost_steps(text, num_servers=2)
    expected = [float(num_lost - found["num_epochs"] * STEPS) for num_lost in lost]
    # Each server has one of the two shards, and rows by turns.
    assert sorted(found["dense"]) == sorted(expected * 3)
    assert found["rows"] == [expected[0], expected[0], expected[1], expected[1], expected[0], expected[0]]


@pytest.mark.parametrize(
    "options",
    [[], ["--max-staleness", "1"], ["--num-backup-workers", "0"]],
    ids=["nobody waits", "bounded", "synchronous"],
)
def test_the_rest_go_on_at_once_and_a_successor_joins(tmp_path: Path, options: list[str]) -> None:
    with ScriptCluster([SCRIPT, "25", *options], folder=tmp_path, num_workers=2, num_servers=1) as cluster:
        cluster.wait_for("epoch 3 ")
        seen = cluster.text("chief").count("epoch")
        cluster.kill("worker", 1)
        # An epoch may have ended in the moment before; another one needs steps without the dead one.
        cluster.wait_until(lambda: cluster.text("chief").count("epoch") > seen + 1, timeout_s=NOTICED_WITHIN_S)
        assert "worker 1 is lost" in cluster.text("chief")
        cluster.restart("worker", 1)
        found = ended(cluster)
        assert cluster.end("worker", 1) == 0, "it took part, and was told that it is over"
    assert weights(found) == {-float(found["num_epochs"] * STEPS)}


@pytest.mark.parametrize("steps_per_execution", [1, 10])
def test_a_servers_successor_begins_from_the_checkpoint_and_what_is_lost_is_said_in_steps(
    tmp_path: Path, steps_per_execution: int
) -> None:
    command = [SCRIPT, "40", str(tmp_path / "backups"), "--steps-per-execution", str(steps_per_execution)]
    with ScriptCluster(command, folder=tmp_path, num_workers=1, num_servers=2) as cluster:
        cluster.wait_until(lambda: any((tmp_path / "backups").glob("[0-9]*")), what="a checkpoint")
        cluster.wait_until(lambda: cluster.text("chief").count("epoch") > 5)
        saved = sorted(int(path.name) for path in (tmp_path / "backups").glob("[0-9]*"))
        cluster.kill("ps", 1)
        cluster.restart("ps", 1)
        cluster.wait_for("are lost to it")
        num_begun = cluster.text("chief").partition("ps 1 has its part")[0].count("epoch ") + 1
        seen = cluster.text("chief").count("epoch")
        cluster.wait_until(lambda: cluster.text("chief").count("epoch") > seen + 2)
        found = ended(cluster)
        said = re.search(
            r"ps 1 has its part of the checkpoint after epoch (\d+): (\d+) steps? since then", cluster.text("chief")
        )
    assert said is not None
    num_steps, epoch, num_lost = found["num_epochs"] * STEPS, int(said.group(1)), int(said.group(2))
    assert epoch * STEPS in saved[-2:], "the last one may have come in the moment before"
    assert 0 <= num_lost <= (num_begun - epoch) * STEPS, "those since it was cut, and no more"
    # Each of the two servers has one of the two shards, and rows by turns.
    assert sorted(set(found["dense"])) == sorted({-float(num_steps), -float(num_steps - num_lost)})
    assert set(found["rows"]) <= set(found["dense"])


def test_a_server_that_is_lost_in_the_only_epoch_begins_from_the_checkpoint_before_it(tmp_path: Path) -> None:
    command, steps = [SCRIPT, "0", str(tmp_path / "backups"), "--steps", "5000"], 5000
    with ScriptCluster(command, folder=tmp_path, num_workers=1, num_servers=2) as cluster:
        cluster.wait_until(lambda: any((tmp_path / "backups").glob("[0-9]*")), what="a checkpoint")
        cluster.wait_for("500 steps")
        cluster.kill("ps", 1)
        cluster.restart("ps", 1)
        found = ended(cluster)
        text = cluster.text("chief")
    assert "ps 1 has its part of the checkpoint after epoch 0" in text
    lost = max(lost_steps(text, num_servers=2))
    assert 500 <= lost < steps
    assert found["num_epochs"] == 1
    assert sorted(set(found["dense"])) == sorted({-float(steps), -float(steps - lost)})


@pytest.mark.parametrize("options", [[], ["--num-backup-workers", "0"]], ids=["nobody waits", "synchronous"])
def test_all_workers_and_a_server_lost_at_once_are_replaced_and_training_goes_on(
    tmp_path: Path, options: list[str]
) -> None:
    backups = tmp_path / "backups"
    with ScriptCluster(
        [SCRIPT, "40", str(backups), *options], folder=tmp_path, num_workers=2, num_servers=2
    ) as cluster:
        cluster.wait_until(lambda: any(backups.glob("[0-9]*")), what="a checkpoint")
        gone = [("worker", 0), ("worker", 1), ("ps", 1)]  # as with a machine that all of them were on
        for role, index in gone:
            cluster.kill(role, index)
        for role, index in gone:
            cluster.restart(role, index)
        cluster.wait_for("since then are lost to it")
        found = ended(cluster)
        text = cluster.text("chief")
    expected = [float(num_lost - found["num_epochs"] * STEPS) for num_lost in lost_steps(text, num_servers=2)]
    assert sorted(found["dense"]) == sorted(expected * 3)


def test_without_a_checkpoint_the_loss_of_a_server_ends_the_training_in_words(tmp_path: Path) -> None:
    with ScriptCluster([SCRIPT, "60"], folder=tmp_path, num_workers=1, num_servers=1) as cluster:
        cluster.wait_for("epoch 2 ")
        cluster.kill("ps", 0)
        cluster.restart("ps", 0)
        assert cluster.end() == 1
        assert "ps 0 was lost with its part of the parameters, and there is no checkpoint" in cluster.text("chief")
        assert cluster.end("worker") == 0, "it was told that it is over"
        assert cluster.end("ps") == 0, "and so was the one that had come in its place"


def test_a_coordinator_that_is_started_again_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    with ScriptCluster([SCRIPT, "10"], folder=tmp_path, num_workers=2, num_servers=2) as cluster:
        cluster.wait_until(lambda: cluster.text("chief").count("epoch") > 3)
        cluster.kill("chief")
        cluster.restart("chief")
        found = ended(cluster)
    assert found["num_counted"] == found["num_epochs"] * STEPS
    assert weights(found) == {-float(found["num_counted"])}, "nothing of the dead one's, and all of its own"


def test_a_coordinator_that_is_started_again_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    with ScriptCluster(
        [SCRIPT, "20", str(tmp_path / "backups")], folder=tmp_path, num_workers=2, num_servers=2
    ) as cluster:
        cluster.wait_until(lambda: any((tmp_path / "backups").glob("[0-9]*")), what="a checkpoint")
        cluster.wait_until(lambda: cluster.text("chief").count("epoch") > 5)
        cluster.kill("chief")
        cluster.restart("chief")
        cluster.wait_for("going on with epoch")
        found = ended(cluster)
        said = re.search(r"going on with epoch (\d+), batch 1 \(step (\d+)\)", cluster.text("chief"))
        assert said is not None
        assert [cluster.end("worker", 0), cluster.end("worker", 1), cluster.end("ps", 0), cluster.end("ps", 1)] == [
            0
        ] * 4
    assert int(said.group(2)) == (int(said.group(1)) - 1) * STEPS + 1
    assert found["num_counted"] == (int(said.group(1)) - 1 + found["num_epochs"]) * STEPS
    assert weights(found) == {-float(found["num_counted"])}, "what the dead one had begun was not applied after it"


def test_a_coordinator_killed_again_and_again_goes_on_each_time(tmp_path: Path) -> None:
    """With it now and then a worker, or a server, so that its successor finds a new one."""
    backups = tmp_path / "backups"
    chance = random.Random(3)
    with ScriptCluster(
        [SCRIPT, "15", str(backups)], folder=tmp_path, num_workers=2, num_servers=2, max_restarts=10_000
    ) as cluster:
        cluster.wait_until(lambda: len(list(backups.glob("[0-9]*"))) > 1, what="a checkpoint that is whole")
        for number, others in enumerate([[], ["worker"], ["ps"], ["worker", "ps"], [], ["ps"]], start=1):
            cluster.kill("chief")
            for role in others:
                cluster.kill(role, chance.randrange(2))
            cluster.wait_until(lambda number=number: cluster.text("chief").count("going on with epoch") == number)
            again = time.monotonic() + chance.uniform(0.0, 4.0)
            cluster.wait_until(lambda again=again: time.monotonic() > again)
        found = ended(cluster)
        said = re.findall(r"going on with epoch (\d+), batch 1 \(step (\d+)\)", cluster.text("chief"))
        assert [cluster.end("worker", 0), cluster.end("worker", 1), cluster.end("ps", 0), cluster.end("ps", 1)] == [
            0
        ] * 4
    assert all(int(step) == (int(epoch) - 1) * STEPS + 1 for epoch, step in said)
    assert [int(epoch) for epoch, _ in said] == sorted(int(epoch) for epoch, _ in said)
    assert found["num_counted"] == (int(said[-1][0]) - 1 + found["num_epochs"]) * STEPS
    assert weights(found) == {-float(found["num_counted"])}
