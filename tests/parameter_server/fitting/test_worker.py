"""How a worker finds its servers."""

from __future__ import annotations

import pytest
from tests.parameter_server.threads import TOKEN, served

from lockstep.errors import LockstepError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.fitting import worker
from lockstep.parameter_server.fitting.worker import join_servers
from lockstep.parameter_server.links import client
from lockstep.parameter_server.placement import VariableSpec, place
from lockstep.parameter_server.protocol import Setup
from lockstep.topology import Task, Topology


def test_a_worker_that_waits_for_servers_says_for_which_and_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "TELL_EVERY_S", 0.1)
    monkeypatch.setattr(worker, "LOOK_EVERY_S", 0.3)
    setup = Setup(placement=place([VariableSpec(path="v", shape=(1,), dtype="float32")], num_servers=1), groups=())
    with served(1) as cluster:
        address = cluster.topology.cluster["ps"][0]
        for at, why in (
            ("127.0.0.1:1", "worker 0 cannot reach ps 0 at 127.0.0.1:1: no answer within"),
            (address, "a parameter server was not told yet what it keeps"),
        ):
            caplog.clear()
            topology = Topology(
                cluster={"chief": ("127.0.0.1:3",), "worker": ("127.0.0.1:2",), "ps": (at,)},
                task=Task(role="worker"),
            )
            with pytest.raises(LockstepError):
                join_servers(Cluster(topology=topology, token=TOKEN, silence_s=5.0, start_within_s=1.0), setup)
            assert f"worker 0 waits for the parameter servers: {why}" in caplog.text
