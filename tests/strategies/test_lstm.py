import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import lockstep
from lockstep.strategies import lstm

FEATURES, UNITS, STEPS, ROWS = 3, 4, 5, 6


@pytest.fixture(autouse=True)
def _replaced():
    lockstep.strategies.OneDeviceStrategy()


@pytest.fixture
def num_runs(monkeypatch):
    """A list that has an entry for each layer that was traced with the replaced loop."""
    runs = []
    run = lstm.run_steps
    monkeypatch.setattr(lstm, "run_steps", lambda *args: runs.append(args) or run(*args))
    return runs


def layers_of(**options):
    """Two layers with the same weights: one runs the replaced loop, the other one Keras's."""
    rng = np.random.default_rng(0)
    options = {"recurrent_initializer": "glorot_uniform", **options}  # the default has no half precision
    ours, keras_own = (keras.layers.LSTM(UNITS, use_cudnn=use_cudnn, **options) for use_cudnn in ("auto", False))
    for layer in (ours, keras_own):
        layer.build((ROWS, STEPS, FEATURES))
    weights = [rng.normal(size=weight.shape).astype(weight.dtype) for weight in ours.weights]
    ours.set_weights(weights)
    keras_own.set_weights(weights)
    return ours, keras_own


def inputs_of(dtype=np.float32):
    rng = np.random.default_rng(1)
    return jnp.asarray(rng.normal(size=(ROWS, STEPS, FEATURES)), dtype)


def as_function(layer, **options):
    """Returns a function of weights, inputs and states that returns one number which depends on all outputs."""
    others = [variable.value for variable in layer.non_trainable_variables]

    def total(weights, inputs, states):
        outputs, _ = layer.stateless_call(weights, others, inputs, initial_state=states, **options)
        return sum(jnp.sum(jnp.sin(output.astype("float32"))) for output in jax.tree.leaves(outputs))

    return total


def arguments_of(layer):
    rng = np.random.default_rng(2)
    states = [jnp.asarray(rng.normal(size=(ROWS, UNITS)), jnp.float32) for _ in range(2)]
    return [variable.value for variable in layer.trainable_variables], inputs_of(), states


def assert_close(found, expected, tolerance=2e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), found, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_sequences": True},
        {"return_state": True},
        {"return_sequences": True, "return_state": True, "go_backwards": True},
        {"go_backwards": True},
        {"use_bias": False, "return_sequences": True},
    ],
    ids=str,
)
def test_outputs_states_and_gradients_are_keras_s(options, num_runs):
    ours, keras_own = layers_of(**options)
    arguments = arguments_of(ours)
    found, expected = (
        jax.jit(jax.value_and_grad(as_function(layer), argnums=(0, 1, 2)))(*arguments) for layer in (ours, keras_own)
    )
    assert len(num_runs) == 1
    assert_close(found, expected)
    assert_close(ours(inputs_of()), keras_own(inputs_of()))


@pytest.mark.parametrize(("argnums", "num_products"), [((0,), 4), ((0, 1), 5)], ids=["weights", "weights and inputs"])
def test_a_gradient_has_one_product_for_both_kernels_and_none_for_inputs_that_need_none(argnums, num_products):
    ours, keras_own = layers_of()
    traced = [
        str(jax.make_jaxpr(jax.grad(as_function(layer), argnums=argnums))(*arguments_of(layer)))
        for layer in (ours, keras_own)
    ]
    # Ours has one in a loop that nothing reads, which XLA removes.
    assert [program.count("dot_general[") for program in traced] == [num_products, num_products + 1]


def test_forward_mode_and_second_derivatives_are_keras_s():
    ours, keras_own = layers_of(return_sequences=True)
    arguments = arguments_of(ours)
    directions = jax.tree.map(jnp.cos, arguments)

    def both(layer):
        gradients = jax.grad(as_function(layer), argnums=(0, 1, 2))
        return jax.jvp(as_function(layer), arguments, directions), jax.jvp(gradients, arguments, directions)[1]

    assert_close(both(ours), both(keras_own), tolerance=1e-4)


def test_dropout_of_inputs_is_the_same(num_runs):
    ours, keras_own = layers_of(dropout=0.5, seed=3)
    found, expected = (layer(inputs_of(), training=True) for layer in (ours, keras_own))
    assert len(num_runs) == 1
    assert_close(found, expected)
    assert not np.allclose(found, ours(inputs_of(), training=False))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "mixed_bfloat16"])
def test_half_precision_keeps_its_dtypes_and_is_as_exact_as_keras(dtype, num_runs):
    ours, keras_own = layers_of(dtype=keras.DTypePolicy(dtype))
    exact, _ = layers_of()
    exact.set_weights([np.asarray(weight.value, np.float32) for weight in ours.weights])
    inputs = inputs_of(jnp.bfloat16)
    found, expected, exact = (layer(inputs) for layer in (ours, keras_own, exact))
    assert len(num_runs) == 2
    assert found.dtype == expected.dtype
    errors = [float(jnp.abs(output.astype("float32") - exact).max()) for output in (found, expected)]
    assert errors[0] <= errors[1] + 0.02


@pytest.mark.parametrize(
    "options",
    [
        {"unroll": True},
        {"activation": "relu"},
        {"recurrent_activation": "hard_sigmoid"},
        {"recurrent_dropout": 0.2},
        {"implementation": 1},
    ],
    ids=str,
)
def test_other_layers_run_as_keras_has_them(options, num_runs):
    ours, keras_own = layers_of(**options)
    assert_close(ours(inputs_of()), keras_own(inputs_of()))
    assert num_runs == []


def test_a_layer_with_a_mask_runs_as_keras_has_it(num_runs):
    ours, keras_own = layers_of(return_sequences=True)
    mask = jnp.arange(STEPS)[None] < jnp.array([5, 1, 3, 2, 4, 5])[:, None]
    assert_close(ours(inputs_of(), mask=mask), keras_own(inputs_of(), mask=mask))
    assert num_runs == []


def test_states_stay_from_batch_to_batch(num_runs):
    ours, keras_own = layers_of(stateful=True)
    for _ in range(2):
        assert_close(ours(inputs_of()), keras_own(inputs_of()))
    assert len(num_runs) == 2


def test_a_batch_that_several_devices_share_is_not_gathered():
    strategy = lockstep.strategies.MirroredStrategy(devices=["cpu:0", "cpu:1"])
    ours, _ = layers_of()
    mesh = jax.sharding.Mesh(jax.devices()[:2], "batch")
    by_rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    copied = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    assert strategy.num_replicas_in_sync == 2
    weights, inputs, states = arguments_of(ours)
    gradients = jax.jit(jax.grad(as_function(ours)), in_shardings=(copied, by_rows, by_rows), out_shardings=copied)
    program = gradients.lower(weights, inputs, states).compile().as_text()
    assert "all-reduce" in program
    assert "all-gather" not in program
    assert "all-to-all" not in program
    assert_close(gradients(weights, inputs, states), jax.grad(as_function(ours))(weights, inputs, states))


@pytest.mark.parametrize("kind", ["cell", "gru", "stacked", "subclass"])
def test_other_recurrent_layers_run_as_keras_has_them(kind, num_runs):
    class Cell(keras.layers.LSTMCell):
        def call(self, inputs, states, training=False):
            output, states = super().call(inputs, states, training=training)
            return -output, states

    layers = {
        "cell": lambda: keras.layers.RNN(keras.layers.LSTMCell(UNITS)),
        "gru": lambda: keras.layers.GRU(UNITS),
        "stacked": lambda: keras.layers.RNN([keras.layers.LSTMCell(UNITS), keras.layers.LSTMCell(UNITS)]),
        "subclass": lambda: keras.layers.LSTM(UNITS),
    }
    layer = layers[kind]()
    if kind == "subclass":
        layer.cell = Cell(UNITS)
    assert layer(inputs_of()).shape == (ROWS, UNITS)
    assert num_runs == []
