"""A loop of the user's own over real processes, one of which is killed while it runs closures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
while "worker 1" in strategy.layout.runs._chief.dispatcher.workers:
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
while "worker 1" not in strategy.layout.runs._chief.dispatcher.workers:
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
