"""Servers that hold parts of variables update them as Keras's optimizers update the whole."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.every_optimizer import OPTIMIZERS

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.optimizers import describe_optimizer, needs_whole
from lockstep.parameter_server.partitioners import FixedShardsPartitioner
from lockstep.parameter_server.placement import Placement, VariableSpec, place
from lockstep.parameter_server.protocol import Group, Setup
from lockstep.parameter_server.server.shards import DenseShards
from lockstep.parameter_server.whole_state import local_state, scatter

# Keras's variables take no `copy` argument in `__array__`, which NumPy 2 mentions when an optimizer is described.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

SHAPES = [(6, 4), (4,), (4, 3), (), (5, 2)]
NUM_SERVERS = 2
QUICK = ("momentum", "adam", "lamb", "schedule", "clipnorm")
STEPS = 7


def make_variables() -> list[Any]:
    random = np.random.default_rng(0)
    return [
        keras.Variable(random.standard_normal(shape), dtype="float32", name=f"v{number}")
        for number, shape in enumerate(SHAPES)
    ]


def place_variables(variables: list[Any], optimizer: Any) -> Placement:
    specs = [
        VariableSpec(path=v.name, shape=tuple(v.shape), dtype=v.dtype, is_whole=needs_whole(optimizer, v))
        for v in variables
    ]
    return place(specs, num_servers=NUM_SERVERS, partitioner=FixedShardsPartitioner(3))


def to_buffers(placement: Placement, arrays: list[Any], server: int) -> dict[str, np.ndarray[Any, Any]]:
    """What a worker sends to one server: the parts of each array, one after the other."""
    parts = [
        np.asarray(arrays[shard.variable]).reshape(-1 if not SHAPES[shard.variable] else SHAPES[shard.variable])[
            shard.start : shard.end
        ]
        for shard in placement.by_server[server]
        if arrays[shard.variable] is not None
    ]
    return {"float32": np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32)} if parts else {}


def gathered(placement: Placement, servers: list[DenseShards]) -> list[np.ndarray[Any, Any]]:
    found = [np.empty(shape, np.float32) for shape in SHAPES]
    for server, shards in enumerate(servers):
        buffer = shards.read()["float32"]
        for shard in placement.by_server[server]:
            part = buffer[shard.offset : shard.offset + shard.size]
            target = found[shard.variable]
            if target.shape:
                target[shard.start : shard.end] = part.reshape((shard.end - shard.start, *target.shape[1:]))
            else:
                found[shard.variable] = part.reshape(())
    return found


def serve(optimizer: Any, variables: list[Any]) -> tuple[Placement, list[DenseShards]]:
    placement = place_variables(variables, optimizer)
    optimizer.build(variables)
    group = Group(variables=tuple(range(len(variables))), optimizer=describe_optimizer(optimizer, variables))
    servers = [DenseShards(placement, server=server, groups=[group]) for server in range(NUM_SERVERS)]
    setup = Setup(placement=placement, groups=(group,))
    first = scatter(setup, local_state(setup, variables, optimizers=[(optimizer, variables)]))
    for shards, own in zip(servers, first, strict=True):
        shards.restore(own)
    return placement, servers


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.heavy) for name in OPTIMIZERS]
)
def test_parts_are_updated_as_the_whole_is(name: str) -> None:
    variables, optimizer = make_variables(), OPTIMIZERS[name]()
    placement, servers = serve(optimizer, variables)
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        gradients = [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]
        for server, shards in enumerate(servers):
            shards.apply(to_buffers(placement, gradients, server), group=0)
        optimizer.apply(gradients, variables)
    for found, variable in zip(gathered(placement, servers), variables, strict=True):
        np.testing.assert_allclose(found, variable.numpy(), rtol=1e-6, atol=1e-7)
    assert [shards.num_updates for shards in servers] == [[STEPS]] * NUM_SERVERS


def test_what_is_excluded_from_decay_is_not_decayed_in_parts_either() -> None:
    variables, optimizer = make_variables(), keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["v0"])
    placement, servers = serve(optimizer, variables)
    gradients = [np.zeros(shape, np.float32) for shape in SHAPES]
    before = [v.numpy().copy() for v in variables]
    for server, shards in enumerate(servers):
        shards.apply(to_buffers(placement, gradients, server), group=0)
    found = gathered(placement, servers)
    np.testing.assert_array_equal(found[0], before[0])
    assert not np.allclose(found[1], before[1])


def test_a_constraint_holds_after_an_update() -> None:
    variables, optimizer = make_variables(), keras.optimizers.SGD(1.0)
    variables[0].constraint = keras.constraints.MaxNorm(0.5, axis=0)
    placement, servers = serve(optimizer, variables)
    assert len(placement.by_variable[0]) == 1
    gradients = [np.ones(shape, np.float32) for shape in SHAPES]
    for server, shards in enumerate(servers):
        shards.apply(to_buffers(placement, gradients, server), group=0)
    optimizer.apply(gradients, variables)
    np.testing.assert_allclose(gathered(placement, servers)[0], variables[0].numpy(), rtol=1e-6)
    assert np.linalg.norm(gathered(placement, servers)[0], axis=0).max() < 0.5 + 1e-6


def test_what_has_no_gradient_is_left_alone() -> None:
    variables, optimizer = make_variables(), keras.optimizers.AdamW(0.1, weight_decay=0.5)
    placement, servers = serve(optimizer, variables)
    gradients: list[Any] = [np.ones(shape, np.float32) for shape in SHAPES]
    gradients[0] = gradients[3] = None
    for server, shards in enumerate(servers):
        mask = [gradients[shard.variable] is not None for shard in placement.by_server[server]]
        shards.apply(to_buffers(placement, gradients, server), group=0, has_gradient=mask)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply(gradients, variables)
    for found, variable in zip(gathered(placement, servers), variables, strict=True):
        np.testing.assert_allclose(found, variable.numpy(), rtol=1e-6, atol=1e-7)


def test_what_no_optimizer_trains_is_added_to() -> None:
    variables = make_variables()
    placement = place_variables(variables, keras.optimizers.SGD())
    servers = [
        DenseShards(placement, server=server, groups=[Group(variables=tuple(range(len(SHAPES))))])
        for server in range(NUM_SERVERS)
    ]
    for server, shards in enumerate(servers):
        shards.write(to_buffers(placement, [v.value for v in variables], server))
        shards.apply(to_buffers(placement, [np.ones(shape) for shape in SHAPES], server), group=0)
    for found, variable in zip(gathered(placement, servers), variables, strict=True):
        np.testing.assert_allclose(found, variable.numpy() + 1, rtol=1e-6)


def test_values_of_another_model_are_refused() -> None:
    variables, optimizer = make_variables(), keras.optimizers.SGD()
    _, servers = serve(optimizer, variables)
    with pytest.raises(InvalidInputError, match=r"not those of this server's variables; received \{'float32': 3\}"):
        servers[0].check({"float32": np.zeros(3, np.float32)}, group=0)
    right = servers[0].read()["float32"]
    with pytest.raises(InvalidInputError, match="of float64"):
        servers[0].check({"float32": right.astype(np.float64)}, group=0)
    with pytest.raises(InvalidInputError, match="same script"):
        servers[0].write({})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            "use the policy mixed_bfloat16, which needs no scaling; or a fixed scale",
            id="scale",
        ),
        pytest.param(
            lambda: keras.optimizers.MultiOptimizer(
                keras.optimizers.OptimizerMap(keras.optimizers.SGD(), {"v0": keras.optimizers.Adam()})
            ),
            "received 'MultiOptimizer'",
            id="several",
            marks=pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="since Keras 3.14"),
        ),
        pytest.param(
            lambda: keras.optimizers.SGD(global_clipnorm=1.0, gradient_accumulation_steps=2),
            "allowed: one of the two, or clipnorm",
            id="norm of sums",
        ),
    ],
)
def test_what_servers_cannot_run_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        describe_optimizer(make(), make_variables())


def test_a_layer_in_float8_is_refused() -> None:
    layer = keras.layers.Dense(3)
    layer.build((None, 2))
    layer.quantize("float8")
    with pytest.raises(InvalidInputError, match=r"new values of its scales; received '.*/inputs_.*'; train without"):
        describe_optimizer(keras.optimizers.SGD(), layer.trainable_variables)


def test_an_optimizer_that_a_server_does_not_know_is_said() -> None:
    variables, optimizer = make_variables(), keras.optimizers.SGD()
    optimizer.build(variables)
    spec = describe_optimizer(optimizer, variables)
    spec.config["module"], spec.config["class_name"] = "my_script", "MyOptimizer"
    placement = place_variables(variables, optimizer)
    with pytest.raises(InvalidInputError, match=r"does not know; received 'MyOptimizer'; register it"):
        DenseShards(placement, server=0, groups=[Group(variables=tuple(range(len(SHAPES))), optimizer=spec)])
