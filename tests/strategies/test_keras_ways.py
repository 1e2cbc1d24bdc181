"""What goes into ``fit``, and what it trains with: each is compared with Keras on one device, without any strategy.

Each test combines several of the features; the heavy ones take them in other combinations.
"""

from typing import Any

import grain
import jax
import keras
import numpy as np
import pytest
from keras import layers
from tests.strategies.keras_ways import (
    BATCH_SIZE,
    NUM_ROWS,
    check,
    conv_net,
    digits,
    row_weights,
    token_net,
    words,
)

EVERYTHING = {"batch_size": NUM_ROWS, "verbose": 0}
"""How rows are evaluated: in one batch of 30, which divides over two groups of devices."""

OUT_OF_DATA = pytest.mark.filterwarnings("ignore:Your input ran out of data")
"""Keras does not ask a Grain dataset for its length, and says so at the first epoch's end."""

KERAS_ARRAYS = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
"""Keras's variables and NumPy 2, in two of its callbacks."""


class PairRows(keras.utils.PyDataset):
    """Batches by number."""

    def __init__(self, *columns: Any, batch_size: int = BATCH_SIZE, **options: Any) -> None:
        super().__init__(**options)
        self.columns = columns
        self.rows_of_a_batch = batch_size

    def __len__(self) -> int:
        return -(-NUM_ROWS // self.rows_of_a_batch)

    def __getitem__(self, batch: int) -> Any:
        rows = slice(batch * self.rows_of_a_batch, (batch + 1) * self.rows_of_a_batch)
        return keras.tree.map_structure(lambda column: column[rows], self.columns)


def generate(*columns: Any, epochs: int) -> Any:
    """A generator of batches, for as many epochs."""
    batches = PairRows(*columns)
    return (batches[number] for _ in range(epochs) for number in range(len(batches)))


def examples(*columns: Any) -> grain.MapDataset:
    """A Grain dataset of single rows."""
    rows = [keras.tree.map_structure(lambda column: column[row], columns) for row in range(NUM_ROWS)]  # noqa: B023
    return grain.MapDataset.source(rows)


def finish(model: Any, history: Any, inputs: Any, *targets: Any) -> Any:
    """Evaluates and predicts, all rows at once."""
    evaluation = model.evaluate(inputs, *targets, return_dict=True, **EVERYTHING)
    return history, evaluation, model.predict(inputs, **EVERYTHING)


@KERAS_ARRAYS
def test_arrays_with_class_weights_and_a_validation_split() -> None:
    inputs, labels = digits()

    def use(model: Any, note: Any) -> Any:
        history = model.fit(
            inputs,
            labels,
            batch_size=BATCH_SIZE,
            epochs=5,
            class_weight={0: 1.0, 1: 2.0, 2: 0.5},
            validation_split=0.2,
            callbacks=[note, keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=0, min_delta=0.2)],
            verbose=0,
        )
        assert len(set(history.history["learning_rate"])) > 1  # the callback had something to do
        return finish(model, history, inputs, labels)

    def make() -> Any:
        return conv_net(optimizer=keras.optimizers.AdamW(3e-3, weight_decay=0.02, use_ema=True, ema_momentum=0.9))

    outcome = check(make, use)
    assert "val_weighted" in outcome.history


@OUT_OF_DATA
@pytest.mark.heavy
def test_grain_map_dataset_through_an_lstm() -> None:
    tokens, labels = words()
    # Batches of ten rows: one shape to compile, and it does not divide over four devices.
    batches = examples(tokens, labels).shuffle(seed=3).batch(10)
    schedule = keras.optimizers.schedules.CosineDecay(0.05, decay_steps=10, alpha=0.1)

    def use(model: Any, note: Any) -> Any:
        validation = examples(tokens, labels).batch(NUM_ROWS)
        history = model.fit(batches, epochs=4, validation_data=validation, shuffle=False, callbacks=[note], verbose=0)
        return finish(model, history, tokens, labels)

    def make() -> Any:
        optimizer = keras.optimizers.SGD(schedule, momentum=0.9, global_clipnorm=0.02)
        return token_net(layers.LSTM(6, dropout=0.2), optimizer=optimizer)

    check(make, use)


def test_grain_iter_dataset_of_dicts_with_row_weights_and_accumulated_gradients() -> None:
    (images, labels), (tokens, parity) = digits(), words()
    inputs = {"image": images, "tokens": tokens}
    targets = {"digit": labels, "parity": parity}
    weights = {"digit": row_weights(), "parity": row_weights()[::-1].copy()}
    dataset = examples(inputs, targets, weights).repeat().to_iter_dataset().batch(BATCH_SIZE)

    def use(model: Any, note: Any) -> Any:
        history = model.fit(dataset, epochs=3, steps_per_epoch=4, shuffle=False, callbacks=[note], verbose=0)
        evaluation = model.evaluate(inputs, targets, sample_weight=weights, return_dict=True, **EVERYTHING)
        return history, evaluation, model.predict(inputs, **EVERYTHING)

    def make() -> Any:
        image = keras.Input((6, 6, 1), name="image")
        token = keras.Input((5,), dtype="int32", name="tokens")
        both = layers.concatenate([layers.Flatten()(image), layers.Flatten()(layers.Embedding(12, 3)(token))])
        hidden = layers.Dropout(0.2)(layers.Dense(8, activation="relu")(both))
        outputs = {"digit": layers.Dense(3, name="digit")(hidden), "parity": layers.Dense(1, name="parity")(hidden)}
        model = keras.Model({"image": image, "tokens": token}, outputs)
        model.compile(
            keras.optimizers.Adam(3e-3, gradient_accumulation_steps=2, clipnorm=1.0),
            loss={
                "digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                "parity": keras.losses.BinaryCrossentropy(from_logits=True),
            },
            loss_weights={"digit": 1.0, "parity": 0.3},
            metrics={"digit": "accuracy"},
            weighted_metrics={"digit": "accuracy", "parity": "mse"},
        )
        return model

    outcome = check(make, use)
    assert len(outcome.predictions) == 2


@KERAS_ARRAYS
@pytest.mark.heavy
def test_py_dataset_of_lists_with_several_steps_an_execution() -> None:
    (images, labels), (tokens, parity) = digits(), words()
    inputs, targets = (images, tokens), (labels, parity)

    def use(model: Any, note: Any) -> Any:
        history = model.fit(
            PairRows(inputs, targets, workers=2),
            epochs=3,
            validation_data=PairRows(inputs, targets, batch_size=NUM_ROWS),
            shuffle=False,
            callbacks=[note, keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True)],
            verbose=0,
        )
        evaluation = model.evaluate(PairRows(inputs, targets, batch_size=NUM_ROWS), return_dict=True, verbose=0)
        predictions = model.predict(PairRows(inputs), verbose=0)  # uneven at the end
        assert [len(prediction) for prediction in predictions] == [NUM_ROWS, NUM_ROWS]
        return history, evaluation, predictions

    def make() -> Any:
        image, token = keras.Input((6, 6, 1)), keras.Input((5,), dtype="int32")
        both = layers.concatenate([layers.Flatten()(image), layers.Flatten()(layers.Embedding(12, 3)(token))])
        outputs = [layers.Dense(3, name="digit")(both), layers.Dense(1, name="parity")(both)]
        model = keras.Model([image, token], outputs)
        losses = [
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            keras.losses.BinaryCrossentropy(from_logits=True),
        ]
        model.compile(
            keras.optimizers.RMSprop(3e-3, weight_decay=0.01), losses, metrics=[["accuracy"], []], steps_per_execution=2
        )
        return model

    check(make, use)


class Regressor(keras.Model):
    """A subclassed model with a train step of its own, as Keras's guide for JAX writes one."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, activation="tanh")
        self.output_layer = layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="penalised")

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.output_layer(self.hidden(inputs))

    def losses_and_updates(self, trainable: Any, non_trainable: Any, inputs: Any, targets: Any) -> Any:
        found, non_trainable = self.stateless_call(trainable, non_trainable, inputs, training=True)
        penalty = sum(keras.ops.sum(keras.ops.square(value)) for value in trainable)
        return keras.ops.mean(keras.ops.square(found - targets)) + 1e-3 * penalty, non_trainable

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, non_trainable, optimizer_variables, metrics_variables = state
        inputs, targets = data
        compute = jax.value_and_grad(self.losses_and_updates, has_aux=True)
        (loss, non_trainable), gradients = compute(trainable, non_trainable, inputs, targets)
        trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, gradients, trainable)
        metrics_variables = self.tracker.stateless_update_state(metrics_variables, loss)
        logs = {"penalised": self.tracker.stateless_result(metrics_variables)}
        return logs, (trainable, non_trainable, optimizer_variables, metrics_variables)

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def test_step(self, state: Any, data: Any) -> Any:
        trainable, non_trainable, metrics_variables = state
        inputs, targets = data
        loss, non_trainable = self.losses_and_updates(trainable, non_trainable, inputs, targets)
        metrics_variables = self.tracker.stateless_update_state(metrics_variables, loss)
        return {"penalised": self.tracker.stateless_result(metrics_variables)}, (
            trainable,
            non_trainable,
            metrics_variables,
        )


@pytest.mark.heavy
def test_generator_and_a_train_step_of_ones_own() -> None:
    images, labels = digits()
    inputs, targets = images.reshape(NUM_ROWS, -1), labels[:, None].astype(np.float32)

    def use(model: Any, note: Any) -> Any:
        batches = generate(inputs, targets, epochs=3)
        history = model.fit(batches, epochs=3, steps_per_epoch=4, shuffle=False, callbacks=[note], verbose=0)
        evaluation = model.evaluate(generate(inputs, targets, epochs=1), steps=4, return_dict=True, verbose=0)
        return history, evaluation, model.predict(inputs, **EVERYTHING)

    def make() -> Any:
        model = Regressor()
        model(inputs[:1])
        model.compile(keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.02, 5, 0.5)))
        return model

    check(make, use)


@pytest.mark.heavy
def test_eagerly() -> None:
    images, labels = digits(10)
    inputs = images.reshape(10, -1)

    def use(model: Any, note: Any) -> Any:
        # Four rows divide over four devices, the last two do not.
        history = model.fit(inputs, labels, batch_size=4, sample_weight=row_weights(10), callbacks=[note], verbose=0)
        evaluation = model.evaluate(inputs, labels, batch_size=10, return_dict=True, verbose=0)
        return history, evaluation, model.predict(inputs, batch_size=4, verbose=0)

    def make() -> Any:
        model = keras.Sequential([keras.Input((36,)), layers.Dropout(0.3), layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
        return model

    check(make, use)


@pytest.fixture
def dtype_policy(request: pytest.FixtureRequest) -> Any:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(
    ("dtype_policy", "tolerance"),
    # Half precision rounds at 2**-11 (float16) and 2**-8 (bfloat16), sums of rows that are grouped otherwise elsewhere.
    [pytest.param("mixed_float16", 2e-3, marks=pytest.mark.heavy), ("mixed_bfloat16", 8e-3)],
    indirect=["dtype_policy"],
)
def test_mixed_precision(dtype_policy: str, tolerance: float) -> None:
    inputs, labels = digits()
    scales: list[float] = []

    inputs = inputs.reshape(NUM_ROWS, -1)

    def use(model: Any, note: Any) -> Any:
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (dtype_policy == "mixed_float16")
        # One row's gradient overflows float16 in the second step, which is skipped; the scale is halved.
        weights = np.ones(NUM_ROWS, np.float32)
        options = {"sample_weight": weights, "batch_size": BATCH_SIZE, "callbacks": [note], "verbose": 0}
        weights[9] = 1e6 if dtype_policy == "mixed_float16" else 1.0
        model.fit(inputs, labels, shuffle=False, **options)
        weights[9] = 1.0
        history = model.fit(inputs, labels, epochs=4, **options)
        if dtype_policy == "mixed_float16":
            scales.append(float(np.asarray(model.optimizer.dynamic_scale)))
        return finish(model, history, inputs, labels)

    def make() -> Any:
        model = keras.Sequential(
            [
                keras.Input((36,)),
                layers.Dense(8, use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Dropout(0.2),
                layers.Dense(3, dtype="float32"),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
        return model

    check(make, use, tolerance=tolerance)
    assert not scales or scales == [2.0**14, 2.0**14]


def dense_net() -> Any:
    model = keras.Sequential([keras.Input((36,)), layers.Dense(8, activation="relu"), layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    return model


def flat_digits() -> tuple[np.ndarray, np.ndarray]:
    inputs, labels = digits()
    return inputs.reshape(NUM_ROWS, -1), labels


def check_data(make_data: Any, **options: Any) -> None:
    """Trains, evaluates and predicts with one kind of data throughout; it is made anew for each use."""

    def use(model: Any, note: Any) -> Any:
        history = model.fit(make_data(), shuffle=False, callbacks=[note], verbose=0, **options)
        return history, model.evaluate(make_data(), return_dict=True, verbose=0), model.predict(make_data(), verbose=0)

    check(dense_net, use)


@OUT_OF_DATA
def test_grain_data_loader() -> None:
    inputs, labels = flat_digits()
    source = [(inputs[row], labels[row]) for row in range(NUM_ROWS)]

    def load() -> Any:
        return grain.DataLoader(
            data_source=source,
            sampler=grain.samplers.IndexSampler(NUM_ROWS, num_epochs=1, shard_options=grain.sharding.NoSharding()),
            operations=[grain.transforms.Batch(BATCH_SIZE)],
        )

    check_data(load, epochs=3)


def test_torch_data_loader() -> None:
    torch = pytest.importorskip("torch")
    inputs, labels = flat_digits()
    rows = torch.utils.data.TensorDataset(torch.from_numpy(inputs), torch.from_numpy(labels))
    check_data(lambda: torch.utils.data.DataLoader(rows, batch_size=BATCH_SIZE), epochs=3)


def test_tf_data() -> None:
    tensorflow = pytest.importorskip("tensorflow")
    check_data(lambda: tensorflow.data.Dataset.from_tensor_slices(flat_digits()).batch(BATCH_SIZE), epochs=3)
