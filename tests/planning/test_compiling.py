"""Steps compiled for TPUs that are not there, and what is read from them."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.tpu_compiler import needs_tpu_compiler

from lockstep.errors import BackendError, InvalidInputError
from lockstep.planning.compiling import compile_for
from lockstep.planning.measurement import OUTCOME
from lockstep.planning.targets import Target
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, ShardedStrategy, function, programs, value_and_grad
from lockstep.strategies.programs import Program

needs_tpu_compiler()

V5E = Target.parse("v5e:2x4")


@pytest.fixture(autouse=True)
def _no_tpu_here(monkeypatch):
    for name, value in V5E.environment({}).items():
        monkeypatch.setenv(name, value)


class SeenError(Exception):
    """Ends a training at its first step."""


def first_program(train):
    """Returns the first step that a training would run."""
    seen = []

    def see(program):
        seen.append(program)
        raise SeenError

    with programs.watch(see), pytest.raises(SeenError):
        train()
    return seen[0]


def fit_of(make_layers, *, rows, strategy, **options):
    """Returns a function that fits a model made of layers on zeros."""
    with strategy.scope():
        model = keras.Sequential(make_layers())
        model.compile(keras.optimizers.Adam(), "mse", **options)
    shape, outputs = model.input_shape[1:], model.output_shape[1:]
    inputs, targets = np.zeros((3 * rows, *shape), np.float32), np.zeros((3 * rows, *outputs), np.float32)
    return lambda: model.fit(inputs, targets, batch_size=rows, verbose=0)


def dense_layers():
    return [keras.Input((256,)), keras.layers.Dense(512, activation="relu"), keras.layers.Dense(128)]


def test_what_a_dense_net_takes_is_what_it_takes_by_hand():
    program = first_program(fit_of(dense_layers, rows=64, strategy=MirroredStrategy()))
    found = compile_for(program, target=V5E)
    assert (found.num_devices, found.num_rows, found.num_steps, found.refusal) == (8, 64, 3, None)

    weights = 256 * 512 + 512 + 512 * 128 + 128  # already whole tiles, every one
    memory = found.memory
    assert memory.arguments["parameters"] == 4 * weights
    assert 0 <= memory.arguments["optimizer"] - 2 * 4 * weights <= 2048  # two moments, and a few numbers in tiles
    assert memory.arguments["batch"] == 4 * 8 * (256 + 128)  # 8 of the 64 rows
    assert sum(memory.arguments.values()) == memory.arguments_bytes
    assert memory.peak is not None
    assert memory.arguments_bytes <= memory.peak <= memory.total + memory.reused
    assert list(memory.arguments) == ["parameters", "optimizer", "other state", "batch"]

    # Two a weight and row forward, as much for the weights' gradients, and the second layer's for its input.
    by_hand = 2 * 64 * (2 * (256 * 512 + 512 * 128) + 512 * 128)
    assert found.matrix_operations == by_hand
    assert found.work is not None
    assert found.work.operations == found.work.xla_operations  # there is no loop
    # Each chip computes an eighth of that, and updates all weights: Adam's dozen operations a weight.
    assert by_hand / 8 + 8 * weights <= found.work.operations <= by_hand / 8 + 16 * weights
    reduced = [entry for entry in found.work.collectives if entry.kind == "all-reduce"]
    assert found.work.collectives == tuple(reduced)
    assert 4 * weights <= sum(entry.payload_bytes for entry in reduced) <= 4 * weights + 64
    assert found.work.state_bytes >= memory.arguments_bytes + 3 * 4 * weights
    assert OUTCOME.validate_json(OUTCOME.dump_json(found)) == found


def test_a_convolutional_net_on_several_hosts_of_chips_with_two_cores():
    def make_layers():
        return [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(16, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]

    program = first_program(fit_of(make_layers, rows=32, strategy=MirroredStrategy()))
    target = Target.parse("v4:2x2x2")
    found = compile_for(program, target=target)
    assert (target.num_hosts, found.num_devices, found.refusal) == (2, 8, None)
    assert sum(found.memory.arguments.values()) == found.memory.arguments_bytes
    assert found.work is not None
    # The gradients, and the statistics of the whole batch: two of each channel forward, two backward, and more as the
    # compiler likes.
    reduced = sum(entry.payload_bytes for entry in found.work.collectives if entry.kind == "all-reduce")
    gradients = 4 * (27 * 16 + 2 * 16 + 576 * 4 + 4)
    assert gradients + 4 * 4 * 16 <= reduced <= 1.5 * gradients


def test_what_a_step_hands_on_unchanged_takes_no_time():
    def make_layers():
        frozen = keras.layers.Dense(4096, trainable=False)
        return [keras.Input((256,)), frozen, keras.layers.Dense(1)]

    found = compile_for(first_program(fit_of(make_layers, rows=8, strategy=MirroredStrategy())), target=V5E)
    assert found.work is not None
    frozen_bytes = 4 * 257 * 4096
    assert frozen_bytes < found.work.state_bytes < 1.1 * frozen_bytes  # read, and not written


@pytest.mark.parametrize(
    ("use_cudnn", "share"),
    # All products of Keras's own loop are in loops. Lockstep computes the kernels' gradients, a third, after its loop.
    [(False, 0.3), ("auto", 0.5)],
)
def test_a_loop_counts_as_often_as_it_runs(use_cudnn, share):
    def make_layers():
        return [keras.Input((40, 16)), keras.layers.LSTM(64, use_cudnn=use_cudnn), keras.layers.Dense(4)]

    found = compile_for(first_program(fit_of(make_layers, rows=64, strategy=MirroredStrategy())), target=V5E)
    assert found.work is not None
    assert found.work.xla_operations < share * found.matrix_operations / 8
    assert found.matrix_operations / 8 < found.work.operations < 1.2 * found.matrix_operations / 8


def test_an_uneven_batch_is_computed_in_groups():
    program = first_program(fit_of(dense_layers, rows=20, strategy=MirroredStrategy()))
    found = compile_for(program, target=V5E)
    assert found.num_rows == 20
    assert found.work is not None
    assert found.matrix_operations / 4 <= found.work.operations  # 4 groups of 5 rows, each computed twice


def test_one_device_of_a_slice():
    found = compile_for(first_program(fit_of(dense_layers, rows=16, strategy=OneDeviceStrategy())), target=V5E)
    assert found.num_devices == 1
    assert found.work is not None
    assert found.work.collectives == ()


def test_a_custom_loop():
    strategy = MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential(dense_layers())
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)

    def step(rows):
        loss, gradients = value_and_grad(lambda: keras.ops.mean(model(rows) ** 2), model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @function
    def train_step(rows):
        return strategy.run(step, args=(rows,))

    @function
    def look(rows):
        return keras.ops.mean(model(rows))

    rows = next(iter(strategy.experimental_distribute_dataset([np.zeros((64, 256), np.float32)])))

    def train():
        look(np.zeros((8, 256), np.float32))  # trains nothing, and runs
        train_step(rows)

    program = first_program(train)
    assert program.name == "train_step"
    found = compile_for(program, target=V5E)
    assert found.num_rows == 64  # 8 on each replica
    weights = 256 * 512 + 512 + 512 * 128 + 128
    assert found.memory.arguments["parameters"] == 4 * weights
    assert 0 <= found.memory.arguments["optimizer"] - 4 * weights <= 2048
    assert found.matrix_operations == 2 * 64 * (2 * (256 * 512 + 512 * 128) + 512 * 128)


def test_a_pure_step():
    strategy = MirroredStrategy()
    state = strategy.replicate({"w": np.ones((128, 256), np.float32)})

    def pure(state, rows):
        gradient = jax.grad(lambda state: jnp.mean((rows @ state["w"]) ** 2))(state)
        return jax.tree.map(lambda value, change: value - 0.1 * change, state, gradient)

    program = first_program(lambda: strategy.compile(pure)(state, np.ones((64, 128), np.float32)))
    found = compile_for(program, target=V5E)
    assert found.program == "pure"
    assert found.memory.arguments == {"state": 4 * 128 * 256, "batch": 4 * 8 * 128}


def described(shape, spec):
    """Returns an array of which nothing but its place is known."""
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), spec)
    return jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)


def test_what_does_not_fit_is_refused_with_the_reason():
    program = Program(
        name="huge",
        step=jax.jit(lambda state, rows: state + (rows @ state).sum()),
        args=(described((70_000, 70_000), PartitionSpec()), described((64, 70_000), PartitionSpec("batch"))),
        labels=(programs.STATE, programs.BATCH),
    )
    found = compile_for(program, target=V5E)
    assert found.refusal is not None
    assert "15.75G" in found.refusal
    assert (found.work, found.memory.temporaries, found.memory.padded) == (None, None, False)
    assert found.memory.arguments == {"state": 4 * 70_000**2, "batch": 4 * 8 * 70_000}


def test_a_step_over_another_number_of_devices_is_refused():
    program = first_program(fit_of(dense_layers, rows=16, strategy=MirroredStrategy(["cpu:0", "cpu:1"])))
    with pytest.raises(InvalidInputError, match=r"than v5e:2x4 has; received 2; allowed: 8, or 1"):
        compile_for(program, target=V5E)


def test_a_step_that_runs_eagerly_is_refused():
    program = first_program(fit_of(dense_layers, rows=16, strategy=OneDeviceStrategy(), run_eagerly=True))
    with pytest.raises(InvalidInputError, match="run_eagerly"):
        compile_for(program, target=V5E)


def test_without_libtpu_it_says_how_to_install_it(monkeypatch):
    program = first_program(fit_of(dense_layers, rows=16, strategy=OneDeviceStrategy()))
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(BackendError, match=r'install it with: pip install "lockstep-train\[tpu\]"'):
        compile_for(program, target=V5E)


def test_cpus_need_no_libtpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    program = first_program(fit_of(dense_layers, rows=16, strategy=MirroredStrategy()))
    found = compile_for(program, target=Target.parse("cpu:8"))
    assert found.refusal is None
    assert found.work is not None
    assert [entry.kind for entry in found.work.collectives] == ["all-reduce"]


def test_a_sharded_state_takes_its_share():
    strategy = ShardedStrategy(stage=3, min_shard_elements=1024)
    found = compile_for(first_program(fit_of(dense_layers, rows=64, strategy=strategy)), target=V5E)
    kernels, biases = 256 * 512 + 512 * 128, 512 + 128
    assert found.memory.arguments["parameters"] == 4 * (kernels // 8 + biases)
    assert 0 <= found.memory.arguments["optimizer"] - 2 * 4 * (kernels // 8 + biases) <= 2048
    assert found.work is not None
    assert len(found.work.collectives) > 1  # which ones, the compiler decides


@pytest.mark.parametrize(
    ("groups", "rows", "sharing"),
    [
        pytest.param(groups, rows, sharing, id=f"{kind}-{name}")
        for groups, kind in ((1, "dense"), (4, "grouped"), (16, "depthwise"))
        for rows, sharing, name in ((16, 8, "own_rows"), (12, 4, "two_devices_have_the_same"))
    ],
)
@pytest.mark.heavy
def test_gradients_are_summed_over_devices_whose_rows_differ_and_no_batch_is_gathered(rows, sharing, groups):
    """The compiler for TPUs has a partitioner of its own version, which nobody can run here: its text is read."""

    def layers():
        return [
            keras.Input((12, 12, 16)),
            keras.layers.Conv2D(32, 3, groups=groups),
            keras.layers.GlobalAveragePooling2D(),
        ]

    program = first_program(fit_of(layers, rows=rows, strategy=MirroredStrategy()))
    found = compile_for(program, target=V5E).work.collectives
    assert {(one.kind, one.group_size) for one in found} == {("all-reduce", sharing)}
