import json
import logging

import pytest

from lockstep.errors import BackendError, ConfigError, InvalidInputError
from lockstep.strategies import (
    STRATEGY_NAMES,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    from_env,
    simulate_devices,
)
from lockstep.topology import Accelerators, Topology


def topology_env(**changes):
    return Topology(**changes).to_env()


@pytest.fixture(autouse=True)
def _no_job(monkeypatch):
    for name in topology_env(accelerators=Accelerators(count=1, type="")):
        monkeypatch.delenv(name, raising=False)


def test_several_devices_take_the_mirrored_strategy_and_the_log_says_why(caplog):
    caplog.set_level(logging.INFO)
    assert isinstance(from_env(), MirroredStrategy)
    assert caplog.messages == ["strategy: MirroredStrategy over 8 x cpu, because this process has 8 devices"]


@pytest.mark.parametrize("name", sorted(set(STRATEGY_NAMES) - {"auto"}))
def test_every_strategy_has_a_name(name):
    assert type(from_env(name)).__name__.removesuffix("Strategy").lower().startswith(name.replace("_", ""))


def test_a_name_decides(caplog):
    caplog.set_level(logging.INFO)
    assert isinstance(from_env("one_device"), OneDeviceStrategy)
    assert isinstance(from_env("multi_worker"), MultiWorkerMirroredStrategy)
    assert isinstance(from_env("auto"), MirroredStrategy)
    assert caplog.messages[0] == "strategy: OneDeviceStrategy on cpu:0, because it was named"


def test_simulated_accelerators_are_named(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    accelerators = Accelerators(count=8, type="NVIDIA_TESLA_V100", simulated=True)
    for name, value in topology_env(accelerators=accelerators).items():
        monkeypatch.setenv(name, value)
    from_env("mirrored")
    assert "simulating 8 x NVIDIA_TESLA_V100 (simulated)" in caplog.text


def test_a_misspelt_name_is_refused():
    with pytest.raises(InvalidInputError, match="did you mean 'mirrored'"):
        from_env("mirored")


def test_parameter_servers_are_refused(monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    with pytest.raises(ConfigError, match="ParameterServerStrategy"):
        from_env()
    with pytest.raises(ConfigError, match="ParameterServerStrategy"):
        MultiWorkerMirroredStrategy()


@pytest.mark.parametrize("cluster", [{"chief": ["a:1"], "worker": ["b:1"]}, {"chief": ["a:1"], "ps": ["c:1"]}])
@pytest.mark.parametrize("name", ["auto", "multi_worker", "sharded"])
def test_an_evaluator_is_alone_with_its_devices(monkeypatch, cluster, name):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}}))
    strategy = from_env(name)
    assert strategy.num_replicas_in_sync == 8
    assert strategy.input_context.num_input_pipelines == 1
    assert strategy.is_chief, "of itself"
    assert isinstance(strategy, MirroredStrategy) == (name == "auto")


def test_several_processes_cannot_meet_once_jax_has_started(monkeypatch):
    OneDeviceStrategy()
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(BackendError, match="JAX has started"):
        from_env()


@pytest.mark.parametrize("name", ["cpu:0", "CPU:0", "/cpu:0", "/device:CPU:0", "cpu"])
def test_device_names(name):
    assert OneDeviceStrategy(name).describe() == "OneDeviceStrategy on cpu:0"


def test_devices_that_are_not_there():
    with pytest.raises(BackendError, match="there is no such device; received 'cpu:8'; allowed: cpu:0, cpu:1"):
        OneDeviceStrategy("cpu:8")
    with pytest.raises(BackendError, match="there is no such device; received 'gpu:0'"):
        MirroredStrategy(["gpu:0"])


@pytest.mark.parametrize("devices", [[], ["cpu:0", "cpu:0"], ["disk:0"], ["cpu:x"]])
def test_device_lists_that_make_no_sense(devices):
    with pytest.raises(InvalidInputError):
        MirroredStrategy(devices)


def test_the_number_of_virtual_devices_is_fixed_once_jax_has_started():
    OneDeviceStrategy()
    simulate_devices(8)
    with pytest.raises(BackendError, match="cannot make 3 virtual devices: JAX has started; received '8 cpu devices'"):
        simulate_devices(3)
    with pytest.raises(InvalidInputError, match="1 or more"):
        simulate_devices(0)
