"""A loop of the user's own over real processes, one of which is killed while it runs closures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.parameter_server.killing import FOR_S, kill_at_random, lost_steps

from lockstep.testing.script_cluster import ScriptCluster

NUM_CLOSURES = 400

SCRIPT = """
import json, sys, time
import numpy as np
import lockstep, keras
from lockstep.parameter_server import ClusterCoordinator, ParameterServerStrategy

NUM_CLOSURES = int(sys.argv[1])
strategy = ParameterServerStrategy(silence_s=5.0)
coordinator = ClusterCoordinator(strategy)
with strategy.scope():
    weight = keras.Variable(np.zeros(1000), dtype="float32")
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([weight])
    mean = keras.metrics.Mean()
    num_rows = keras.Variable(0, dtype="int32", trainable=False)


@lockstep.function
def step(iterator):
    rows = next(iterator)
    num_rows.assign_add(len(rows))
    mean.update_state(rows)
    optimizer.apply([rows.mean() * np.ones(1000, np.float32)], [weight])


def slow_step(iterator):
    time.sleep(0.03)
    compiled(next(iterator))


@lockstep.function
def compiled(rows):
    num_rows.assign_add(len(rows))
    mean.update_state(rows)
    optimizer.apply([rows.mean() * np.ones(1000, np.float32)], [weight])


def rows_of(context):
    print("reads", context.input_pipeline_id, flush=True)
    while True:
        yield np.ones(8, np.float32)


iterator = iter(coordinator.create_per_worker_dataset(rows_of))
steps = [slow_step if number % 50 < 25 else step for number in range(NUM_CLOSURES)]
values = [coordinator.schedule(one, args=(iterator,)) for one in steps]
coordinator.fetch(values[:60])
print("in the middle", flush=True)
while "worker 1" in strategy.member.chief.dispatcher.workers:
    time.sleep(0.01)
print("one is lost, all have ended:", coordinator.done(), flush=True)
coordinator.join()
found = {
    "weight": sorted(set(np.asarray(weight.value).tolist())),
    "rows": int(num_rows.value),
    "counted": float(mean.count.value),
    "mean": float(mean.result()),
}
print(json.dumps(found), flush=True)
while "worker 1" not in strategy.member.chief.dispatcher.workers:
    time.sleep(0.01)
coordinator.fetch([coordinator.schedule(step, args=(iterator,)) for _ in range(50)])
print("all are there", flush=True)
"""


@pytest.mark.heavy
def test_what_a_killed_worker_was_running_counts_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with ScriptCluster([script, str(NUM_CLOSURES)], folder=tmp_path, num_workers=3, num_servers=2) as cluster:
        cluster.wait_for("in the middle")
        cluster.wait_for("reads 1", "worker", 1)
        cluster.kill("worker", 1)
        cluster.wait_for("one is lost, all have ended: False", timeout_s=5)
        cluster.restart("worker", 1)
        assert cluster.end() == 0, cluster.text("chief")
        for role, index in (("worker", 0), ("worker", 1), ("worker", 2), ("ps", 0), ("ps", 1)):
            assert cluster.end(role, index) == 0
        printed = cluster.text("chief").splitlines()
        assert "all are there" in printed
        found = json.loads(next(line for line in printed if line.startswith("{")))
    assert found == {
        "weight": [-NUM_CLOSURES],
        "rows": 8 * NUM_CLOSURES,
        "counted": 8 * NUM_CLOSURES,
        "mean": 1.0,
    }


LOSING_SCRIPT = """
import time
import numpy as np
import keras
from lockstep.errors import UnavailableError
from lockstep.parameter_server import ClusterCoordinator, ParameterServerStrategy

strategy = ParameterServerStrategy(silence_s=5.0, start_within_s=30.0)
coordinator = ClusterCoordinator(strategy)
with strategy.scope():
    number = keras.Variable(np.zeros(3), dtype="float32", trainable=False)


def add():
    time.sleep(0.02)
    number.assign_add(np.ones(3))


coordinator.schedule(add).fetch()
print("begun", flush=True)
try:
    while True:
        for _ in range(20):
            coordinator.schedule(add)
        coordinator.join()
except UnavailableError as error:
    print("raised:", error, flush=True)
"""


@pytest.mark.heavy
def test_without_a_checkpoint_a_server_that_is_lost_ends_the_loop_with_an_error(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOSING_SCRIPT)
    with ScriptCluster([script], folder=tmp_path, num_workers=1, num_servers=1) as cluster:
        cluster.wait_for("begun")
        cluster.kill("ps")
        cluster.restart("ps")
        cluster.wait_for("raised:")
        assert "ps 0 was lost with its part of the parameters, and there is no checkpoint" in cluster.text("chief")
        assert cluster.end() == 0


CHECKPOINTED_SCRIPT = """
import json, sys, time
import numpy as np
import lockstep, keras
from lockstep.checkpoints import Position
from lockstep.parameter_server import ClusterCoordinator, FixedShardsPartitioner, ParameterServerStrategy

seconds, folder = float(sys.argv[1]), sys.argv[2]
strategy = ParameterServerStrategy(silence_s=5.0, variable_partitioner=FixedShardsPartitioner(2))
coordinator = ClusterCoordinator(strategy)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(10, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(1.0))
    model.optimizer.build(model.trainable_variables)
    counts = keras.Variable(np.zeros((4, 2)), dtype="float32", trainable=False, name="counts")


@lockstep.function
def step():
    counts.assign_add(np.ones((4, 2), np.float32))
    model.optimizer.apply([np.ones((4, 10), np.float32)], model.trainable_variables)


with coordinator.create_checkpoints(folder, model) as checkpoints:
    position = checkpoints.restore()
    epoch = 0 if position is None else position.epoch
    print("begins with", epoch, flush=True)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(50):
            coordinator.schedule(step)
        epoch += 1
        checkpoints.save(Position(epoch=epoch, batch=0, step=0))
        coordinator.join()
        print("epoch", epoch, "of 50 steps", flush=True)
    found = {"epochs": epoch, "weights": np.array(model.layers[0].kernel.value)[:, 0].tolist(),
             "counts": np.array(counts.value)[:, 0].tolist()}
print(json.dumps(found), flush=True)
"""


def checkpointed(folder: Path, *, seconds: int, num_workers: int, max_restarts: int = 0) -> ScriptCluster:
    script = folder / "script.py"
    script.write_text(CHECKPOINTED_SCRIPT)
    command = [script, str(seconds), str(folder / "checkpoints")]
    return ScriptCluster(command, folder=folder, num_workers=num_workers, num_servers=2, max_restarts=max_restarts)


def ended(cluster: ScriptCluster) -> dict[str, Any]:
    assert cluster.end(timeout_s=120) == 0, cluster.text("chief")
    return json.loads(cluster.text("chief").strip().splitlines()[-1])


@pytest.mark.heavy
def test_a_servers_successor_begins_from_the_loops_checkpoint(tmp_path: Path) -> None:
    with checkpointed(tmp_path, seconds=25, num_workers=2) as cluster:
        cluster.wait_until(lambda: any((tmp_path / "checkpoints").glob("[0-9]*")), what="a checkpoint")
        cluster.wait_until(lambda: cluster.text("chief").count("epoch ") > 5)
        cluster.kill("ps", 1)
        cluster.restart("ps", 1)
        cluster.wait_for("are lost to it")
        seen = cluster.text("chief").count("epoch ")
        cluster.wait_until(lambda: cluster.text("chief").count("epoch ") > seen + 2)
        found = ended(cluster)
        said = re.search(
            r"ps 1 has its part of the checkpoint after epoch \d+: (\d+) steps? since then", cluster.text("chief")
        )
    assert said is not None
    num_steps, num_lost = found["epochs"] * 50, int(said.group(1))
    assert 0 <= num_lost <= 4 * 50
    assert found["weights"] == [-num_steps, -num_steps, num_lost - num_steps, num_lost - num_steps]
    assert found["counts"] == [num_steps, num_steps, num_steps - num_lost, num_steps - num_lost], "the same steps"


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_a_loops_workers_and_servers_killed_at_random_for_two_minutes_lose_what_is_said_and_no_more(
    tmp_path: Path,
) -> None:
    with checkpointed(tmp_path, seconds=FOR_S + 30, num_workers=3, max_restarts=10_000) as cluster:
        cluster.wait_until(lambda: any((tmp_path / "checkpoints").glob("[0-9]*")), what="a checkpoint")
        num_killed = kill_at_random(cluster, num_workers=3, num_servers=2, seed=3)
        found = ended(cluster)
        lost = lost_steps(cluster.text("chief"), num_servers=2)
    assert num_killed["worker"] > 5
    assert num_killed["ps"] > 3
    expected = sorted(2 * [num_lost - 50 * found["epochs"] for num_lost in lost])
    assert sorted(found["weights"]) == expected
    assert sorted(-count for count in found["counts"]) == expected


@pytest.mark.heavy
def test_a_coordinator_that_is_started_again_goes_on_from_the_loops_checkpoint(tmp_path: Path) -> None:
    with checkpointed(tmp_path, seconds=15, num_workers=2) as cluster:
        cluster.wait_until(lambda: cluster.text("chief").count("epoch ") > 5)
        cluster.kill("chief")
        before = cluster.text("chief").count("epoch ")
        cluster.restart("chief")
        found = ended(cluster)
        begun = [int(number) for number in re.findall(r"begins with (\d+)", cluster.text("chief"))]
    assert begun[0] == 0
    assert before - 3 <= begun[-1] <= before + 1, "all but what was trained since the last checkpoint"
    num_steps = found["epochs"] * 50
    assert set(found["weights"]) == {-float(num_steps)}
    assert set(found["counts"]) == {float(num_steps)}
