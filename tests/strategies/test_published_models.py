"""Published architectures under strategies: a step of each is one device's, quantized and with LoRA too."""

import functools
import zlib
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.strategies.setups import cpus, sharded

from lockstep.strategies import MirroredStrategy, OneDeviceStrategy

pytest.importorskip("keras_hub", reason="the models are KerasHub's, which is an extra")

# isort: split
from tests.strategies.published_models import FAILS, MODELS, STRATEGIES, has_cell, table

NUM_ROWS = 6
"""Over two devices: three on each. Over four: over two of them, and repeated on the others."""

MAKE = {
    "mirrored": lambda layout_map: MirroredStrategy(cpus(2)),
    "sharded_3": lambda layout_map: sharded(4, stage=3),
    "model_parallel": lambda layout_map: sharded(4, model_parallel=2, layout_map=layout_map),
}

IN_MAKE_TEST = {("Gemma", "model_parallel")}
FILTERS = [
    pytest.mark.filterwarnings("ignore:Layer '.*' .of type .*. was passed an input with a mask:UserWarning"),
    pytest.mark.filterwarnings("ignore:`build..` was called on layer:UserWarning"),  # of KerasHub's Flux
]


def cell(name, strategy):
    marks = [] if (name, strategy) in IN_MAKE_TEST else [pytest.mark.heavy]
    if (name, strategy) in FAILS:
        marks.append(pytest.mark.xfail(reason=FAILS[name, strategy], strict=True))
    return pytest.param(name, strategy, marks=[*marks, *FILTERS], id=f"{name}-{strategy}".replace(" ", "_"))


@pytest.mark.parametrize(
    ("name", "strategy"),
    [cell(name, strategy) for name in MODELS for strategy in STRATEGIES if has_cell(name, strategy)],
)
def test_one_step(name, strategy):
    published = MODELS[name]
    check(train(MAKE[strategy](published.layout_map), name), on_one_device(name), most=published.most)


def int8_and_lora(model):
    model.quantize("int8")
    model.enable_lora(2)


def int4_and_lora(model):
    model.quantize("int4")
    model.enable_lora(2)


def lora(model):
    model.enable_lora(2)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method implemented:UserWarning")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("change", [lora, int8_and_lora, int4_and_lora])
@pytest.mark.parametrize("name", ["Gemma", "Llama 3"])
def test_one_step_of_what_is_trained_beside_frozen_weights(name, change, strategy):
    found = train(MAKE[strategy](MODELS[name].layout_map), name, change)
    trained = [path for path, value in found.items() if path.startswith("update") and np.any(value)]
    assert trained
    assert all("lora_kernel" in path for path in trained)
    check(found, on_one_device(name, change), most=1e-3)


def test_the_table_in_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "strategies" / "published_models.md"
    assert len(MODELS) >= 20
    assert table() in page.read_text("utf-8"), table()


def squares(rows, outputs):
    """The loss: squares of how far outputs are from a wave whose height is the row's own."""
    shape = outputs.shape[1:]
    wave = keras.ops.cos(keras.ops.arange(int(np.prod(shape)), dtype="float32"))
    heights = keras.ops.reshape(rows, (-1, *[1] * len(shape)))
    return keras.ops.mean((outputs - heights * keras.ops.reshape(wave, shape)) ** 2, axis=-1)


def make(name, change=None):
    """Builds and compiles a model in the current scope, with weights that depend on their names alone."""
    keras.utils.set_random_seed(5)
    model = MODELS[name].make()
    for variable in model.trainable_variables:
        generator = np.random.default_rng(zlib.crc32(variable.path.encode()))
        variable.assign(np.asarray(variable.value) + generator.normal(scale=0.05, size=variable.shape))
    if change is not None:
        change(model)
    model.compile(keras.optimizers.SGD(0.5), keras.tree.map_structure(lambda _: squares, model.output))
    return model


def values_of(model):
    return {variable.path: np.asarray(variable.value) for variable in model.variables if "seed" not in variable.path}


def train(strategy, name, change=None):
    """Returns the loss, and how one step of ``fit`` changes each variable."""
    keras.utils.clear_session()
    with strategy.scope():
        model = make(name, change)
    generator = np.random.default_rng(3)
    inputs = MODELS[name].inputs(NUM_ROWS, generator)
    rows = generator.normal(size=NUM_ROWS).astype(np.float32)
    before = values_of(model)
    targets = keras.tree.map_structure(lambda _: rows, model.output)
    history = model.fit(inputs, targets, batch_size=NUM_ROWS, shuffle=False, verbose=0)
    updates = {f"update of {path}": value - before[path] for path, value in values_of(model).items()}
    return {"loss": np.array(history.history["loss"]), **updates}


@functools.cache
def on_one_device(name, change=None):
    return train(OneDeviceStrategy("cpu:0"), name, change)


def check(found, expected, *, most):
    assert found.keys() == expected.keys()
    assert sum(bool(np.abs(value).max() > 1e-3) for value in expected.values()) > 2, "something is learned"
    differences = {}
    for name, value in found.items():
        difference = np.linalg.norm(value - expected[name]) / max(np.linalg.norm(expected[name]), 1e-3)
        if not difference <= most:  # NaN neither
            differences[name] = float(difference)
    assert not differences
