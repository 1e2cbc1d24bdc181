"""``keras.RematScope``: layers with and without state compute the same as without it, and do compute again."""

import contextlib

import jax
import keras
import numpy as np
import pytest
from keras import layers

import lockstep
from lockstep.strategies import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, ShardedStrategy

CPUS = [f"cpu:{number}" for number in range(4)]
STRATEGIES = {
    "one_device": lambda: OneDeviceStrategy("cpu:0"),
    "mirrored": lambda: MirroredStrategy(CPUS),
    "central_storage": lambda: CentralStorageStrategy(CPUS),
    "sharded": lambda: ShardedStrategy(CPUS, stage=3, min_shard_elements=1),
}
SCOPES = {
    "full": {"mode": "full"},
    "activations": {"mode": "activations"},
    "larger_than": {"mode": "larger_than", "output_size_threshold": 10},
    "list_of_layers": {"mode": "list_of_layers", "layer_names": ["rnn", "dropout", "norm", "inner"]},
}
NUM_ROWS, BATCH_SIZE = 36, 16  # the last batch has four rows


class Scaled(keras.Layer):
    """Adds a loss of its own, and counts its calls, in ``call``."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def compute_output_shape(self, shape):  # by which "larger_than" decides
        return shape

    def call(self, inputs):
        self.count.assign_add(1.0)
        self.add_loss(0.1 * keras.ops.mean(self.scale**2))
        return inputs * self.scale


def words():
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 6, (NUM_ROWS, 5), np.int32)  # 0 is masked
    return tokens, np.tanh(tokens.sum(1, keepdims=True) - 12).astype(np.float32)


def build_model(scope, *, has_rnn=True):
    """Masks or a recurrent layer, dropout, batch statistics, losses of layers, and a model within the model."""
    keras.utils.set_random_seed(1)
    with keras.RematScope(**scope) if scope else contextlib.nullcontext():
        inner = keras.Sequential(
            [layers.Dense(7, activation="tanh", activity_regularizer="l2"), Scaled(), layers.Dropout(0.2)], name="inner"
        )
        stack = [
            layers.Embedding(6, 4, mask_zero=not has_rnn),
            # Keras's own two other modes do not take recurrent layers.
            layers.GRU(8, name="rnn", dropout=0.1) if has_rnn else layers.GlobalAveragePooling1D(),
            layers.BatchNormalization(momentum=0.5, name="norm"),
            layers.Dropout(0.3, name="dropout"),
            inner,
            layers.Dense(1),
        ]
        return keras.Sequential([keras.Input((5,), dtype="int32"), *stack])


def train(strategy, scope, *, has_rnn):
    with strategy.scope():
        model = build_model(scope, has_rnn=has_rnn)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    history = model.fit(*words(), batch_size=BATCH_SIZE, epochs=3, shuffle=False, verbose=0).history
    return model, history


def assert_same(model, history, expected, expected_history):
    assert history.keys() == expected_history.keys()
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, err_msg=name)
    for variable, other in zip(model.variables, expected.variables, strict=True):
        found, wanted = np.asarray(variable.value), np.asarray(other.value)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=variable.path)


@pytest.mark.parametrize(
    ("strategy", "scope", "has_rnn"),
    [
        ("sharded", "full", False),
        ("one_device", "full", True),
        ("mirrored", "full", True),
        ("central_storage", "full", True),
        ("one_device", "larger_than", False),
        ("mirrored", "activations", False),
        ("sharded", "list_of_layers", True),
    ],
)
@pytest.mark.heavy
def test_fit_gives_the_numbers_of_one_device_that_keeps_all_activations(strategy, scope, has_rnn):
    model, history = train(STRATEGIES[strategy](), SCOPES[scope], has_rnn=has_rnn)
    assert_same(model, history, *train(OneDeviceStrategy("cpu:0"), None, has_rnn=has_rnn))
    assert float(np.asarray(model.get_layer("inner").layers[1].count.value)) == 3 * 3, "each step counts once"


@pytest.mark.parametrize(
    ("strategy", "has_rnn"),
    [
        ("mirrored", False),
        *(pytest.param(name, True, marks=pytest.mark.heavy) for name in ("one_device", "mirrored", "sharded")),
    ],
)
def test_a_custom_loop_gives_the_same_numbers(strategy, has_rnn):
    tokens, targets = words()

    def run(scope):
        strategy_here = STRATEGIES[strategy]()
        with strategy_here.scope():
            model = build_model(scope, has_rnn=has_rnn)
            optimizer = keras.optimizers.SGD(0.1)

        def replica_step(rows, wanted):
            def loss_fn():
                errors = keras.ops.mean((model(rows, training=True) - wanted) ** 2, axis=1)
                return lockstep.compute_average_loss(errors) + lockstep.scale_regularization_loss(model.losses)

            loss, gradients = lockstep.value_and_grad(loss_fn, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        step = lockstep.function(lambda batch: strategy_here.reduce("SUM", strategy_here.run(replica_step, batch)))
        batches = [(tokens[:BATCH_SIZE], targets[:BATCH_SIZE])] * 3
        losses = [float(step(batch)) for batch in strategy_here.experimental_distribute_dataset(batches)]
        return model, {"loss": losses}

    assert_same(*run(SCOPES["full"]), *run(None))


@pytest.mark.parametrize("scope", SCOPES)
def test_activations_are_computed_again_for_the_gradients(scope):
    def num_tanh(options):
        OneDeviceStrategy("cpu:0")
        model = build_model(options, has_rnn=False)
        trainable = [variable.value for variable in model.trainable_variables]
        others = [variable.value for variable in model.non_trainable_variables]

        def loss(values):
            outputs, _ = model.stateless_call(values, others, words()[0], training=True)
            return keras.ops.mean(outputs**2)

        return str(jax.make_jaxpr(jax.grad(loss))(trainable)).count(" tanh ")

    assert num_tanh(SCOPES[scope]) > num_tanh(None)


def test_a_model_within_a_scope_can_be_called_outside_of_steps():
    OneDeviceStrategy("cpu:0")
    tokens, _ = words()
    model, expected = build_model(SCOPES["full"]), build_model(None)
    np.testing.assert_allclose(model(tokens), expected(tokens), rtol=1e-6)
    np.testing.assert_allclose(model(tokens, training=True), expected(tokens, training=True), rtol=1e-5, atol=1e-6)
    for variable, other in zip(model.variables, expected.variables, strict=True):
        np.testing.assert_allclose(np.asarray(variable.value), np.asarray(other.value), rtol=1e-5, atol=1e-6)
