"""Precisions by name: chosen by the devices or refused, trained with under strategies, and saved as float32."""

import itertools
import logging
import warnings
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import lockstep
from lockstep.checkpoints import CheckpointDirectory
from lockstep.errors import InvalidInputError
from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, ShardedStrategy
from lockstep.training import BackupAndRestore, choose_precision, set_precision

CPUS = [f"cpu:{number}" for number in range(4)]
NUM_ROWS, BATCH_SIZE = 64, 16
STRATEGIES = {
    "one_device": lambda: OneDeviceStrategy("cpu:0"),
    "mirrored": lambda: MirroredStrategy(CPUS),
    "central_storage": lambda: CentralStorageStrategy(CPUS),
    "sharded": lambda: ShardedStrategy(CPUS, stage=3, min_shard_elements=1),
}
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.02, "float16": 4e-3, "float8": 0.1}
"""How far the losses may be from those of one device: what sums in another order round otherwise."""

EVERY_STRATEGY = pytest.mark.parametrize("strategy", STRATEGIES)


def device(platform, capability=None, kind="NVIDIA A GPU"):
    return SimpleNamespace(platform=platform, compute_capability=capability, device_kind=kind)


CPU, TPU = device("cpu"), device("tpu", kind="TPU v5 lite")
VOLTA, AMPERE, ADA = device("gpu", "7.0"), device("gpu", "8.0"), device("gpu", "8.9")
H100 = device("gpu", "9.0", "NVIDIA H100 80GB HBM3")
BLACKWELL = device("gpu", "12.0")
MI300 = device("gpu", "gfx942", "AMD Instinct MI300X")


@pytest.fixture(autouse=True)
def _policy():
    before = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([CPU, CPU], "float32"),
        ([TPU], "bfloat16"),
        ([VOLTA, VOLTA], "float16"),
        ([AMPERE], "bfloat16"),
        ([BLACKWELL], "bfloat16"),
        ([MI300], "bfloat16"),
        ([AMPERE, VOLTA], "float16"),
        ([AMPERE, CPU], "float32"),
    ],
)
def test_auto_is_the_fastest_that_every_device_has(devices, expected):
    assert choose_precision(devices=devices) == choose_precision("auto", devices=devices) == expected
    assert choose_precision("bfloat16", devices=devices) == "bfloat16"


def test_auto_sets_a_policy_and_says_so(caplog):
    caplog.set_level(logging.INFO, logger="lockstep")
    assert set_precision(devices=[VOLTA]) == "float16"
    assert keras.config.dtype_policy().name == "mixed_float16"
    assert set_precision("float32", devices=[VOLTA]) == "float32"
    assert keras.config.dtype_policy().name == "float32"
    assert caplog.messages == ["precision: float16, the fastest that the devices have"]


def test_the_devices_are_those_of_the_strategy():
    assert choose_precision() == "float32"
    with MirroredStrategy(CPUS).scope(), pytest.raises(InvalidInputError, match="received '4 x cpu'"):
        choose_precision("float8")


def test_parameter_servers_scale_no_losses():
    layout = SimpleNamespace(devices=[VOLTA], runs=object())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lockstep.training.precision.current_layout", lambda: layout)
        assert choose_precision() == "float32"
        layout.devices = [AMPERE]
        assert choose_precision() == "bfloat16"


@pytest.mark.parametrize("devices", [[CPU], [TPU], [AMPERE], [H100, AMPERE], [MI300]])
def test_float8_is_refused_where_a_device_lacks_it(devices):
    before = keras.config.dtype_policy()
    with pytest.raises(InvalidInputError) as refused:
        set_precision("float8", devices=devices)
    assert str(refused.value).startswith("these devices do not compute in float8; received ")
    assert "; allowed: NVIDIA GPUs of compute capability 8.9 or later, such as L4 and H100; use " in str(refused.value)
    assert keras.config.dtype_policy() == before
    assert [choose_precision("float8", devices=[one]) for one in (ADA, H100, BLACKWELL)] == ["float8"] * 3


@pytest.mark.parametrize("name", ["mixed_bfloat16", "half", ""])
def test_another_name_is_refused(name):
    with pytest.raises(InvalidInputError, match=r"a precision; received .*; allowed: auto, float32, bfloat16, float16"):
        set_precision(name)


def make_rows():
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(NUM_ROWS, 12)).astype(np.float32)
    return inputs, inputs @ generator.normal(size=(12, 3)).astype(np.float32)


def make_adam():
    return keras.optimizers.Adam(0.02)


def make_scaled():
    return keras.optimizers.LossScaleOptimizer(make_adam(), initial_scale=2.0**10, dynamic_growth_steps=3)


def make_model(strategy, precision, *, make_optimizer=make_adam):
    """Returns a model that computes in a precision, as if it ran on H100s, whose numbers CPUs imitate."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        assert set_precision(precision, devices=[H100]) == precision
        layers = [keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((12,)), *layers])
        if precision == "float8":
            with warnings.catch_warnings(action="ignore"):  # Keras names each layer that has no float8
                model.quantize("float8")
        model.compile(make_optimizer(), "mse")
    return model


def variables_of(model):
    return [*model.variables, *model.optimizer.variables]


def dtypes_of(arrays):
    return {str(array.dtype) for array in arrays if np.issubdtype(array.dtype, np.floating)}


CELLS = [
    pytest.param(precision, strategy, marks=() if number in (5, 11, 14) else pytest.mark.heavy)
    for number, (precision, strategy) in enumerate(itertools.product(TOLERANCES, STRATEGIES))
]


@pytest.mark.parametrize(("precision", "strategy"), CELLS)
@pytest.mark.heavy
def test_each_precision_learns_as_on_one_device_with_variables_and_checkpoints_of_float32(
    precision, strategy, tmp_path
):
    inputs, targets = make_rows()

    def train(name, *callbacks):
        model = make_model(STRATEGIES[name](), precision)
        options = {"batch_size": BATCH_SIZE, "shuffle": False, "verbose": 0, "callbacks": [*callbacks]}
        return model, model.fit(inputs, targets, epochs=12, **options).history["loss"]

    model, losses = train(strategy, BackupAndRestore(tmp_path))
    assert losses[-1] < 0.2 * losses[0]
    _, expected = train("one_device")
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCES[precision])
    assert {str(variable.dtype) for variable in variables_of(model)} <= {"float32", "int32"}
    with CheckpointDirectory(tmp_path, is_read_only=True) as directory:
        state = directory.restore()
    for group in ("trainable", "non_trainable", "optimizer"):
        assert dtypes_of(state.arrays[group].values()) == {"float32"}, group
    assert model.layers[0].compute_dtype == ("bfloat16" if precision == "float8" else precision)
    assert (model.layers[0].quantization_mode == "float8") == (precision == "float8")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (precision == "float16")


def test_a_run_resumes_in_bfloat16_and_not_with_variables_that_it_lacks(tmp_path):
    inputs, targets = make_rows()

    def train(precision, *, epochs):
        model = make_model(OneDeviceStrategy("cpu:0"), precision)
        options = {"batch_size": BATCH_SIZE, "verbose": 0, "callbacks": [BackupAndRestore(tmp_path)]}
        return model.fit(inputs, targets, epochs=epochs, **options)

    train("float32", epochs=3)
    resumed = train("bfloat16", epochs=4)
    assert resumed.epoch == [3]
    assert np.isfinite(resumed.history["loss"]).all()
    with pytest.raises(
        InvalidInputError, match=r"of another model: optimizer variables differ; .*loss_scale_optimizer"
    ):
        train("float16", epochs=5)


def fit_rows(model, weight):
    """Trains on one batch. The weight of a row can make its gradient larger than float16 can hold."""
    inputs, targets = make_rows()
    weights = np.ones(BATCH_SIZE, np.float32)
    weights[5] = weight
    model.fit(inputs[:BATCH_SIZE], targets[:BATCH_SIZE], sample_weight=weights, batch_size=BATCH_SIZE, verbose=0)


def values_of(variables):
    return [np.asarray(variable.value) for variable in variables]


@EVERY_STRATEGY
def test_an_overflow_changes_no_weight_and_halves_the_scale_which_rises_again(strategy):
    model = make_model(STRATEGIES[strategy](), "float16", make_optimizer=make_scaled)
    optimizer = model.optimizer

    def state():
        return values_of([*model.trainable_variables, *optimizer.inner_optimizer.variables])

    def scale():
        return float(np.asarray(optimizer.dynamic_scale.value))

    fit_rows(model, 1.0)
    before = state()
    for expected in (2.0**9, 2.0**8):
        fit_rows(model, 1e6)
        assert scale() == expected
        for value, wanted in zip(state(), before, strict=True):
            np.testing.assert_array_equal(value, wanted)
    for expected in (2.0**8, 2.0**8, 2.0**9):
        fit_rows(model, 1.0)
        assert scale() == expected
    assert all(np.isfinite(value).all() for value in state())
    assert any((value != wanted).any() for value, wanted in zip(state(), before, strict=True))


def test_a_replica_step_refuses_float8():
    strategy = MirroredStrategy(CPUS)
    model = make_model(strategy, "float8")

    def step(rows):
        def loss_fn():
            return lockstep.compute_average_loss(keras.ops.sum(model(rows, training=True) ** 2, axis=1))

        loss, gradients = lockstep.value_and_grad(loss_fn, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    (batch,) = strategy.experimental_distribute_dataset([make_rows()[0][:8]])
    with pytest.raises(
        InvalidInputError, match=r"strategy.run sums gradients .*; received '.*inputs_.*'; train with fit"
    ):
        strategy.run(step, (batch,))
