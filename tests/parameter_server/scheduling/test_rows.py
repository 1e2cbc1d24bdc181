"""Closures that look rows up which servers keep: what they train is what a whole table on one device is trained to."""

from __future__ import annotations

import threading
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from tests.parameter_server.embedding.test_exactness import assert_close
from tests.parameter_server.role_threads import RoleThreads

import lockstep
from lockstep.errors import InvalidInputError
from lockstep.parameter_server import ClusterCoordinator, Embedding, ParameterServerStrategy
from lockstep.parameter_server.coordination.remote_values import ClosureError
from lockstep.strategies import OneDeviceStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

BATCH_SIZE = 16
NUM_STEPS = 30
NUM_ROWS = 60
LOSS = keras.losses.BinaryCrossentropy(from_logits=True)

own = threading.local()
"""What a script would keep in its module: here each role has its own."""


def make_model(optimizer: Any) -> None:
    """One table for two features, another for the third."""
    init = keras.initializers.GlorotUniform
    inputs = keras.Input((3,), dtype="int32")
    shared = Embedding(NUM_ROWS, 4, name="shared", seed=1)
    single = Embedding(NUM_ROWS, 2, name="single", seed=2)
    hidden = keras.layers.Concatenate()([shared(inputs[:, 0]), shared(inputs[:, 1]), single(inputs[:, 2])])
    hidden = keras.layers.Dense(8, activation="tanh", kernel_initializer=init(seed=3), name="hidden")(hidden)
    own.model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=init(seed=4), name="logits")(hidden))
    own.model.compile(loss=LOSS)
    own.optimizer = optimizer
    optimizer.build(own.model.trainable_variables)
    own.accuracy = keras.metrics.BinaryAccuracy()


def batches_of(worker: int, num_batches: int = NUM_STEPS) -> Any:
    random = np.random.default_rng(worker)
    for _ in range(num_batches):
        ids = random.integers(0, NUM_ROWS, size=(BATCH_SIZE, 3)).astype(np.int32)
        yield ids, (ids.sum(1, keepdims=True) % 2).astype(np.float32)


def own_batches(context: Any) -> Any:
    return batches_of(context.input_pipeline_id)


def take_step(ids: Any, clicks: Any) -> Any:
    def loss_fn() -> Any:
        logits = own.model(ids, training=True)
        context = lockstep.strategies.get_replica_context()  # gradients of replicas are summed
        num_replicas = 1 if context is None else context.num_replicas_in_sync
        losses = keras.losses.binary_crossentropy(clicks, logits, from_logits=True)
        return own.optimizer.scale_loss(jnp.mean(losses) / num_replicas), logits

    variables = own.model.trainable_variables
    (loss, logits), gradients = lockstep.value_and_grad(loss_fn, variables, has_aux=True)
    own.accuracy.update_state(clicks, logits)
    own.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss


@lockstep.function
def compiled_step(iterator: Any) -> Any:
    return take_step(*next(iterator))


@lockstep.function
def compiled_on_batch(ids: Any, clicks: Any) -> Any:
    return take_step(ids, clicks)


def plain_step(iterator: Any) -> Any:
    batch = next(iterator)
    looked_at = own.model(batch[0])  # of plain arrays, outside of all compiled code
    loss = compiled_on_batch(*batch)
    assert looked_at.shape == (BATCH_SIZE, 1)
    return loss


def eager_step(iterator: Any) -> Any:
    return take_step(*next(iterator))


def replica_step(iterator: Any) -> Any:
    return own.strategy.run(take_step, args=next(iterator))


compiled_replica_step = lockstep.function(replica_step)
"""The same name: it is what workers find by it."""


@lockstep.function
def compiled_logits(ids: Any) -> Any:
    return own.model(ids)


def train_here(optimizer: Any) -> dict[str, np.ndarray[Any, Any]]:
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        make_model(optimizer)
        for batch in batches_of(0):
            compiled_on_batch(*batch)
        return values_here()


def values_here() -> dict[str, np.ndarray[Any, Any]]:
    everything = np.arange(NUM_ROWS)
    tables = {name: own.model.get_layer(name) for name in ("shared", "single")}
    of_tables = {id(layer.embeddings) for layer in tables.values()}
    dense = {one.path: np.array(one.value) for one in own.model.variables if id(one) not in of_tables}
    return {**dense, **{name: np.array(layer(everything)) for name, layer in tables.items()}}


@pytest.mark.parametrize(
    ("step", "num_servers", "num_devices"),
    [
        pytest.param(compiled_step, 2, 1, id="compiled"),
        pytest.param(plain_step, 1, 1, id="plain", marks=pytest.mark.heavy),
        pytest.param(compiled_replica_step, 1, 1, id="run", marks=pytest.mark.heavy),
        pytest.param(compiled_replica_step, 1, 2, id="run-on-two", marks=pytest.mark.heavy),
    ],
)
def test_rows_are_trained_as_on_one_device(
    run_roles: RoleThreads, step: Any, num_servers: int, num_devices: int
) -> None:
    expected = train_here(keras.optimizers.SGD(0.5, global_clipnorm=0.3, loss_scale_factor=256.0))

    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        own.strategy = strategy
        with strategy.scope():
            make_model(keras.optimizers.SGD(0.5, global_clipnorm=0.3, loss_scale_factor=256.0))

        def make_data() -> Any:
            data = list(batches_of(0))
            return strategy.experimental_distribute_dataset(data) if num_devices > 1 else data

        iterator = iter(coordinator.create_per_worker_dataset(make_data))
        for _ in range(NUM_STEPS):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        with strategy.scope():
            ids, clicks = next(batches_of(7))
            assert own.model.get_layer("shared").embeddings.shape == (0, 4), "the table is the servers'"
            compiled, direct = np.array(compiled_logits(ids)), np.array(own.model(ids))
            np.testing.assert_allclose(compiled, direct, rtol=1e-5, atol=1e-6)
            loss = own.model.evaluate(ids, clicks, verbose=0, batch_size=BATCH_SIZE)
            assert loss == pytest.approx(float(LOSS(clicks, direct)), rel=1e-5)
            return values_here(), int(own.accuracy.count.value)

    found, num_rows = run_roles(script, num_servers=num_servers, num_devices=num_devices)
    assert_close(found, expected)
    assert num_rows == NUM_STEPS * BATCH_SIZE


def test_rows_of_several_optimizers_follow_their_own(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            own.layers = [Embedding(4, 1, embeddings_initializer="zeros") for _ in range(2)]
            for layer in own.layers:
                layer.build()
            own.optimizers = [keras.optimizers.SGD(1.0), keras.optimizers.SGD(10.0)]
            for layer, optimizer in zip(own.layers, own.optimizers, strict=True):
                optimizer.build([layer.embeddings])
        coordinator.schedule(compiled_descent, args=(np.array([1, 1]),))
        coordinator.join()
        own.optimizers[1].learning_rate = 20.0
        coordinator.schedule(compiled_descent, args=(np.array([1, 2]),))
        coordinator.join()
        with strategy.scope():
            return [np.array(layer(np.arange(4))).reshape(-1).tolist() for layer in own.layers]

    assert run_roles(script) == [[0, -3, -1, 0], [0, -40, -20, 0]]


@lockstep.function
def compiled_descent(ids: Any) -> Any:
    variables = [layer.embeddings for layer in own.layers]
    loss, gradients = lockstep.value_and_grad(lambda: sum(jnp.sum(layer(ids)) for layer in own.layers), variables)
    for optimizer, variable, gradient in zip(own.optimizers, variables, gradients, strict=True):
        optimizer.apply([gradient], [variable])
    return loss


@lockstep.function
def lookup(ids: Any) -> Any:
    return own.model(ids)


@lockstep.function
def lookup_by_rows(ids: Any) -> Any:
    shared = own.model.get_layer("shared")
    return shared(jnp.argmax(shared(ids), axis=-1))


@pytest.mark.parametrize(
    ("step", "ids", "expected"),
    [
        pytest.param(
            lookup,
            [0, 1, NUM_ROWS],
            "ids of embedding single; received '60 to 60'; allowed: 0 to 59",
            id="id",
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            lookup,
            [0, 1, 2**32 + 1],
            "do not fit into 32 bits; received '0 to 4294967297'",
            id="long-id",
            marks=pytest.mark.heavy,
        ),
        pytest.param(lookup_by_rows, [0, 1, 2], "ids that a step looks up depend on rows", id="ids-of-rows"),
        pytest.param(eager_step, None, "was called in code that JAX traces", id="eager", marks=pytest.mark.heavy),
    ],
)
def test_what_cannot_be_looked_up_is_said(run_roles: RoleThreads, step: Any, ids: Any, expected: str) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model(keras.optimizers.SGD(0.5))
        iterator = iter(coordinator.create_per_worker_dataset(own_batches))
        coordinator.schedule(step, args=(iterator,) if ids is None else (np.array([ids]),))
        with pytest.raises(ClosureError, match=expected):
            coordinator.join()
        coordinator.schedule(compiled_step, args=(iterator,))
        coordinator.join()
        return float(own.accuracy.count.value)

    assert run_roles(script) == BATCH_SIZE


def test_a_distributed_batch_keeps_its_ids_too(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> None:
        coordinator = ClusterCoordinator(strategy)
        own.strategy = strategy
        with strategy.scope():
            make_model(keras.optimizers.SGD(0.5))

        def make_data() -> Any:
            ids = np.array([[0, 1, 2**32 + 5]] * 4)
            return strategy.experimental_distribute_dataset([(ids, np.zeros((4, 1), np.float32))])

        iterator = iter(coordinator.create_per_worker_dataset(make_data))
        coordinator.schedule(compiled_replica_step, args=(iterator,))
        with pytest.raises(ClosureError, match="do not fit into 32 bits; received '0 to 4294967301'"):
            coordinator.join()

    run_roles(script, num_devices=2)


def test_what_is_no_id_may_be_of_any_size(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model(keras.optimizers.SGD(0.5))
        ids, times = np.array([[0, 1, 2]]), np.array([2**40])
        return np.shape(coordinator.schedule(lookup_with_times, args=(ids, times)).fetch())

    assert run_roles(script) == (1, 1)


@lockstep.function
def lookup_with_times(ids: Any, times: Any) -> Any:
    return own.model(ids) + 0 * times


def test_rows_are_updated_by_their_servers_alone(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model(keras.optimizers.SGD(0.5))
        iterator = iter(coordinator.create_per_worker_dataset(own_batches))
        coordinator.schedule(compiled_step, args=(iterator,)).fetch()
        with strategy.scope(), pytest.raises(InvalidInputError, match="changes rows of an embedding"):
            compiled_on_batch(*next(batches_of(0)))

    run_roles(script)


def test_a_table_that_nobody_trains_is_refused(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            own.weight = keras.Variable(np.zeros(2, np.float32), name="weight")  # a server has to have something
            layer = Embedding(4, 2, name="alone")
            layer.build()
        with pytest.raises(InvalidInputError, match="alone"):
            coordinator.join()
        layer.row_optimizer = lockstep.parameter_server.row_optimizer("sgd")
        return coordinator.schedule(read_weight).fetch().tolist()

    assert run_roles(script) == [0, 0]


def read_weight() -> Any:
    return own.weight.value
