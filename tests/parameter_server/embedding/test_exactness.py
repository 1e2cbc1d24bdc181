"""A model whose table lies on servers gives what one with the whole table gives; lazy Adam what its definition says."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest
from tests.parameter_server.role_threads import RoleThreads
from tests.parameter_server.threads import make_layout, read_values, run_steps, served, write_values

from lockstep.errors import InvalidInputError, WrongStateError
from lockstep.parameter_server import Embedding, ParameterServerStrategy, row_optimizer
from lockstep.parameter_server.coordination.remote_values import ClosureError
from lockstep.parameter_server.embedding.lookups import Lookups, current_lookups, placeholder_array
from lockstep.parameter_server.fitting.data import ArrayBatches
from lockstep.parameter_server.fitting.step import FitStep
from lockstep.parameter_server.fitting.worker import FitFunction
from lockstep.parameter_server.layout import ServedLayout
from lockstep.parameter_server.model_setup import ServedModel, describe_model
from lockstep.parameter_server.protocol import Mode
from lockstep.strategies import OneDeviceStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

NUM_STEPS = 50
BATCH_SIZE = 16
NUM_ROWS = 60
NUM_COLUMNS = 4
PENALTY = 1e-2
RATE = 0.02


def make_rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    ids = random.integers(0, NUM_ROWS, size=(NUM_STEPS * BATCH_SIZE, 3)).astype(np.int32)
    return ids, (ids.sum(1) % 2).astype(np.float32)


def make_model(dense: Any, *, penalty: float = 0.0, **options: Any) -> Any:
    """One table for two features, another for the third."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((3,), dtype="int32")
    shared = Embedding(
        NUM_ROWS, NUM_COLUMNS, name="shared", embeddings_regularizer=keras.regularizers.L2(penalty), **options
    )
    own = Embedding(NUM_ROWS, NUM_COLUMNS, name="own", **options)
    hidden = keras.layers.Concatenate()([shared(inputs[:, 0]), shared(inputs[:, 1]), own(inputs[:, 2])])
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(8, activation="tanh")(hidden)))
    model.compile(dense, keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def describe(model: Any, layout: ServedLayout, *, num_servers: int, mode: Mode = Mode.ASYNCHRONOUS) -> ServedModel:
    return describe_model(
        model.variables,
        optimizers=[model.optimizer],
        embeddings=layout.embeddings,
        num_servers=num_servers,
        partitioner=None,
        mode=mode,
    )


def train(dense: Any, *, num_servers: int, mode: Mode, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    keras.backend.clear_session()
    layout = make_layout()
    with layout.scope(), served(num_servers) as cluster:
        model = make_model(dense, **options)
        batches = ArrayBatches((*make_rows(), None), batch_size=BATCH_SIZE, shuffle=False)
        model._symbolic_build(data_batch=batches.example())
        description = describe(model, layout, num_servers=num_servers, mode=mode)
        write_values(cluster, description)
        step = FitStep(model, description, layout=layout)
        holds = mode is Mode.ASYNCHRONOUS
        function = FitFunction(
            cluster, setup=description.setup, step=step, batches=batches, overlaps=False, holds=holds
        )
        run_steps(function, range(NUM_STEPS // 2))
        run_steps(function, range(NUM_STEPS // 2, NUM_STEPS))
        function.close()
        values = read_values(cluster, description)
        servers = cluster.reach_servers()
        everything = np.arange(NUM_ROWS, dtype=np.int64)
        rows = servers.pull(wanted={table.spec.name: everything for table in description.tables}).rows
        servers.close()
    return {**values, **{f"{name}/embeddings": np.array(own) for name, own in rows.items()}}


def train_whole(optimizer: Any) -> dict[str, np.ndarray[Any, Any]]:
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        model = make_model(optimizer)
        model.fit(*make_rows(), batch_size=BATCH_SIZE, shuffle=False, verbose=0)
    return {variable.path: variable.numpy() for variable in model.variables}


def assert_close(found: dict[str, np.ndarray[Any, Any]], expected: dict[str, np.ndarray[Any, Any]]) -> None:
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        assert np.linalg.norm(found[path] - value) < 1e-5 * np.linalg.norm(value) + 1e-7, path


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(Mode.ASYNCHRONOUS, id="asynchronous", marks=pytest.mark.heavy),
        pytest.param(Mode.SYNCHRONOUS, id="synchronous"),
    ],
)
@pytest.mark.parametrize("num_servers", [1, pytest.param(3, marks=pytest.mark.heavy)])
def test_rows_on_servers_are_those_of_a_whole_table(num_servers: int, mode: Mode) -> None:
    expected = train_whole(keras.optimizers.SGD(0.5))
    assert_close(train(keras.optimizers.SGD(0.5), num_servers=num_servers, mode=mode), expected)


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        pytest.param({"loss_scale_factor": 1024.0, "global_clipnorm": 0.1}, {}, id="scaled and clipped"),
        pytest.param(
            {"loss_scale_factor": 1024.0},
            {"optimizer": row_optimizer("sgd", learning_rate=0.5)},
            id="scaled, with an optimizer of the layer's own",
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_the_scale_of_a_loss_is_taken_out_of_gradients_of_rows_too(settings: Any, options: Any) -> None:
    expected = train_whole(keras.optimizers.SGD(0.5, **settings))
    optimizer = keras.optimizers.SGD(0.5, **settings)
    assert_close(train(optimizer, num_servers=1, mode=Mode.SYNCHRONOUS, **options), expected)


class LazyAdamOfWholeTable:
    """The definition: moments of a row move when it is met; the steps that correct the bias are the table's."""

    def __init__(self) -> None:
        self.step = 0
        self.first, self.second = np.zeros((NUM_ROWS, NUM_COLUMNS)), np.zeros((NUM_ROWS, NUM_COLUMNS))

    def update(self, table: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], gradient: np.ndarray[Any, Any]) -> None:
        self.step += 1
        self.first[rows] = 0.9 * self.first[rows] + 0.1 * gradient[rows]
        self.second[rows] = 0.999 * self.second[rows] + 0.001 * gradient[rows] ** 2
        first = self.first[rows] / (1 - 0.9**self.step)
        second = self.second[rows] / (1 - 0.999**self.step)
        table[rows] -= RATE * first / (np.sqrt(second) + 1e-7 / np.sqrt(1 - 0.999**self.step))


class RowwiseAdagradOfWholeTable:
    """The definition: one number a row, to which the mean of its gradient's squares is added."""

    def __init__(self) -> None:
        self.sums = np.zeros((NUM_ROWS, 1))

    def update(self, table: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], gradient: np.ndarray[Any, Any]) -> None:
        self.sums[rows] += (gradient[rows] ** 2).mean(1, keepdims=True)
        table[rows] -= RATE * gradient[rows] / (np.sqrt(self.sums[rows]) + 1e-8)


class SGDOfWholeTable:
    def update(self, table: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], gradient: np.ndarray[Any, Any]) -> None:
        table[rows] -= RATE * gradient[rows]


DEFINITIONS = {"adam": LazyAdamOfWholeTable, "adagrad": RowwiseAdagradOfWholeTable, "sgd": SGDOfWholeTable}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.heavy if kind == "sgd" else ()) for kind in DEFINITIONS]
)
def test_an_optimizer_of_rows_is_its_definition_for_fifty_steps(kind: str) -> None:
    """The gradients of the whole table come from Keras, and the definition moves the rows that the batch has met."""
    options = {"optimizer": row_optimizer(kind, learning_rate=RATE), "penalty": PENALTY}
    found = train(keras.optimizers.SGD(0.5), num_servers=1, mode=Mode.SYNCHRONOUS, **options)
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        whole = make_model(keras.optimizers.SGD(0.5))
    inputs, targets = make_rows()
    values = {one.path: np.array(one.value, np.float64) for one in whole.trainable_variables}
    states = {"shared/embeddings": DEFINITIONS[kind](), "own/embeddings": DEFINITIONS[kind]()}
    gradients_of = jax.jit(functools.partial(_gradients, whole))
    for number in range(NUM_STEPS):
        mine = slice(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)
        used = {"shared/embeddings": np.unique(inputs[mine][:, :2]), "own/embeddings": np.unique(inputs[mine][:, 2])}
        is_used = np.isin(np.arange(NUM_ROWS), used["shared/embeddings"])[:, None]
        gradients = gradients_of(values, inputs[mine], targets[mine], is_used)
        for path, gradient in gradients.items():
            if path in states:
                states[path].update(values[path], used[path], np.asarray(gradient, np.float64))
            else:
                values[path] -= 0.5 * np.asarray(gradient, np.float64)
    assert_close(found, values)


def _gradients(model: Any, values: dict[str, Any], inputs: Any, targets: Any, is_used: Any) -> dict[str, Any]:
    """Gradients of the whole table, with a penalty for the rows that the batch uses alone."""

    def loss(values: dict[str, Any]) -> Any:
        own = [values[one.path] for one in model.trainable_variables]
        outputs, _ = model.stateless_call(own, [one.value for one in model.non_trainable_variables], inputs)
        found = keras.losses.binary_crossentropy(targets[:, None], outputs, from_logits=True).mean()
        return found + PENALTY * keras.ops.sum(is_used * values["shared/embeddings"] ** 2)

    return jax.grad(loss)({path: keras.ops.cast(value, "float32") for path, value in values.items()})


def test_ids_that_are_not_in_the_table_end_fit_in_words(run_roles: RoleThreads) -> None:
    inputs, targets = make_rows()
    inputs[5 * BATCH_SIZE, 1] = NUM_ROWS

    def script(strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = make_model(keras.optimizers.SGD(0.5))
        model.fit(inputs, targets, batch_size=BATCH_SIZE, steps_per_epoch=NUM_STEPS, shuffle=False, verbose=0)

    with pytest.raises(ClosureError, match=r"ids of embedding shared; received '\d+ to 60'; allowed: 0 to 59"):
        run_roles(script)


def test_ids_that_are_not_in_the_table_are_refused_in_words_and_the_model_goes_on(run_roles: RoleThreads) -> None:
    inputs, targets = make_rows()
    options = {"batch_size": BATCH_SIZE, "verbose": 0}

    def refuse(model: Any) -> None:
        for place, wrong, said in ((1, NUM_ROWS, r"shared; received '\d+ to 60'"), (2, -1, r"own; received '-1 to")):
            bad = inputs.copy()
            bad[5 * BATCH_SIZE, place] = wrong
            for call in (
                lambda bad=bad: model.evaluate(bad, targets, **options),
                lambda bad=bad: model.predict(bad, **options),
                lambda bad=bad: model.predict_on_batch(bad),
            ):
                before = model.get_weights()
                with pytest.raises(InvalidInputError, match=rf"ids of embedding {said}.*; allowed: 0 to 59"):
                    call()
                for one, other in zip(model.get_weights(), before, strict=True):
                    np.testing.assert_array_equal(one, other)

    def script(strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            model = make_model(keras.optimizers.SGD(0.5))
        refuse(model)
        model.fit(inputs, targets, steps_per_epoch=NUM_STEPS, **options)
        before = model.predict(inputs, **options)
        refuse(model)
        np.testing.assert_array_equal(model.predict(inputs, **options), before)
        model.fit(inputs, targets, steps_per_epoch=NUM_STEPS, **options)

    run_roles(script)


def test_ids_that_depend_on_rows_are_refused() -> None:
    table = keras.Variable(np.zeros((0, 2)), dtype="float32", name="table")

    def by_rows(value: Any, x: Any) -> None:
        del value
        lookups = current_lookups()
        assert lookups is not None
        lookups.look_up(table, lookups.look_up(table, x).argmax(-1))

    def by_weights(value: Any, x: Any) -> None:
        lookups = current_lookups()
        assert lookups is not None
        lookups.look_up(table, (x[:, None] * placeholder_array((3,), "float32", value=value)).argmax(-1))

    for run in (by_rows, by_weights):
        with pytest.raises(InvalidInputError, match="depend on rows of an embedding table, or on other parameters"):
            Lookups({"table": table}, run).wanted(np.arange(4, dtype=np.int32))


def test_two_tables_of_one_name_are_refused() -> None:
    layout = make_layout()
    with layout.scope():
        weight = keras.Variable(np.zeros(2), name="weight")
        layers = [Embedding(4, 2, name="words", optimizer="sgd") for _ in range(2)]
        for layer in layers:
            layer.build()
    with pytest.raises(InvalidInputError, match=r"two variables have one path, .* received 'words'"):
        describe_model(
            [weight, *(layer.embeddings for layer in layers)],
            optimizers=[],
            embeddings=layers,
            num_servers=1,
            partitioner=None,
            mode=Mode.ASYNCHRONOUS,
        )


def test_outside_steps_the_layer_reads_rows_or_says_why_not() -> None:
    keras.backend.clear_session()
    layout = make_layout()
    with layout.scope():
        layer = Embedding(NUM_ROWS, NUM_COLUMNS, seed=1)
        layer.build()
        read: list[Any] = []

        def read_rows(wanted: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
            read.append({path: ids.tolist() for path, ids in wanted.items()})
            return {path: np.repeat(ids[:, None], NUM_COLUMNS, axis=1) for path, ids in wanted.items()}

        layout.read_rows = read_rows
        assert layer(np.array([[2, 1, 2]]))[..., 0].tolist() == [[2, 1, 2]]
        assert read == [{"embedding": [1, 2]}]
        with pytest.raises(WrongStateError, match="called in code that JAX traces"):
            jax.jit(layer.call)(np.array([1]))
        assert layer.embeddings.shape == (0, NUM_COLUMNS)
    with pytest.raises(WrongStateError, match="called outside of its strategy's scope"):
        layer(np.array([1]))


def test_a_file_of_weights_has_no_rows_of_servers_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Any:
        layers = [keras.Input((2,), dtype="int32"), Embedding(NUM_ROWS, NUM_COLUMNS, seed=1, name="table")]
        return keras.Sequential(layers, name="model")

    layout = make_layout()
    with layout.scope():
        served = make()
        served.save_weights(tmp_path / "served.weights.h5")
        assert "holds no rows of embedding model/table" in caplog.text
        caplog.clear()
        served.load_weights(tmp_path / "served.weights.h5")
        assert "no rows of embedding model/table: they stay as the parameter servers have them" in caplog.text
        caplog.clear()
    whole = make()
    whole.save_weights(tmp_path / "whole.weights.h5")
    assert not caplog.text
    with pytest.raises(ValueError, match=r"received '0 rows'; allowed: \d+: they lay on parameter servers; move the"):
        whole.load_weights(tmp_path / "served.weights.h5")
    with layout.scope():
        served = make()
        with pytest.raises(ValueError, match=r"allowed: 0: here they lie on parameter servers"):
            served.load_weights(tmp_path / "whole.weights.h5")


def test_a_layer_is_made_again_by_its_config() -> None:
    layer = Embedding(10, 2, optimizer=row_optimizer("adagrad", learning_rate=0.3), mask_zero=True, seed=4, name="x")
    again = Embedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.row_optimizer == layer.row_optimizer


def test_numpys_whole_numbers_are_sizes_too() -> None:
    layer = Embedding(np.int64(10), np.int32(2))
    assert json.loads(json.dumps(layer.get_config()))["input_dim"] == 10
    layer.build()
    assert layer.embeddings.shape == (10, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param({"input_dim": 0}, "input_dim of an Embedding; received 0", id="none"),
        pytest.param({"input_dim": True}, "input_dim of an Embedding; received True", id="truth"),
        pytest.param({"output_dim": 2.0}, "output_dim of an Embedding; received 2.0", id="fraction"),
        pytest.param({"embeddings_initializer": "orthogonal"}, "cannot give each row its own values", id="whole"),
        pytest.param({"optimizer": "lamb"}, "an optimizer of rows; received 'lamb'", id="optimizer"),
        pytest.param({"optimizer": keras.optimizers.Adam}, "optimizer of an Embedding; received 'type'", id="Keras's"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        Embedding(**{"input_dim": 10, "output_dim": 2, **arguments})


@pytest.mark.parametrize(
    ("optimizer", "received"),
    [
        pytest.param(lambda: keras.optimizers.RMSprop(), "RMSprop", id="another", marks=pytest.mark.heavy),
        pytest.param(
            lambda: keras.optimizers.SGD(0.1, momentum=0.9), "SGD with momentum", id="momentum", marks=pytest.mark.heavy
        ),
        pytest.param(
            lambda: keras.optimizers.Adam(amsgrad=True), "Adam with amsgrad", id="amsgrad", marks=pytest.mark.heavy
        ),
        pytest.param(
            lambda: keras.optimizers.SGD(clipvalue=0.5), "SGD with clipvalue", id="clipvalue", marks=pytest.mark.heavy
        ),
        pytest.param(
            lambda: keras.optimizers.Adagrad(clipnorm=0.5),
            "Adagrad with clipnorm",
            id="clipnorm",
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            lambda: keras.optimizers.AdamW(use_ema=True), "AdamW with use_ema", id="averages", marks=pytest.mark.heavy
        ),
        pytest.param(
            lambda: keras.optimizers.SGD(
                keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), gradient_accumulation_steps=8
            ),
            "SGD with gradient_accumulation_steps, a schedule",
            id="several",
        ),
    ],
)
def test_an_optimizer_of_rows_has_to_be_named_where_none_is_near_to_the_models(optimizer: Any, received: str) -> None:
    keras.backend.clear_session()
    layout = make_layout()
    with layout.scope():
        model = make_model(optimizer())
        model._symbolic_build(data_batch=(*make_rows(), None))
        said = f"embedding shared has no optimizer of its own, .* received '{received}'; allowed: .* without momentum"
        with pytest.raises(InvalidInputError, match=said):
            describe(model, layout, num_servers=1)
