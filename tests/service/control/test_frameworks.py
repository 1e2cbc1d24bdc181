"""Scripts of other frameworks, as their own guides write them, run as jobs of three replicas without a changed line."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from lockstep.jobs.running.states import JobState
from lockstep.testing.bench import Bench

THREE = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "workerType": "n1-standard-4", "workerCount": "2"}

JAX = """
import json, os, pathlib
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize(
    coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
    process_id=int(os.environ["JAX_PROCESS_ID"]),
)
total = multihost_utils.process_allgather(jnp.asarray(10.0 ** jax.process_index())).sum()
if jax.process_index() == 0:
    folder = pathlib.Path(os.environ["AIP_MODEL_DIR"]); folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps([jax.process_count(), float(total)]))
"""

PYTORCH = """
import json, os, pathlib
import torch, torch.distributed as dist

dist.init_process_group("gloo")  # all that it has to know is in torchrun's variables
total = torch.tensor(10.0 ** dist.get_rank())
dist.all_reduce(total)
if dist.get_rank() == 0:
    folder = pathlib.Path(os.environ["AIP_MODEL_DIR"]); folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps([dist.get_world_size(), float(total)]))
dist.destroy_process_group()
"""

TENSORFLOW = """
import json, os, pathlib
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # finds its peers by TF_CONFIG
resolver = strategy.cluster_resolver

@tf.function
def total():
    def mine():
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.float32)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, 10.0 ** number)
    return strategy.run(mine)

found = float(total())
if resolver.task_type in ("chief", "master"):
    folder = pathlib.Path(os.environ["AIP_MODEL_DIR"]); folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps([strategy.num_replicas_in_sync, found]))
"""


@pytest.mark.parametrize(
    ("framework", "script"),
    [("jax", JAX), ("torch", PYTORCH), ("tensorflow", TENSORFLOW)],
    ids=["jax", "pytorch", "tensorflow"],
)
@pytest.mark.heavy
def test_processes_of_a_framework_find_each_other(
    bench: Bench, framework: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.testing.bench.TIMEOUT_S", 120.0)  # to import one of them three times takes a while
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    asked = {**THREE, "useChiefInTfConfig": framework == "tensorflow"}
    bench.create("job", script, **asked)
    job = bench.step_until_over("job")
    assert job.state is JobState.SUCCEEDED, job.error_message
    assert json.loads((Path(job.outputs["model"]) / "result.json").read_text()) == [3, 111.0]
