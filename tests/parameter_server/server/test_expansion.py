"""Pushes that were made smaller, as a server takes them: what is wrong with one is said before any of it counts."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from tests.parameter_server.every_optimizer import describe_built
from tests.parameter_server.serving import serving

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.placement import VariableSpec, place
from lockstep.parameter_server.protocol import Group, Mode, Packing, Part, Push, Setup
from lockstep.parameter_server.server.expansion import expand
from lockstep.parameter_server.server.shards import DenseShards
from lockstep.parameter_server.servers import Servers

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

SIZES = (4, 3)
BF16: Any = jnp.dtype("bfloat16")


def make_setup(mode: Mode = Mode.ASYNCHRONOUS) -> Setup:
    """Two variables of one optimizer, and a count."""
    variables = [keras.Variable(np.zeros(size), dtype="float32", name=f"v{size}") for size in SIZES]
    specs = [*(VariableSpec(path=f"v{size}", shape=(size,), dtype="float32") for size in SIZES)]
    specs.append(VariableSpec(path="count", shape=(), dtype="float32"))
    optimizer = describe_built(keras.optimizers.SGD(1.0), variables)
    groups = (Group(variables=(0, 1), optimizer=optimizer), Group(variables=(2,), is_summed=True))
    return Setup(placement=place(specs, num_servers=1), groups=groups, mode=mode)


def top(values: Any, indices: Any, **changes: Any) -> tuple[Part, dict[str, np.ndarray[Any, Any]]]:
    arrays: dict[str, Any] = {
        "gradient.0:float32": np.asarray(values, np.float32),
        "index.0:float32": np.asarray(indices, np.int32),
    }
    return Part(packing=Packing.TOP), arrays | changes


def expanded(part: Part, arrays: dict[str, Any]) -> tuple[Push, Any]:
    setup = make_setup()
    dense = DenseShards(setup.placement, server=0, groups=setup.groups)
    return expand(Push(closure=0, parts=(part,)), arrays, dense=dense, groups=setup.groups)


def test_the_largest_go_to_their_places_and_all_others_are_zeros() -> None:
    push, arrays = expanded(*top([5.0, -6.0], [1, 6]))
    assert push.parts == (Part(),)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "gradient.0:float32": [0.0, 5.0, 0.0, 0.0, 0.0, 0.0, -6.0]
    }


def test_places_are_among_the_gradients_that_there_are() -> None:
    _, arrays = top([5.0], [2])
    part = Part(packing=Packing.TOP, has_gradient=(False, True))
    push, found = expanded(part, arrays)
    assert push.parts == (Part(has_gradient=(False, True)),)
    assert found["gradient.0:float32"].tolist() == [0.0, 0.0, 5.0]


def test_bfloat16_is_widened() -> None:
    sent = np.linspace(-1, 1, 7).astype(BF16)
    _, found = expanded(Part(packing=Packing.BFLOAT16), {"gradient.0:float32": sent, "gradient.1:float32": np.ones(1)})
    assert found["gradient.0:float32"].dtype == np.float32
    assert found["gradient.0:float32"].tolist() == sent.astype(np.float32).tolist()
    assert found["gradient.1:float32"].tolist() == [1.0], "what is beside it is left as it is"


WRONG: dict[str, tuple[Part, dict[str, Any], str]] = {
    "out of range": (*top([1.0], [7]), "rising, 0 to 6"),
    "below zero": (*top([1.0, 2.0], [-1, 2]), "rising, 0 to 6"),
    "twice": (*top([1.0, 2.0], [3, 3]), "not rising"),
    "falling": (*top([1.0, 2.0], [3, 2]), "not rising"),
    "more indices than values": (*top([1.0], [3, 4]), r"float32\[1\] and int32\[2\]"),
    "in rows": (*top([[1.0]], [[3]]), r"float32\[1, 1\]"),
    "other indices": (*top([1.0], [3], **{"index.0:float32": np.array([3], np.int64)}), r"int64\[1\]"),
    "other values": (*top([1.0], [3], **{"gradient.0:float32": np.array([3.0])}), r"float64\[1\]"),
    "no indices": (Part(packing=Packing.TOP), {"gradient.0:float32": np.ones(7, np.float32)}, "other dtypes"),
    "of another dtype": (*top([1.0], [3], **{"gradient.0:float64": np.ones(1)}), "other dtypes"),
    "indices beside all": (Part(), top([1.0], [3])[1], "indices of gradients in a push"),
    "no bfloat16": (
        Part(packing=Packing.BFLOAT16),
        {"gradient.0:float32": np.ones(7, np.float32)},
        "bfloat16.*float32",
    ),
    "counts": (
        Part(group=1, packing=Packing.BFLOAT16),
        {"gradient.1:float32": np.ones(1, BF16)},
        "added to group 1 was made smaller",
    ),
    "no such group": (Part(group=5, packing=Packing.BFLOAT16), {"gradient.5:float32": np.ones(1, BF16)}, "5"),
    "a mask too short": (
        Part(packing=Packing.BFLOAT16, has_gradient=(True,)),
        {"gradient.0:float32": np.ones(7, BF16)},
        "number of gradients",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_one_line(name: str) -> None:
    part, arrays, words = WRONG[name]
    with pytest.raises(InvalidInputError, match=words) as caught:
        expanded(part, arrays)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_server_refuses_a_wrong_push_and_goes_on(mode: Mode) -> None:
    setup = make_setup(mode)
    with serving(1) as cluster:
        servers = Servers(cluster.connect("worker 0"))
        servers.set_up(setup)
        servers.write([{"float32": np.zeros(8, np.float32)}])
        servers.expect(1, step=0)

        def push(part: Part, arrays: dict[str, Any]) -> np.ndarray[Any, Any]:
            servers.begin_push(Push(closure=0), gradients=[arrays], parts=[(part,)], versions=[0])
            return np.array(servers.end_push().dense[0]["float32"])

        with pytest.raises(RemoteError, match="rising, 0 to 6") as caught:
            push(*top([1.0], [9]))
        assert "\n" not in str(caught.value)
        found = push(*top([1.0, 2.0], [0, 5]))
        assert setup.placement.shards[-1].offset == 7
        assert found.tolist() == [-1.0, 0.0, 0.0, 0.0, 0.0, -2.0, 0.0, 0.0], "the wrong one has not counted"


def test_a_synchronous_step_is_the_mean_of_what_each_worker_sent() -> None:
    setup = make_setup(Mode.SYNCHRONOUS)
    with serving(1) as cluster:
        first, second = (Servers(cluster.connect(f"worker {number}")) for number in range(2))
        first.set_up(setup)
        first.write([{"float32": np.zeros(8, np.float32)}])
        first.expect(2, step=0)
        part, arrays = top([1.0, 2.0], [0, 5])
        first.begin_push(Push(closure=0), gradients=[arrays], parts=[(part,)], versions=[0])
        sent = {"gradient.0:float32": np.full(7, 3.0, BF16)}
        bfloat16 = Part(packing=Packing.BFLOAT16)
        second.begin_push(Push(closure=1), gradients=[sent], parts=[(bfloat16,)], versions=[0])
        for servers in (first, second):
            found = servers.end_push().dense[0]["float32"]
            assert found.tolist() == [-2.0, -1.5, -1.5, -1.5, -1.5, -2.5, -1.5, 0.0]
