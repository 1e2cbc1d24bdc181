"""How a worker finds its servers, and what it does where one has no values."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from tests.parameter_server.threads import TOKEN, served

from lockstep.errors import LockstepError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.working import GiveBackError
from lockstep.parameter_server.exchanging import exchange
from lockstep.parameter_server.exchanging.compressing import ErrorFeedback
from lockstep.parameter_server.exchanging.exchange import Exchange, Gradients, join_servers
from lockstep.parameter_server.links import client
from lockstep.parameter_server.placement import VariableSpec, place
from lockstep.parameter_server.protocol import Group, Part, Push, Setup
from lockstep.topology import Task, Topology


def make_setup() -> Setup:
    placement = place([VariableSpec(path="v", shape=(1,), dtype="float32")], num_servers=1)
    return Setup(placement=placement, groups=(Group(variables=(0,)),))


def test_a_worker_that_waits_for_servers_says_for_which_and_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "LOG_INTERVAL_S", 0.1)
    monkeypatch.setattr(exchange, "ATTEMPT_TIMEOUT_S", 0.3)
    setup = make_setup()
    with served(1) as cluster:
        address = cluster.topology.cluster["ps"][0]
        for at, why in (
            ("127.0.0.1:1", "worker 0 cannot reach ps 0 at 127.0.0.1:1: no answer within"),
            (address, "the parameter server has not been set up yet"),
        ):
            caplog.clear()
            topology = Topology(
                cluster={"chief": ("127.0.0.1:3",), "worker": ("127.0.0.1:2",), "ps": (at,)},
                task=Task(role="worker"),
            )
            with pytest.raises(LockstepError):
                join_servers(Cluster(topology=topology, token=TOKEN, silence_s=5.0, start_within_s=1.0), setup)
            assert f"worker 0 waits for the parameter servers: {why}" in caplog.text


def test_a_worker_gives_its_closure_back_where_a_server_has_no_values() -> None:
    setup = make_setup()
    with served(1) as cluster, contextlib.closing(cluster.reach_servers()) as coordinator:
        coordinator.set_up(setup)
        coordinator.begin()
        coordinator.write([{"float32": np.ones(1, np.float32)}])
        made = Exchange(cluster, setup, feedback=ErrorFeedback(setup, None, put_on_devices=lambda residuals: residuals))
        with contextlib.closing(made):
            pulled = made.pull()
            gradients = Gradients(
                arrays=[{"gradient.0:float32": np.ones(1, np.float32)}], parts=[(Part(),)], residuals=([], [])
            )
            coordinator.clear()
            for ask in (made.pull, lambda: made.push(Push(closure=0), gradients, of=pulled)):
                with pytest.raises(GiveBackError, match="has not been set up yet"):
                    ask()
