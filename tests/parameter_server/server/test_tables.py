"""Rows of tables: the same wherever they lie and whenever they are first met, and updated as their algorithms say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.protocol import TableSpec
from lockstep.parameter_server.row_optimizers import LazyAdam, RowSGD, RowwiseAdagrad, row_optimizer
from lockstep.parameter_server.server.table_cuts import TableCut
from lockstep.parameter_server.server.tables import TableShard
from lockstep.strategies.table_rows import Draw, Rows, RowValues

NUM_ROWS = 1000
NUM_COLUMNS = 8
OPTIMIZERS = [RowSGD(learning_rate=0.1), RowwiseAdagrad(learning_rate=0.1), LazyAdam(learning_rate=0.01)]


def table(optimizer: Any = OPTIMIZERS[0], **changes: Any) -> TableSpec:
    fields = {"name": "users", "num_rows": NUM_ROWS, "num_columns": NUM_COLUMNS, "values": RowValues(seed=3)}
    return TableSpec(**{**fields, **changes}, optimizer=optimizer)


class Servers:
    """A table over several servers, as a worker sees it."""

    def __init__(self, spec: TableSpec, *, num_servers: int) -> None:
        self.shards = [TableShard(spec, server=server, num_servers=num_servers) for server in range(num_servers)]

    def read(self, ids: list[int]) -> np.ndarray[Any, Any]:
        wanted = np.array(ids, np.int64)
        found = np.empty((len(ids), NUM_COLUMNS), np.float32)
        for server, shard in enumerate(self.shards):
            mine = wanted % len(self.shards) == server
            found[mine] = shard.read(wanted[mine])
        return found

    def apply(self, ids: list[int], gradients: np.ndarray[Any, Any]) -> None:
        wanted = np.array(ids, np.int64)
        for server, shard in enumerate(self.shards):
            mine = wanted % len(self.shards) == server
            shard.apply(wanted[mine], gradients[mine])


@settings(deadline=None, max_examples=25)
@given(
    order=st.permutations(list(range(0, 60, 3))),
    num_servers=st.integers(1, 4),
    draw=st.sampled_from(Draw),
)
def test_a_row_begins_the_same_wherever_and_whenever_it_is_met(order: list[int], num_servers: int, draw: Draw) -> None:
    spec = table(values=RowValues(draw=draw, seed=3))
    at_once = TableShard(spec, server=0, num_servers=1).read(np.array(sorted(order), np.int64))
    servers = Servers(spec, num_servers=num_servers)
    for row in order:
        servers.read([row])
    np.testing.assert_array_equal(servers.read(sorted(order)), at_once)
    assert sum(shard.num_met for shard in servers.shards) == len(order)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.kind)
def test_rows_are_updated_as_their_algorithm_says(optimizer: Any) -> None:
    """Against each row's own arithmetic in float64, written down once more."""
    servers = Servers(table(optimizer), num_servers=3)
    random = np.random.default_rng(0)
    rows = {row: servers.read([row])[0].astype(np.float64) for row in range(20)}
    state: dict[int, list[Any]] = {row: [0.0, np.zeros(NUM_COLUMNS), np.zeros(NUM_COLUMNS)] for row in rows}
    num_pushes = [0, 0, 0]
    for _ in range(12):
        ids = sorted(random.choice(20, size=9, replace=False).tolist())
        gradients = random.standard_normal((len(ids), NUM_COLUMNS)).astype(np.float32)
        servers.apply(ids, gradients)
        for server in range(3):
            num_pushes[server] += 1
        for row, gradient in zip(ids, gradients.astype(np.float64), strict=True):
            own, step = state[row], num_pushes[row % 3]
            if optimizer.kind == "sgd":
                rows[row] = rows[row] - 0.1 * gradient
            elif optimizer.kind == "adagrad":
                own[0] += (gradient**2).mean()
                rows[row] = rows[row] - 0.1 * gradient / (np.sqrt(own[0]) + 1e-8)
            else:
                own[1] = 0.9 * own[1] + 0.1 * gradient
                own[2] = 0.999 * own[2] + 0.001 * gradient**2
                corrected = own[1] / (1 - 0.9**step), own[2] / (1 - 0.999**step)
                rows[row] = rows[row] - 0.01 * corrected[0] / (np.sqrt(corrected[1]) + 1e-7 / np.sqrt(1 - 0.999**step))
    found = servers.read(list(range(20)))
    np.testing.assert_allclose(found, np.stack(list(rows.values())), rtol=2e-5, atol=1e-6)


def test_lazy_adam_of_a_row_in_every_push_is_adam() -> None:
    spec = table(LazyAdam(learning_rate=0.01))
    shard = TableShard(spec, server=0, num_servers=1)
    ids = np.arange(5, dtype=np.int64)
    variable = keras.Variable(shard.read(ids))
    optimizer = keras.optimizers.Adam(0.01)
    random = np.random.default_rng(0)
    for _ in range(10):
        gradients = random.standard_normal((5, NUM_COLUMNS)).astype(np.float32)
        shard.apply(ids, gradients)
        optimizer.apply([gradients], [variable])
    np.testing.assert_allclose(shard.read(ids), np.asarray(variable.value), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_servers", [1, 2, 5])
def test_rows_go_from_one_number_of_servers_to_another(num_servers: int) -> None:
    spec = table(LazyAdam())
    before = Servers(spec, num_servers=2)
    gradients = np.ones((6, NUM_COLUMNS), np.float32)
    before.apply([1, 2, 5, 8, 9, 13], gradients)
    exported = [TableCut(shard).read(max_bytes=1 << 20) for shard in before.shards]
    together = Rows(
        ids=np.concatenate([rows.ids for rows in exported]),
        values=np.concatenate([rows.values for rows in exported]),
        state={kind: np.concatenate([rows.state[kind] for rows in exported]) for kind in exported[0].state},
        num_pushes=exported[0].num_pushes,
    )
    order = np.argsort(together.ids)
    together = Rows(
        ids=together.ids[order],
        values=together.values[order],
        state={kind: array[order] for kind, array in together.state.items()},
        num_pushes=together.num_pushes,
    )
    after = Servers(spec, num_servers=num_servers)
    after.read([3, 5])  # what was met before the rows were taken back is forgotten
    for shard in after.shards:
        shard.clear()
        shard.restore(together)
    assert sum(shard.num_met for shard in after.shards) == 6
    for servers in (before, after):
        servers.apply([1, 2, 5, 8, 9, 13], gradients)
    ids = [1, 2, 3, 5, 8, 9, 13]
    np.testing.assert_allclose(after.read(ids), before.read(ids), rtol=1e-6)


def test_a_table_takes_memory_for_the_rows_that_were_met() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    shard = TableShard(table(LazyAdam(), num_rows=50_000_000, num_columns=64), server=0, num_servers=1)
    shard.apply(np.arange(0, 50_000_000, 500_000, dtype=np.int64), np.ones((100, 64), np.float32))
    assert process.memory_info().rss - before < 200 << 20, "all of it would be 36 GiB"
    assert shard.num_met == 100


def test_a_table_may_be_larger_than_the_machines_memory() -> None:
    """It is declared, trained, cut and cleared; what is resident is what its rows take."""
    overcommit = Path("/proc/sys/vm/overcommit_memory")
    if overcommit.exists() and int(overcommit.read_text()) == 2:
        pytest.skip("this machine promises no more memory than it has")
    total = psutil.virtual_memory().total + psutil.swap_memory().total
    num_rows = 2 * total // (16 * 4)
    process = psutil.Process()
    before = process.memory_info().rss
    shard = TableShard(table(LazyAdam(), num_rows=num_rows, num_columns=16), server=0, num_servers=1)
    ids = np.linspace(0, num_rows - 1, num=1000, dtype=np.int64)
    gradients = np.ones((len(ids), 16), np.float32)
    shard.apply(ids, gradients)
    cut = TableCut(shard)
    cut.begin()
    cut.keep(ids)
    shard.apply(ids, gradients)
    del cut
    shard.clear()
    assert shard.read(ids).shape == (1000, 16)
    assert process.memory_info().rss - before < 100 << 20, f"all of it would be {6 * total >> 30} GiB"


def test_clearing_a_table_gives_its_memory_back_and_keeps_the_rate_that_was_set() -> None:
    process = psutil.Process()
    spec = table(RowSGD(learning_rate=1.0), num_rows=100_000_000, num_columns=16, values=RowValues(draw=Draw.CONSTANT))
    shard = TableShard(spec, server=0, num_servers=1)
    shard.set_learning_rate(0.25)
    before = process.memory_info().rss
    for first in range(0, 1_000_000, 10_000):  # few at once: a strategy may have had glibc keep what such pushes take
        shard.apply(np.arange(first, first + 10_000, dtype=np.int64), np.ones((10_000, 16), np.float32))
    full = process.memory_info().rss
    assert full - before > 60 << 20
    shard.clear()
    cleared = process.memory_info().rss
    assert full - cleared > 60 << 20, "the rows' pages"
    assert cleared - before < 50 << 20, "a byte for each row of the table would be 95 MiB"
    assert shard.num_met == shard.num_pushes == 0
    ids = np.arange(2, dtype=np.int64)
    shard.apply(ids[:1], np.ones((1, 16), np.float32))
    np.testing.assert_array_equal(shard.read(ids), np.repeat([[-0.25], [0.0]], 16, axis=1))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param([2, 1000], "received '2 to 1000, 2 of them'; allowed: 0 to 999, rising, each once", id="beyond"),
        pytest.param([-2, 0], "-2 to 0", id="negative"),
        pytest.param([4, 2], "rising", id="falling"),
        pytest.param([2, 2], "each once", id="twice"),
        pytest.param([1, 2], "another server's", id="not its own"),
    ],
)
def test_ids_that_are_not_as_they_should_be_are_refused(ids: list[int], message: str) -> None:
    shard = TableShard(table(), server=0, num_servers=2)
    with pytest.raises(InvalidInputError, match=message):
        shard.read(np.array(ids, np.int64))
    assert shard.num_met == 0


def test_gradients_of_another_shape_or_kind_are_refused() -> None:
    shard = TableShard(table(), server=0, num_servers=1)
    for gradients in (np.zeros((1, 3), np.float32), np.zeros((1, NUM_COLUMNS))):
        with pytest.raises(InvalidInputError, match=r"gradients for rows of table users.*allowed: float32 \(1, 8\)"):
            shard.apply(np.zeros(1, np.int64), gradients)
    with pytest.raises(InvalidInputError, match="int64 in one dim"):
        shard.read(np.zeros(1, np.int32))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        pytest.param("lamb", {}, "an optimizer of rows; received 'lamb'; allowed: adagrad, adam, sgd", id="name"),
        pytest.param(
            "sgd", {"beta_1": 0.5}, r"options of sgd; received \['beta_1'\]; allowed: learning_rate", id="option"
        ),
        pytest.param("adam", {"beta_1": 1.0}, "beta_1 of adam; received 1.0", id="range"),
        pytest.param("sgd", {"learning_rate": 0.0}, "learning_rate of sgd; received 0.0", id="zero"),
        pytest.param("sgd", {"learning_rate": float("nan")}, "learning_rate of sgd; received nan", id="nan"),
        pytest.param(
            "adam",
            {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)},
            "learning_rate of adam; received 'ExponentialDecay'; allowed: a number: rows have no schedules",
            id="schedule",
        ),
        pytest.param("adam", {"epsilon": "small"}, "epsilon of adam; received 'str'; allowed: a number", id="text"),
    ],
)
def test_an_optimizer_that_there_is_not_is_refused(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        row_optimizer(kind, **options)
    assert row_optimizer("adam", learning_rate=0.1) == LazyAdam(learning_rate=0.1)


def test_numpys_numbers_are_options_and_travel() -> None:
    made = row_optimizer("adagrad", learning_rate=np.float32(0.5), initial_accumulator=np.int64(1))
    assert json.loads(json.dumps(vars(made))) == {**vars(made), "learning_rate": 0.5, "initial_accumulator": 1.0}


def test_a_learning_rate_holds_from_the_next_push_on_and_not_for_a_cut_of_before() -> None:
    shard = TableShard(table(RowSGD(learning_rate=1.0), values=RowValues(draw=Draw.CONSTANT)), server=0, num_servers=1)
    ids, gradients = np.zeros(1, np.int64), np.ones((1, NUM_COLUMNS), np.float32)
    cut = TableCut(shard)
    cut.begin()
    shard.set_learning_rate(0.25)
    cut.keep(ids)
    cut.apply(ids, gradients)
    shard.apply(ids, gradients)
    np.testing.assert_array_equal(shard.read(ids), -0.25 * gradients)
    np.testing.assert_array_equal(cut.read(max_bytes=1 << 20).values, -gradients)
