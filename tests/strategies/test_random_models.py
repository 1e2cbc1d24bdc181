"""Random functional models give the numbers of one device: what no list of layers thought of."""

import zlib

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from keras import layers
from tests.strategies.layer_strategies import STRATEGIES

from lockstep.strategies import OneDeviceStrategy

RATE = 0.1
MOST = 1e-4
NUM_CLASSES = 3
DRAWN = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a smaller model takes as long to compile: shrinking would take hours
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Choices:
    """Makes a model's choices from drawn numbers: the same ones each time the model is built."""

    def __init__(self, numbers):
        self._numbers = iter(numbers)

    def of(self, *options):
        return options[next(self._numbers, 0) % len(options)]


def more_of_images(x, choices):
    """Returns a tensor of images, of shape (rows, height, width, channels), after one layer more."""
    channels = x.shape[-1]
    is_small = min(x.shape[1:3]) < 4
    options = {"padding": "same", "activation": choices.of("relu", "tanh", "gelu", "swish", None)}
    options["strides"], options["dilation_rate"] = choices.of((1, 1), (1, 2), (1, 1) if is_small else (2, 1))
    size = choices.of(1, 2, 3)
    match choices.of("conv", "grouped", "depthwise", "separable", "norm", "join", "pool", "shift", "resize", "attend"):
        case "conv":
            return layers.Conv2D(choices.of(4, 6), size, **options)(x)
        case "grouped":
            groups = choices.of(*[number for number in (2, 3, 4) if channels % number == 0] or [1])
            return layers.Conv2D(groups * choices.of(1, 2), size, groups=groups, **options)(x)
        case "depthwise":
            return layers.DepthwiseConv2D(size, depth_multiplier=choices.of(1, 2), **options)(x)
        case "separable":
            return layers.SeparableConv2D(4, size, **options)(x)
        case "norm":
            kinds = (layers.BatchNormalization, layers.LayerNormalization, layers.UnitNormalization)
            return choices.of(*kinds)()(layers.Activation("tanh")(x))
        case "join":
            other = layers.Conv2D(channels, size, padding="same")(x)
            return choices.of(layers.Add, layers.Multiply, layers.Concatenate, layers.Maximum)()([x, other])
        case "pool" if not is_small:
            return choices.of(layers.MaxPooling2D, layers.AveragePooling2D)(2, padding="same")(x)
        case "shift":
            return layers.Cropping2D(((0, 1), (1, 0)))(layers.ZeroPadding2D(1)(x))
        case "resize":
            return layers.Resizing(5, 6, interpolation="bilinear")(layers.UpSampling2D(2)(x))
        case _:
            scale = layers.Dense(channels, activation="sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(x))
            return layers.Multiply()([x, scale])


def more_of_series(x, choices):
    """Returns a tensor of series, of shape (rows, steps, channels), after one layer more."""
    channels = x.shape[-1]
    groups = 2 if channels % 2 == 0 else 1
    match choices.of("conv", "depthwise", "lstm", "gru", "heads", "attention", "norm", "batch", "join", "turn", "each"):
        case "conv":
            return layers.Conv1D(2 * groups, 2, groups=groups, padding=choices.of("causal", "same"))(x)
        case "depthwise":
            return layers.DepthwiseConv1D(2, padding="same", depth_multiplier=choices.of(1, 2))(x)
        case "lstm":
            return layers.LSTM(4, return_sequences=True)(x)
        case "gru":
            return layers.Bidirectional(layers.GRU(3, return_sequences=True))(x)
        case "heads":
            return layers.MultiHeadAttention(2, 3)(x, x)
        case "attention":
            return layers.Attention()([x, layers.Dense(channels)(x)])
        case "norm":
            return layers.LayerNormalization()(x)
        case "batch":
            return layers.BatchNormalization()(layers.Activation("tanh")(x))
        case "join":
            return layers.Add()([x, layers.Dense(channels, activation="tanh")(x)])
        case "turn":
            return layers.Permute((2, 1))(x)
        case _:
            return layers.TimeDistributed(layers.Dense(4, activation="swish"))(x)


def make_model(numbers):
    """Builds a model in the current scope; the numbers decide its layers, their names its weights."""
    keras.utils.set_random_seed(5)
    choices = Choices(numbers)
    shape, more = choices.of(((8, 7, 4), more_of_images), ((6, 4), more_of_series))
    inputs = keras.Input(shape)
    x, met = inputs, []
    for _ in range(choices.of(2, 3, 4, 5)):
        x = more(x, choices)
        met.append(x)
    ends = [met[-1], choices.of(*met)]  # a second end, often in the middle
    flat = layers.Concatenate()([layers.Flatten()(layers.Activation("tanh")(end)) for end in ends])
    model = keras.Model(inputs, layers.Dense(NUM_CLASSES)(flat))
    model.compile(keras.optimizers.SGD(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for variable in model.trainable_variables:
        generator = np.random.default_rng(zlib.crc32(variable.path.encode()))
        variable.assign(np.asarray(variable.value) + generator.normal(scale=0.2, size=variable.shape))
    return model


def train(strategy, numbers, num_rows):
    """Returns the model's predictions, its loss, and its values after a step."""
    keras.utils.clear_session()  # layers are named as in any other run
    with strategy.scope():
        model = make_model(numbers)
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(num_rows, *model.input_shape[1:])).astype(np.float32)
    labels = generator.integers(0, NUM_CLASSES, num_rows)
    predictions = model.predict(inputs, batch_size=num_rows, verbose=0)
    history = model.fit(inputs, labels, batch_size=num_rows, shuffle=False, verbose=0)
    values = {variable.path: np.asarray(variable.value) for variable in model.variables}
    return {"predictions": predictions, "loss": np.array(history.history["loss"]), **values}


def check(numbers, strategy, num_rows):
    expected = train(OneDeviceStrategy("cpu:0"), numbers, num_rows)
    found = train(STRATEGIES[strategy](), numbers, num_rows)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        difference = np.linalg.norm(value - expected[name]) / max(np.linalg.norm(expected[name]), 1e-2)
        assert difference <= MOST, name


drawn = given(
    numbers=st.lists(st.integers(0, 999), min_size=40, max_size=40),
    strategy=st.sampled_from(sorted(STRATEGIES)),
    num_rows=st.sampled_from([8, 6, 2, 7, 10]),
)


@drawn
@settings(DRAWN, max_examples=2)
def test_a_few(numbers, strategy, num_rows):
    check(numbers, strategy, num_rows)


@pytest.mark.product
@pytest.mark.timeout(3600)
@drawn
@settings(DRAWN, max_examples=200)
def test_two_hundred(numbers, strategy, num_rows):
    check(numbers, strategy, num_rows)
