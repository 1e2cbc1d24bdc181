"""Which arrays travel together, and that they do."""

import math
import re

import hypothesis.strategies as some
import jax
import keras
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import NamedSharding, PartitionSpec

from lockstep.errors import InvalidInputError
from lockstep.strategies import MirroredStrategy, programs
from lockstep.strategies.current import get_replica_context
from lockstep.strategies.loops.collectives import DEFAULT_BUCKET_BYTES, CommunicationOptions, all_sum, plan_buckets
from lockstep.strategies.loops.gradients import value_and_grad
from lockstep.strategies.loops.lifting import function
from lockstep.strategies.loops.replica import PerReplica, ReduceOp
from lockstep.strategies.mesh import BATCH_AXIS


def test_buckets_fill_from_the_last_array_on():
    sizes = [("float32", 40), ("float32", 30), ("bfloat16", 10), ("float32", 60)]
    assert plan_buckets(sizes, bucket_bytes=100) == ((3, 1), (2,), (0,))
    assert plan_buckets(sizes, bucket_bytes=1) == ((3,), (2,), (1,), (0,))
    assert plan_buckets(sizes, bucket_bytes=1000) == ((3, 1, 0), (2,))


@given(
    some.lists(some.tuples(some.sampled_from(["float32", "bfloat16", "int32"]), some.integers(0, 200))),
    some.integers(1, 300),
)
def test_every_array_travels_once_and_no_bucket_is_too_full(arrays, bucket_bytes):
    buckets = plan_buckets(arrays, bucket_bytes=bucket_bytes)
    assert sorted(position for bucket in buckets for position in bucket) == list(range(len(arrays)))
    for bucket in buckets:
        assert len({arrays[position][0] for position in bucket}) == 1
        assert len(bucket) == 1 or sum(arrays[position][1] for position in bucket) <= bucket_bytes
        assert list(bucket) == sorted(bucket, reverse=True)


@pytest.mark.parametrize(("bytes_per_pack", "num_buckets"), [(0, 1), (4 * 66, 4), (1, 6)])
def test_gradients_of_a_step_travel_in_buckets(bytes_per_pack, num_buckets):
    # From the last layer on: 1 + 8 + 8, 64, 8, and 64 numbers, where a bucket takes 66.
    options = CommunicationOptions(bytes_per_pack=bytes_per_pack)
    strategy = MirroredStrategy([f"cpu:{index}" for index in range(4)], communication_options=options)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), *[keras.layers.Dense(8) for _ in range(2)], keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD()

    def step(rows):
        loss, gradients = value_and_grad(lambda: keras.ops.sum(model(rows)), model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    train_step = function(lambda rows: strategy.run(step, args=(rows,)))
    rows = PerReplica(
        jax.device_put(
            np.ones((4, 2, 8), np.float32), NamedSharding(strategy.layout.data_mesh(4), PartitionSpec("batch"))
        )
    )
    assert len(re.findall(r"stablehlo\.all_reduce", train_step.lower(rows).as_text())) == num_buckets
    compiled = re.findall(r"= .* all-reduce\(", train_step.lower(rows).compile().as_text())
    assert 1 <= len(compiled) <= num_buckets  # XLA may join what is ready together


@pytest.mark.parametrize(("platform", "is_concatenated"), [("cpu", False), ("tpu", True)])
def test_how_a_bucket_is_packed_is_chosen_for_the_platform_of_the_program(platform, is_concatenated):
    def step(first, second):
        return all_sum([first, second], options=CommunicationOptions())

    mesh = jax.sharding.Mesh(jax.devices()[:2], (BATCH_AXIS,))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=PartitionSpec(BATCH_AXIS), out_specs=PartitionSpec())
    rows = jax.ShapeDtypeStruct((4, 3), np.float32)
    program = jax.jit(mapped).trace(rows, rows).lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.concatenate" in program, "dynamic_update_slice" in program) == (
        is_concatenated,
        not is_concatenated,
    )


def test_what_all_replicas_sum_to():
    strategy = MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"])

    def step():
        context = get_replica_context()
        number = context.replica_id_in_sync_group + 1.0
        tree = {"whole": number.astype("int32"), "half": [number, number * 10]}
        gathered = context.all_gather(keras.ops.reshape(number, (1,)), axis=0)
        return context.all_reduce("sum", tree), context.all_reduce(ReduceOp.MEAN, number), gathered

    summed, mean, gathered = strategy.run(step)
    assert [int(value) for value in summed["whole"].values] == [6, 6, 6]
    assert [float(value) for value in summed["half"][1].values] == [60, 60, 60]
    assert [float(value) for value in mean.values] == [2, 2, 2]
    assert [value.tolist() for value in gathered.values] == [[1, 2, 3]] * 3


@pytest.mark.parametrize("options", [{"bytes_per_pack": -1}, {"timeout_seconds": 0}, {"timeout_seconds": float("inf")}])
def test_options_out_of_range(options):
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        CommunicationOptions(**options)


def test_a_bucket_has_a_size_by_default():
    assert CommunicationOptions().bucket_bytes == DEFAULT_BUCKET_BYTES
    assert CommunicationOptions(bytes_per_pack=7).bucket_bytes == 7


def test_under_fit_the_compiler_joins_the_gradients():
    # What XLA makes of one global program on CPUs; other platforms join by their own thresholds. See docs/strategies.
    with MirroredStrategy([f"cpu:{index}" for index in range(4)]).scope():
        model = keras.Sequential([keras.Input((8,)), *[keras.layers.Dense(8) for _ in range(2)], keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    seen = []
    with programs.watch(seen.append):
        model.fit(np.ones((8, 8), np.float32), np.ones((8, 1), np.float32), batch_size=8, verbose=0)
    compiled = seen[0].step.lower(*seen[0].args).compile().as_text()
    reduced = [line for line in compiled.splitlines() if re.search(r"= .* all-reduce\(", line)]
    shapes = re.findall(r"f32\[([0-9,]*)\]", "".join(line.split(" all-reduce(")[0] for line in reduced))
    sizes = [math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes]
    loss = [1]
    assert sorted(sizes) == sorted([math.prod(variable.shape) for variable in model.trainable_variables] + loss)
    assert len(reduced) < len(model.trainable_variables)
