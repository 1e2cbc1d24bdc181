"""All servers' state, laid together and taken apart: training goes on as if nothing had been."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.server.test_shards import OPTIMIZERS, SHAPES

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.optimizers import describe_optimizer, needs_whole
from lockstep.parameter_server.partitioners import FixedShardsPartitioner
from lockstep.parameter_server.placement import Placement, VariableSpec, place
from lockstep.parameter_server.protocol import Group, Setup
from lockstep.parameter_server.server.shards import DenseShards
from lockstep.parameter_server.whole_state import WholeState, gather, local_state, placed_slots, scatter

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

PATHS = ["embedding_1/kernel", "a/kernel", "b/kernel", "scale", "c_d/kernel"]  # Muon decides by some of them
COUNT_PATH = "moving/mean"
STEPS = 4


def make_variables() -> list[Any]:
    random = np.random.default_rng(0)
    made: list[Any] = []
    for path, shape in zip(PATHS, SHAPES, strict=True):
        variable = keras.Variable(random.standard_normal(shape), dtype="float32", name=path.rpartition("/")[2])
        variable._path = path
        made.append(variable)
    return made


def make_setup(optimizer: Any, variables: list[Any], *, num_servers: int, num_shards: int) -> Setup:
    """All variables for an optimizer, and a moving statistic in a group of its own."""
    specs = [
        VariableSpec(path=v.path, shape=tuple(v.shape), dtype=v.dtype, is_whole=needs_whole(optimizer, v))
        for v in variables
    ]
    specs.append(VariableSpec(path=COUNT_PATH, shape=(5,), dtype="float32"))
    placement = place(specs, num_servers=num_servers, partitioner=FixedShardsPartitioner(num_shards))
    trained = Group(variables=tuple(range(len(variables))), optimizer=describe_optimizer(optimizer, variables))
    return Setup(placement=placement, groups=(trained, Group(variables=(len(variables),))))


def serve(setup: Setup, state: WholeState | None = None) -> list[DenseShards]:
    servers = [
        DenseShards(setup.placement, server=server, groups=setup.groups)
        for server in range(setup.placement.num_servers)
    ]
    if state is not None:
        for shards, own in zip(servers, scatter(setup, state), strict=True):
            shards.restore(own)
    return servers


def initial(setup: Setup, variables: list[Any], optimizer: Any) -> WholeState:
    """The state before the first step: the variables' values, and what the optimizer begins with."""
    optimizer.build(variables)
    count = keras.Variable(np.zeros(5), dtype="float32")
    return local_state(setup, [*variables, count], optimizers=[(optimizer, variables)])


def buffers(placement: Placement, server: int, variables: tuple[int, ...], arrays: list[Any]) -> dict[str, Any]:
    parts = [
        (arrays[shard.variable][shard.start : shard.end] if arrays[shard.variable].ndim else arrays[shard.variable])
        for shard in placement.by_server[server]
        if shard.variable in variables
    ]
    return {"float32": np.concatenate([part.reshape(-1) for part in parts])} if parts else {}


def train(setup: Setup, servers: list[DenseShards], steps: list[list[Any]]) -> None:
    for gradients in steps:
        for server, shards in enumerate(servers):
            for number, group in enumerate(setup.groups):
                own = buffers(setup.placement, server, group.variables, gradients)
                if own:
                    shards.apply(own, group=number)


def make_gradients(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in [*SHAPES, (5,)]]


MOVES = {"1 to 3": ((1, 1), (3, 2)), "2 to 1": ((2, 3), (1, 4)), "3 to 2": ((3, 5), (2, 1))}


@pytest.mark.parametrize(
    ("name", "move"),
    [pytest.param(name, move, id=f"{name}, {move}") for name in OPTIMIZERS for move in MOVES],
)
@pytest.mark.heavy
def test_training_goes_on_over_other_servers(name: str, move: str) -> None:
    variables, optimizer = make_variables(), OPTIMIZERS[name]()
    before, after = MOVES[move]
    setup = make_setup(optimizer, variables, num_servers=before[0], num_shards=before[1])
    start = initial(setup, variables, optimizer)
    servers = serve(setup, start)
    steps = [make_gradients(seed) for seed in range(STEPS + 1)]
    train(setup, servers, steps[:STEPS])
    taken = gather(setup, [{k: np.array(v) for k, v in shards.state().items()} for shards in servers])

    other = make_setup(optimizer, variables, num_servers=after[0], num_shards=after[1])
    moved = serve(other, taken)
    again = gather(other, [shards.state() for shards in moved])
    assert_equal(again, taken)
    train(setup, servers, steps[STEPS:])
    train(other, moved, steps[STEPS:])
    found = gather(other, [shards.state() for shards in moved])
    assert_equal(found, gather(setup, [shards.state() for shards in servers]), rtol=1e-6)

    for gradients in steps:
        optimizer.apply(gradients[: len(variables)], variables)
    own = found.optimizer_values(placed_slots(optimizer, variables, placement=other.placement), group=0)
    for value, variable in zip(own, optimizer.variables, strict=True):
        assert value is not None
        assert value.shape == variable.shape
        assert value.dtype == variable.dtype
        np.testing.assert_allclose(value, np.array(variable), rtol=1e-5, atol=1e-6, err_msg=variable.name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizers_variables_are_found_again(name: str) -> None:
    variables, optimizer = make_variables(), OPTIMIZERS[name]()
    setup = make_setup(optimizer, variables, num_servers=2, num_shards=3)
    optimizer.build(variables)
    random = np.random.default_rng(0)
    slots = placed_slots(optimizer, variables, placement=setup.placement)
    assert len(set(slots)) == len(slots)
    own = {
        slot: (100 * random.standard_normal(v.shape)).astype(v.dtype)
        for slot, v in zip(slots, optimizer.variables, strict=True)
    }
    values = tuple(random.standard_normal(spec.shape).astype(np.float32) for spec in setup.placement.variables)
    state = WholeState(values=values, slots=(own, {}))
    assert_equal(gather(setup, scatter(setup, state)), state)
    found = state.optimizer_values(placed_slots(optimizer, variables, placement=setup.placement), group=0)
    for value, slot in zip(found, slots, strict=True):
        assert value is own[slot]


def assert_equal(found: WholeState, expected: WholeState, *, rtol: float = 0.0) -> None:
    for a, b in zip(found.values, expected.values, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    for mine, theirs in zip(found.slots, expected.slots, strict=True):
        assert mine.keys() == theirs.keys()
        for slot, value in mine.items():
            np.testing.assert_allclose(value, theirs[slot], rtol=rtol, atol=rtol, err_msg=str(slot))


def test_slots_of_variables_that_no_server_has_are_none() -> None:
    variables, optimizer = make_variables(), keras.optimizers.Adam()
    setup = make_setup(optimizer, variables, num_servers=2, num_shards=1)
    state = initial(setup, variables, optimizer)
    table = keras.Variable(np.zeros((0, 4)), dtype="float32", name="embeddings")
    everything, optimizer = [table, *variables], keras.optimizers.Adam()
    optimizer.build(everything)
    values = state.optimizer_values(placed_slots(optimizer, everything, placement=setup.placement), group=0)
    missing = [v.name for v, value in zip(optimizer.variables, values, strict=True) if value is None]
    assert missing == ["embeddings_momentum", "embeddings_velocity"]


def test_another_optimizers_state_is_refused() -> None:
    variables, optimizer = make_variables(), keras.optimizers.SGD()
    setup = make_setup(optimizer, variables, num_servers=1, num_shards=1)
    other = make_setup(keras.optimizers.Adam(), variables, num_servers=2, num_shards=1)
    with pytest.raises(InvalidInputError, match=r"from another optimizer; received 'without the momentum of .*kernel'"):
        scatter(other, initial(setup, variables, optimizer))
    servers = serve(other)
    with pytest.raises(InvalidInputError, match=r"slot\.0\.2 of the state of another server"):
        servers[0].restore({k: v for k, v in servers[0].state().items() if k != "slot.0.2"})
