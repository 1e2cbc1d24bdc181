"""`TPUStrategy`: for real on virtual devices, and compiled for slices that are not there."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from tests.tpu_compiler import needs_tpu_compiler

from lockstep.errors import ConfigError
from lockstep.planning.compiling import compile_for, target_devices
from lockstep.planning.targets import Target
from lockstep.strategies import TPUStrategy, from_env, programs
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.tpu import slice_topology
from lockstep.topology import Task, Topology


class SeenError(Exception):
    """Ends a training at its first step."""


def first_program(strategy: AbstractStrategy, *, batch_size: int) -> programs.Program:
    """Returns the step of a dense net as ``fit`` would run it."""
    seen: list[programs.Program] = []

    def see(program: programs.Program) -> None:
        seen.append(program)
        raise SeenError

    with strategy.scope():
        layers = [keras.Input((40,)), keras.layers.Dense(24, activation="relu"), keras.layers.Dense(3)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    with programs.watch(see), pytest.raises(SeenError):
        model.fit(np.zeros((64, 40), np.float32), np.zeros((64, 3), np.float32), batch_size=batch_size, verbose=0)
    return seen[0]


def test_the_step_compiles_for_a_slice_and_all_reduces_every_gradient(monkeypatch):
    needs_tpu_compiler()
    target = Target.parse("v5e:2x4")
    for name, value in target.environment({}).items():
        monkeypatch.setenv(name, value)
    found = compile_for(first_program(TPUStrategy(), batch_size=32), target=target)
    assert found.work is not None
    reduced = {collective.kind: collective for collective in found.work.collectives}
    assert list(reduced) == ["all-reduce"], reduced
    assert reduced["all-reduce"].group_size == len(target_devices(target)) == 8
    gradient_bytes = 4 * (40 * 24 + 24 + 24 * 3 + 3)
    extra = reduced["all-reduce"].payload_bytes - gradient_bytes
    assert 0 <= extra <= 16, "the gradients, each once, and the loss with them"


def test_it_says_that_it_is_simulated():
    assert TPUStrategy().describe() == "TPUStrategy over 8 x cpu (simulated)"


def test_its_name_takes_it(caplog):
    caplog.set_level(logging.INFO)
    assert isinstance(from_env("tpu"), TPUStrategy)
    assert caplog.messages == ["strategy: TPUStrategy over 8 x cpu (simulated), because it was named"]


def test_without_a_tpu_and_without_virtual_devices_it_says_what_to_do():
    env = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")}
    code = """if True:
        from lockstep.errors import BackendError
        from lockstep.strategies import TPUStrategy
        try:
            TPUStrategy()
        except BackendError as error:
            print("BackendError", error)
    """
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("BackendError there is no TPU, and there are no virtual devices"), done.stderr
    assert "simulate_devices" in done.stdout
    assert "lockstep plan" in done.stdout


def test_the_hosts_of_a_slice_are_who_is_in_the_job():
    env = {"TPU_WORKER_HOSTNAMES": "tpu-0, tpu-1,tpu-2,tpu-3", "TPU_WORKER_ID": "2"}
    found = slice_topology(env, Topology(job="j"))
    assert found.synchronous_addresses == ("tpu-0:8476", "tpu-1:8476", "tpu-2:8476", "tpu-3:8476")
    assert (found.process_id, found.num_processes, found.job) == (2, 4, "j")


@pytest.mark.parametrize("hosts", ["", "localhost"])
def test_one_host_changes_nothing(hosts):
    topology = Topology(task=Task(index=0))
    assert slice_topology({"TPU_WORKER_HOSTNAMES": hosts, "TPU_WORKER_ID": "7"}, topology) is topology


@pytest.mark.parametrize("place", ["", "two", "4", "-1"])
def test_a_place_that_is_not_in_the_slice_is_refused(place):
    env = {"TPU_WORKER_HOSTNAMES": "a,b,c,d", "TPU_WORKER_ID": place}
    with pytest.raises(ConfigError, match="0 to 3"):
        slice_topology(env, Topology())


def test_parameter_servers_are_refused(monkeypatch):
    cluster = {"chief": ["a:1"], "ps": ["c:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    with pytest.raises(ConfigError, match="ParameterServerStrategy"):
        TPUStrategy()
