"""ZeRO and tensor parallelism: the numbers of one device, and where the bytes lie."""

import contextlib
import functools
import json
import logging
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import keras
import numpy as np
import pytest
from tests.strategies import regression
from tests.strategies.job_processes import job
from tests.strategies.regression import BATCH_SIZE, assert_same, make_rows
from tests.tpu_compiler import needs_tpu_compiler

import lockstep
from lockstep.errors import InvalidInputError
from lockstep.strategies import (
    MirroredStrategy,
    OneDeviceStrategy,
    ShardedStrategy,
    describe_memory,
    measure_memory,
    programs,
)
from lockstep.topology import Topology
from lockstep.training import BackupAndRestore, load_model, save_model

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
"""Keras's variables implement NumPy's ``__array__`` by its older form; saving a model meets it."""

TENSOR_PARALLEL = {
    ".*/first/kernel": (None, "model"),
    ".*/second/kernel": ("model", None),
    ".*first/output": ("batch", "model"),
}


def devices(count):
    return [f"cpu:{index}" for index in range(count)]


def sharded(count, **arguments):
    return ShardedStrategy(devices(count), min_shard_elements=1, **arguments)


def make_model(optimizer=None):
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(24, use_bias=False, name="first"),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(16, activation="relu", name="second"),
            keras.layers.Dense(3, name="third"),
        ]
    )
    # The norm over all gradients, weight decay and averages cross the cuts.
    model.compile(optimizer or keras.optimizers.AdamW(1e-2, global_clipnorm=1.0), "mse", metrics=["mae"])
    return model


train = functools.partial(regression.train, make_model=make_model)


@functools.cache
def on_one_device(make_optimizer=None, **arguments):
    return train(OneDeviceStrategy("cpu:0"), make_optimizer, **arguments)[1]


def program_of_fit(strategy, **arguments):
    """Returns the compiled step of ``fit`` for a net of four layers of 256 by 256."""
    seen = []
    with strategy.scope():
        layers = [keras.layers.Dense(256, activation="relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((256,)), *layers])
        model.compile("adam", "mse", **arguments)
    with programs.watch(seen.append):
        model.fit(np.ones((16, 256), np.float32), np.ones((16, 256), np.float32), batch_size=16, verbose=0)
    return model, seen[0].step.lower(*_again(seen[0].args, model)).compile()


def _again(args, model):
    # The step has used up the state that it was announced with; its shapes and shardings are still known.
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), args)


def collectives(compiled):
    names = re.findall(r" (all-gather|all-reduce|reduce-scatter|all-to-all)(?:-start)?\(", compiled.as_text())
    return Counter(names)


@pytest.mark.parametrize(
    ("stage", "model_parallel", "count"),
    [
        (2, 2, 4),
        *(
            pytest.param(*rest, marks=pytest.mark.heavy)
            for rest in [(1, 1, 3), (2, 1, 2), (3, 1, 4), (3, 1, 8), (1, 2, 4), (2, 4, 4), (3, 2, 8)]
        ),
    ],
)
def test_the_numbers_of_one_device(stage, model_parallel, count):
    layout_map = TENSOR_PARALLEL if model_parallel > 1 else None
    strategy = sharded(count, stage=stage, model_parallel=model_parallel, layout_map=layout_map)
    assert strategy.num_replicas_in_sync == count // model_parallel
    assert len(strategy.devices) == count
    assert_same(train(strategy)[1], on_one_device())


def accumulating():
    return keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3)


def factored():
    return keras.optimizers.Adafactor(1e-2)


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-2, momentum=0.9), dynamic_growth_steps=5)


@pytest.mark.heavy
@pytest.mark.parametrize("make_optimizer", [scaled, accumulating, factored])
def test_other_optimizers(make_optimizer):
    outcome = train(sharded(4, stage=3), make_optimizer, num_epochs=3)[1]
    assert_same(outcome, on_one_device(make_optimizer, num_epochs=3))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_device_holds_its_part(stage):
    with sharded(4, stage=stage).scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    parameters, optimizer, _ = measure_memory(model)
    assert len(parameters.device_bytes) == 4
    cut = {variable.path: variable.value.sharding.is_fully_replicated for variable in model.trainable_variables}
    assert [path for path, whole in cut.items() if not whole] == ([] if stage < 3 else [*cut][:-1])
    if stage == 3:
        # Three numbers of the last layer's bias do not divide by four; all else does.
        assert parameters.max_device_bytes == (parameters.size_bytes - 12) // 4 + 12
        assert parameters.whole == (model.trainable_variables[-1].path,)
    else:
        assert parameters.max_device_bytes == parameters.size_bytes
    whole_bytes = 2 * 12 + 8  # the bias' two moments, the step and the learning rate
    assert optimizer.max_device_bytes == (optimizer.size_bytes - whole_bytes) // 4 + whole_bytes
    table = describe_memory(model)
    assert f"{parameters.max_device_bytes:,} B" in table
    assert ("whole on every device: " in table) == (stage == 3)


@pytest.mark.parametrize("in_scope", [False, True])
@pytest.mark.parametrize(("stage", "model_parallel"), [(1, 1), (2, 1), (3, 2)])
def test_a_custom_loop_cuts_the_state_too(stage, model_parallel, in_scope):
    strategy = sharded(
        4, stage=stage, model_parallel=model_parallel, layout_map=TENSOR_PARALLEL if model_parallel > 1 else None
    )
    with strategy.scope():
        model = make_model()
    optimizer = model.optimizer  # not built: the step builds it

    def replica_step(rows):
        def loss_fn():
            return lockstep.compute_average_loss(keras.ops.sum(model(rows, training=True) ** 2, axis=1))

        loss, gradients = lockstep.value_and_grad(loss_fn, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = lockstep.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, (batch,))))
    (batch,) = strategy.experimental_distribute_dataset([make_rows()[0][:8]])
    with strategy.scope() if in_scope else contextlib.nullcontext():
        step(batch)
        step(batch)
    groups = measure_memory(model)
    with strategy.scope():
        other = make_model()
        other.optimizer.build(other.trainable_variables)
    expected = measure_memory(other)
    assert [group.max_device_bytes for group in groups[:2]] == [group.max_device_bytes for group in expected[:2]]
    assert groups[1].max_device_bytes < groups[1].size_bytes / 1.9


def test_both_axes_cut():
    strategy = sharded(8, stage=3, model_parallel=2, layout_map=TENSOR_PARALLEL)
    with strategy.scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
    kernel = model.get_layer("second").kernel.value
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(12, 4)}
    moments = [variable for variable in model.optimizer.variables if tuple(variable.shape) == (24, 16)]
    assert len(moments) == 2
    assert all({shard.data.shape for shard in moment.value.addressable_shards} == {(12, 4)} for moment in moments)


def test_small_tensors_stay_whole():
    with ShardedStrategy(devices(4)).scope():
        model = make_model()
    parameters, *_ = measure_memory(model)
    assert parameters.num_cut == 0
    assert len(parameters.whole) == len(model.trainable_variables)


def test_the_compiled_step_moves_what_its_stage_says():
    argument_bytes, moved = {}, {}
    for stage in (0, 1, 2, 3):
        strategy = MirroredStrategy(devices(4)) if stage == 0 else ShardedStrategy(devices(4), stage=stage)
        _, compiled = program_of_fit(strategy)
        argument_bytes[stage] = compiled.memory_analysis().argument_size_in_bytes
        moved[stage] = collectives(compiled)
    size_bytes = 4 * 256 * 256 * 4  # of the kernels; biases and the batch are small beside it
    assert argument_bytes[0] == pytest.approx(3 * size_bytes, rel=0.02)
    assert argument_bytes[1] == argument_bytes[2] == pytest.approx((1 + 2 / 4) * size_bytes, rel=0.02)
    assert argument_bytes[3] == pytest.approx(3 / 4 * size_bytes, rel=0.04)
    assert moved[0]["all-gather"] == 0
    assert moved[0]["all-reduce"] > 0
    for stage in (1, 2, 3):  # each kernel is brought together: once updated, or before it is used
        assert moved[stage]["all-gather"] >= 4
        assert moved[stage]["all-to-all"] == 0
        # XLA on CPUs sums the whole gradient and takes a slice of it; elsewhere it may scatter the sums.
        assert moved[stage]["all-reduce"] + moved[stage]["reduce-scatter"] > 0


def test_a_model_axis_needs_no_sum_of_the_gradients_that_it_cuts():
    layout_map = {".*/kernel": (None, "model"), ".*/bias": ("model",)}
    strategy = ShardedStrategy(devices(2), stage=1, model_parallel=2, layout_map=layout_map)
    _, compiled = program_of_fit(strategy)
    assert compiled.memory_analysis().argument_size_in_bytes == pytest.approx(3 * 4 * 256 * 256 * 4 / 2, rel=0.04)


@pytest.mark.heavy
def test_single_batches_and_steps_per_execution():
    inputs, targets = make_rows()
    with sharded(4).scope():
        model = make_model()
        model.compile("sgd", "mse", steps_per_execution=2)
    model.fit(inputs, targets, batch_size=BATCH_SIZE, verbose=0)
    assert np.isfinite(model.train_on_batch(inputs[:7], targets[:7])).all()
    assert np.isfinite(model.test_on_batch(inputs[:5], targets[:5])).all()
    assert model.predict_on_batch(inputs[:3]).shape == (3, 3)


def test_eager_steps():
    inputs, _ = make_rows()
    outcomes = []
    layout_map = {".*/kernel": (None, "model"), ".*/output": ("batch", "model")}
    for strategy in (OneDeviceStrategy("cpu:0"), sharded(4, model_parallel=2, layout_map=layout_map)):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4), keras.layers.Dense(4)])
            model.compile("sgd", "mse", run_eagerly=True)
        model.fit(inputs[:8], inputs[:8, :4], batch_size=8, verbose=0)
        outcomes.append([np.asarray(variable.value) for variable in model.variables])
        assert model.predict(inputs[:8], batch_size=8, verbose=0).shape == (8, 4)
    for value, wanted in zip(*outcomes, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("forward", [True, False])
def test_a_model_moves_between_strategies(tmp_path, forward):
    strategies = [sharded(4), OneDeviceStrategy("cpu:0")]
    source, target = strategies if forward else reversed(strategies)
    model, _ = train(source, num_epochs=1)
    inputs, _ = make_rows()
    predictions = model.predict(inputs, verbose=0)
    save_model(model, tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    with target.scope():
        loaded = load_model(tmp_path / "model.keras")
        fresh = make_model()
        fresh.optimizer.build(fresh.trainable_variables)  # Keras loads its state into what is there
    fresh.load_weights(tmp_path / "model.weights.h5")
    for found in (loaded, fresh):
        for variable in found.variables:
            assert variable.value.sharding.device_set == set(target.devices)
        np.testing.assert_allclose(found.predict(inputs, verbose=0), predictions, rtol=1e-4, atol=1e-5)
    for variable, wanted in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(wanted.value))
    cut = [variable for variable in loaded.optimizer.variables if not variable.value.sharding.is_fully_replicated]
    assert bool(cut) == (not forward)


@pytest.mark.heavy  # two processes save and restore checkpoints below
@pytest.mark.parametrize("forward", [True, False])
def test_a_checkpoint_moves_between_strategies(tmp_path, forward):
    inputs, targets = make_rows()

    def fit(strategy, epochs, callbacks=()):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = make_model()
        model.fit(
            inputs, targets, batch_size=BATCH_SIZE, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
        )
        return [np.asarray(variable.value) for variable in model.variables]

    expected = fit(OneDeviceStrategy("cpu:0"), 2)
    strategies = [sharded(4), OneDeviceStrategy("cpu:0")]
    first, second = strategies if forward else reversed(strategies)
    fit(first, 1, [BackupAndRestore(tmp_path)])
    for value, wanted in zip(fit(second, 2, [BackupAndRestore(tmp_path)]), expected, strict=True):
        assert np.linalg.norm(value - wanted) <= 1e-5 * max(1, np.linalg.norm(wanted))


def test_keras_own_layout_map_is_taken():
    mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices(2))
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map[".*/first/kernel"] = (None, "model")
    with sharded(4, stage=1, model_parallel=2, layout_map=layout_map).scope():
        model = make_model()
    kernel = model.get_layer("first").kernel.value
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(12, 12)}


def published_map(mesh):
    """Stands for what a model publishes: a map of every size's axes over the mesh that it gets."""
    assert (mesh.shape, mesh.axis_names) == ((2, 2), ["batch", "model"])
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map[".*/first/kernel"] = ("batch", "model")
    layout_map[".*/third/kernel"] = (None, "model")  # which two devices do not divide
    return layout_map


@pytest.mark.parametrize("stage", [1, pytest.param(3, marks=pytest.mark.heavy)])
def test_a_published_map_is_taken_and_what_it_does_not_fit_stays_whole(stage, caplog):
    with caplog.at_level(logging.WARNING):
        model, found = train(sharded(4, stage=stage, model_parallel=2, layout_map=published_map))
    assert_same(found, on_one_device())
    kernel = model.get_layer("first").kernel.value
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(6, 12)}
    (warning,) = [record.getMessage() for record in caplog.records if "does not fit" in record.getMessage()]
    assert "third/kernel of shape (16, 3) (None, model)" in warning


def test_frozen_and_quantized_weights_are_divided_as_others_at_stage_three():
    with sharded(4, stage=3).scope():
        layer = keras.layers.Dense(24)
        layer.build((None, 12))
        layer.quantize("int8")
        layer.enable_lora(4)
    assert {shard.data.shape for shard in layer._kernel.value.addressable_shards} == {(12, 6)}
    assert (layer._kernel.dtype, layer._kernel.trainable) == ("int8", False)


def test_a_pattern_that_matches_nothing_is_told(caplog):
    OneDeviceStrategy()  # what it puts around Keras's optimizers is beside what this strategy does
    with caplog.at_level(logging.WARNING), sharded(2, model_parallel=2, layout_map={"first": (None, "model")}).scope():
        model = make_model()
        model.optimizer.build(model.trainable_variables)
        make_model().optimizer.build(model.trainable_variables)
    warnings = [record.getMessage() for record in caplog.records if "layout map" in record.getMessage()]
    assert len(warnings) == 1
    assert "'first'" in warnings[0]
    assert model.trainable_variables[0].path in warnings[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stage": 4}, r"the stage of ShardedStrategy; received 4; allowed: 1, 2, 3"),
        ({"model_parallel": 3}, "model_parallel.*received 3; allowed: a divisor of the 4 devices"),
        ({"model_parallel": 0}, "model_parallel.*received 0"),
        ({"layout_map": {"x": (None, "model")}}, "model axis, which has one device"),
        ({"layout_map": {"x": "model"}}, "the axes of 'x' in the layout map; received 'model'"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        ShardedStrategy(devices(4), **arguments)


@pytest.mark.parametrize("axes", [("model",), (None, "batch"), (None, "nonsense"), ("model", None)])
def test_a_layout_map_that_does_not_fit(axes):
    num_devices = 5 if "model" in axes else 7  # of a kernel of shape (12, 24)
    strategy = sharded(num_devices, model_parallel=5 if "model" in axes else 1, layout_map={".*/first/kernel": axes})
    with strategy.scope(), pytest.raises(InvalidInputError, match=r"does not fit variable .*first/kernel of shape"):
        make_model()


def test_two_patterns_for_one_path():
    layout_map = {".*/first/kernel": (None, "model"), ".*/kernel": (None, "model")}
    with (
        sharded(2, model_parallel=2, layout_map=layout_map).scope(),
        pytest.raises(InvalidInputError, match="matches multiple layout"),
    ):
        make_model()


def test_a_job_of_several_processes_takes_all_devices():
    topology = Topology.from_env(
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'}
    )
    with pytest.raises(InvalidInputError, match="a job of several processes does not choose"):
        ShardedStrategy(devices(2), cluster_resolver=topology)


def test_it_says_what_it_is():
    assert sharded(4, stage=2).describe() == "ShardedStrategy over 4 x cpu, stage 2"
    assert "2 devices a model" in sharded(4, model_parallel=2).describe()


@pytest.mark.heavy
@pytest.mark.parametrize(("stage", "model_parallel"), [(3, 1), (1, 2), (3, 2)])
def test_two_processes_give_the_numbers_of_one_device(tmp_path, stage, model_parallel):
    root = Path(__file__).parents[2]
    env = {"JAX_NUM_CPU_DEVICES": "2", "NPROC": "8", "FOLDER": str(tmp_path), "PYTHONPATH": str(root)}
    script = Path(__file__).with_name("sharded_workers.py")
    with job(tmp_path, [script, stage, model_parallel], num_processes=2, env=env) as processes:
        expected = on_one_device()
        for process in processes.values():
            assert process.end() == 0, process.text
    assert not (tmp_path / "1.keras").exists()
    for rank in range(2):
        found = np.load(tmp_path / f"{rank}.npz")
        variables = [found[name] for name in found.files if name != "predictions"]
        assert_same(
            {"variables": variables, "predictions": [found["predictions"]]},
            {name: expected[name] for name in ("variables", "predictions")},
        )
    with OneDeviceStrategy("cpu:0").scope():
        loaded = load_model(tmp_path / "0.keras")
    np.testing.assert_allclose(
        loaded.predict(make_rows()[0], verbose=0), expected["predictions"][0], rtol=1e-3, atol=1e-5
    )


@pytest.mark.heavy
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_on_tpus_gradients_are_scattered_under_every_stage(stage, tmp_path):
    needs_tpu_compiler()
    results = tmp_path / "results.json"
    program = Path(__file__).parents[2] / "benchmarks" / "strategies.py"
    command = [sys.executable, program, f"--strategies=sharded-{stage}", f"--folder={tmp_path}", f"--json={results}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    (found,) = (result["more"] for result in json.loads(results.read_text())["results"])
    assert "4 reduce-scatter" in found["collectives, v5e:2x2"]
    assert "4 all-gather" in found["collectives, v5e:2x2"]
    parameters, optimizer = found["parameters"], found["optimizer"]
    assert parameters == pytest.approx(4 if stage == 3 else 16, rel=0.01)  # MiB
    assert optimizer == pytest.approx(8, rel=0.01)
