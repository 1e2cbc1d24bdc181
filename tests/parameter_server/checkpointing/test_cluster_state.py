"""The whole state of servers, over real links: read while they go on, and written into others."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.serving import serving

from lockstep.parameter_server.checkpointing.cluster_state import ClusterCut, read_dense, write_back
from lockstep.parameter_server.chunks import AppliedState, Stage
from lockstep.parameter_server.flattening import flatten
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.optimizers import describe_optimizer
from lockstep.parameter_server.partitioners import FixedShardsPartitioner
from lockstep.parameter_server.placement import VariableSpec, place
from lockstep.parameter_server.protocol import Group, Part, Push, Setup, TableSpec
from lockstep.parameter_server.row_optimizers import LazyAdam
from lockstep.parameter_server.servers import Servers
from lockstep.strategies.table_rows import Rows, RowValues

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

SHAPE = (600, 5)
NUM_ROWS = 50


def make_setup(num_servers: int) -> Setup:
    placement = place(
        [VariableSpec(path="a/kernel", shape=SHAPE, dtype="float32")],
        num_servers=num_servers,
        partitioner=FixedShardsPartitioner(3),
    )
    variable = keras.Variable(np.zeros(SHAPE), dtype="float32", name="kernel")
    group = Group(variables=(0,), optimizer=describe_optimizer(keras.optimizers.Adam(0.1), [variable]))
    table = TableSpec(name="users", num_rows=NUM_ROWS, num_columns=2, values=RowValues(), optimizer=LazyAdam())
    return Setup(placement=placement, groups=(group,), tables=(table,))


def push(servers: Servers, setup: Setup, closure: int) -> dict[str, np.ndarray[Any, Any]]:
    """Pushes a closure's gradients; returns all rows of the table."""
    random = np.random.default_rng(closure)
    buffers, _ = flatten(setup.placement, [0], [random.standard_normal(SHAPE).astype(np.float32)])
    ids = np.sort(random.choice(NUM_ROWS, 10, replace=False)).astype(np.int64)
    everything = np.arange(NUM_ROWS, dtype=np.int64)
    servers.begin_push(
        Push(closure=closure),
        gradients=[{f"gradient.0:{k}": np.asarray(v) for k, v in own.items()} for own in buffers],
        parts=[(Part(),) if own else () for own in buffers],
        versions=[0] * servers.num_servers,
        rows={"users": (ids, random.standard_normal((10, 2)).astype(np.float32))},
        wanted={"users": everything},
    )
    return {name: rows.copy() for name, rows in servers.end_push().rows.items()}


@pytest.mark.parametrize("num_servers", [pytest.param(1, marks=pytest.mark.heavy), 3])
def test_a_cut_goes_into_another_number_of_servers(num_servers: int) -> None:
    setup, other = make_setup(2), make_setup(num_servers)
    with serving(2) as old, serving(num_servers) as new:
        servers = Servers(old.connect("worker 0"))
        servers.set_up(setup)
        for closure in range(3):
            push(servers, setup, closure)
        cut = ClusterCut(old.connect("coordinator"), closure=3, max_bytes=1000)
        after = push(servers, setup, 3)  # goes on meanwhile
        rows: list[tuple[str, Rows]] = []
        for server in range(2):
            for chunk in cut.read(server, watermark=lambda: 3, wait=lambda _: pytest.fail("the cut is whole")):
                if chunk.header.stage is Stage.ROWS:
                    rows.append((chunk.header.table, copy.deepcopy(chunk.rows())))
        cut.end()
        whole = read_dense(old.connect("reader"), setup, closure=4)

        links = new.connect("coordinator")
        moved = Servers(links)
        moved.set_up(other)
        write_back(
            dict(enumerate(links)),
            other,
            whole=whole,
            applied_states=dict.fromkeys(range(num_servers), AppliedState(closure=3, num_applied=3)),
            rows=rows,
        )
        again = read_dense(links, other, closure=3)
        for slot, value in whole.slots[0].items():
            np.testing.assert_array_equal(again.slots[0][slot], value)
        np.testing.assert_array_equal(again.values[0], whole.values[0])
        np.testing.assert_array_equal(push(moved, other, 3)["users"], after["users"])


def test_servers_that_are_pushed_to_cannot_be_read_as_if_they_were_not() -> None:
    setup = make_setup(1)
    with serving(1) as running:
        links = running.connect("coordinator")
        servers = Servers(links)
        servers.set_up(setup)
        push(servers, setup, 5)
        with pytest.raises(RemoteError, match="given out already; received 5"):
            read_dense(links, setup, closure=5)
