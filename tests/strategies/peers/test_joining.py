"""What is refused before the processes meet; how they meet is in `test_meeting` and `test_multi_worker`."""

import jax
import pytest

from lockstep.errors import BackendError, ConfigError, EngineError
from lockstep.processes.ports import reserve_address
from lockstep.strategies.peers.joining import _service_port, meet, seconds_from
from lockstep.strategies.peers.watchdog import current_watchdog
from lockstep.topology import Topology


def test_one_process_has_nobody_to_meet():
    meet(Topology())
    assert current_watchdog() is None


def test_jax_must_not_have_started():
    jax.devices()
    topology = Topology.of_processes(num_processes=2, process_id=1, coordinator_address="127.0.0.1:1")
    with pytest.raises(BackendError, match="the processes cannot meet: JAX has started"):
        meet(topology)


def test_nobody_else_gets_the_port_of_jaxs_service():
    with _service_port() as port, pytest.raises(EngineError, match="no port"):
        reserve_address("127.0.0.1", ports=range(port, port + 1))
    reserve_address("127.0.0.1", ports=range(port, port + 1)).close()


def test_seconds_from_a_variable():
    assert seconds_from({"A": "2.5"}, "A") == 2.5
    assert seconds_from({"A": ""}, "A") is None
    assert seconds_from({}, "A") is None


@pytest.mark.parametrize("text", ["x", "0", "-1", "nan", "inf"])
def test_what_is_no_number_of_seconds(text):
    with pytest.raises(ConfigError, match="LOCKSTEP_PEER_TIMEOUT_S; received"):
        seconds_from({"LOCKSTEP_PEER_TIMEOUT_S": text}, "LOCKSTEP_PEER_TIMEOUT_S")
