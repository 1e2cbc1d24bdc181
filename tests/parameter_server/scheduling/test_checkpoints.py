"""Checkpoints of loops over workers and servers: one goes on from them as if it had never ended, here and elsewhere."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from tests.parameter_server.embedding.test_exactness import assert_close
from tests.parameter_server.role_threads import RoleThreads

import lockstep
from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.errors import InvalidInputError, LockstepError
from lockstep.parameter_server import ClusterCoordinator, Embedding, ParameterServerStrategy
from lockstep.parameter_server.coordination.remote_values import ClosureError
from lockstep.strategies import OneDeviceStrategy

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

NUM_ROWS = 30
LOSS = keras.losses.BinaryCrossentropy(from_logits=True)

own = threading.local()
"""What a script would keep in its module: here each role has its own."""


def make_model(*, optimizer: Any = ...) -> None:
    init = keras.initializers.GlorotUniform
    own.model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            Embedding(NUM_ROWS, 4, name="rows", seed=1, optimizer="adagrad"),
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="tanh", kernel_initializer=init(seed=3), name="hidden"),
            keras.layers.Dense(1, kernel_initializer=init(seed=4), name="logits"),
        ]
    )
    own.optimizer = keras.optimizers.Adam(0.01)
    own.optimizer.build(own.model.trainable_variables)
    if optimizer is not None:
        own.model.compile(own.optimizer if optimizer is ... else optimizer, LOSS)
    own.accuracy = keras.metrics.BinaryAccuracy(name="accuracy")
    own.num_rows = keras.Variable(7, dtype="int32", trainable=False, name="num_rows")


def batch(number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    ids = np.random.default_rng(number).integers(0, NUM_ROWS, size=(16, 3)).astype(np.int32)
    return ids, (ids.sum(1, keepdims=True) % 2).astype(np.float32)


@lockstep.function
def step(ids: Any, clicks: Any) -> Any:
    def loss_fn() -> Any:
        logits = own.model(ids, training=True)
        return LOSS(clicks, logits), logits

    variables = own.model.trainable_variables
    (loss, logits), gradients = lockstep.value_and_grad(loss_fn, variables, has_aux=True)
    own.accuracy.update_state(clicks, logits)
    own.num_rows.assign_add(len(ids))
    own.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return loss


def look() -> Any:
    return own.num_rows.value


def values_here(scope: Any) -> dict[str, np.ndarray[Any, Any]]:
    model = own.model
    with scope():
        rows = np.array(model.get_layer("rows")(np.arange(NUM_ROWS)))
    dense = {one.path: np.array(one.value) for layer in model.layers[2:] for one in layer.variables}
    return {**dense, "rows": rows, "accuracy": np.array(own.accuracy.count.value), "num": np.array(own.num_rows.value)}


def train(
    run_roles: RoleThreads, directory: Path, *, first: int, last: int, num_servers: int, saved_at: int | None = None
) -> tuple[dict[str, np.ndarray[Any, Any]], Position | None]:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model()
        with coordinator.create_checkpoints(directory, own.model) as checkpoints:
            position = checkpoints.restore()
            for number in range(first, last):
                if number == saved_at:  # while closures run
                    checkpoints.save(Position(epoch=2, batch=0, step=0))
                coordinator.schedule(step, args=batch(number))
            coordinator.schedule(look).fetch()  # so that the worker comes where there are no steps
            coordinator.join()
            checkpoints.wait()
        return values_here(strategy.scope), position

    return run_roles(script, num_servers=num_servers)


@pytest.mark.heavy
def test_a_loop_goes_on_as_if_it_had_never_ended(run_roles: RoleThreads, tmp_path: Path) -> None:
    expected, none = train(run_roles, tmp_path / "a", first=0, last=20, num_servers=2, saved_at=12)
    assert none is None
    found, position = train(run_roles, tmp_path / "a", first=12, last=20, num_servers=1)
    assert position == Position(epoch=2, batch=0, step=12)
    assert_close(found, expected)
    assert found["num"] == 7 + 20 * 16
    assert found["accuracy"] == 20 * 16


@pytest.mark.heavy
def test_a_checkpoint_is_any_strategys(run_roles: RoleThreads, tmp_path: Path) -> None:
    expected, _ = train(run_roles, tmp_path / "none", first=0, last=12, num_servers=2)
    train(run_roles, tmp_path, first=0, last=13, num_servers=2, saved_at=12)
    keras.backend.clear_session()
    with OneDeviceStrategy().scope(), CheckpointDirectory(tmp_path) as directory:
        make_model()
        state = directory.restore()
        assert state is not None
        state.apply(own.model)
        assert_close(of_model(values_here(nullcontext)), of_model(expected))
        step(*batch(50))
        directory.save(TrainingState.capture(own.model, position=Position(epoch=3, batch=0, step=13)))
        directory.wait()
        expected = values_here(nullcontext)
    found, position = train(run_roles, tmp_path, first=0, last=0, num_servers=1)
    assert position == Position(epoch=3, batch=0, step=13)
    assert_close(of_model(found), of_model(expected))
    assert (int(found["num"]), float(found["accuracy"])) == (7, 0), "as the script has made them"


def of_model(values: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {path: value for path, value in values.items() if path not in {"accuracy", "num"}}


@pytest.mark.heavy
def test_what_is_assigned_after_a_save_is_not_in_it(run_roles: RoleThreads, tmp_path: Path) -> None:
    def save(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model()
        with coordinator.create_checkpoints(tmp_path, own.model) as checkpoints:
            for number in range(4):
                coordinator.schedule(step, args=batch(number))
            checkpoints.save(Position(epoch=1, batch=0, step=0))
            own.num_rows.assign(1000)
            own.optimizer.learning_rate = 0.5
            for number in range(4, 8):
                coordinator.schedule(step, args=batch(number))
        coordinator.join()
        return int(own.num_rows.value)

    def restore(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model()
        with coordinator.create_checkpoints(tmp_path, own.model) as checkpoints:
            position = checkpoints.restore()
        coordinator.schedule(step, args=batch(4))
        coordinator.join()
        return position, int(own.num_rows.value), float(own.optimizer.learning_rate)

    assert run_roles(save) == 1000 + 4 * 16
    assert run_roles(restore) == (Position(epoch=1, batch=0, step=4), 7 + 5 * 16, pytest.approx(0.01))


def test_a_checkpoint_that_would_lack_a_failed_closure_is_not_written(run_roles: RoleThreads, tmp_path: Path) -> None:
    def script(strategy: ParameterServerStrategy) -> None:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model()
        with coordinator.create_checkpoints(tmp_path, own.model) as checkpoints:
            values = [coordinator.schedule(step, args=batch(number)) for number in range(3)]
            coordinator.schedule(failing)
            values += [coordinator.schedule(step, args=batch(number)) for number in range(3)]
            checkpoints.save(Position(epoch=1, batch=0, step=0))
            with pytest.raises(LockstepError, match="a closure of before it has failed"):
                checkpoints.wait()
            with pytest.raises(ClosureError, match="it has"):
                checkpoints.save(Position(epoch=1, batch=0, step=0))
            coordinator.schedule(step, args=batch(3))
            checkpoints.save(Position(epoch=2, batch=0, step=0))
            checkpoints.wait()
            coordinator.join()
            assert int(own.num_rows.value) == 7 + 16 * (1 + sum(is_done(value) for value in values))
        with CheckpointDirectory(tmp_path, is_read_only=True) as directory:
            state = directory.restore()
            assert state is not None
            assert state.position.epoch == 2

    run_roles(script)


def test_what_is_counted_since_checkpoints_does_not_grow_with_their_number(
    run_roles: RoleThreads, tmp_path: Path
) -> None:
    def script(strategy: ParameterServerStrategy) -> None:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model()
        with coordinator.create_checkpoints(tmp_path, own.model) as checkpoints:
            for epoch in range(6):
                coordinator.schedule(step, args=batch(epoch))
                checkpoints.save(Position(epoch=epoch + 1, batch=0, step=0))
            coordinator.schedule(step, args=batch(6))
            coordinator.join()
            checkpoints.wait()
            chief = checkpoints._scheduler.chief
            with chief.dispatcher._changed:
                assert len(chief.dispatcher._book._marks) <= 4, "the last two, the one before, and the whole life's"
            cut = chief.recovery.restore_server(0, step=0)
            assert cut is not None
            assert cut.epoch == 6
            assert chief.dispatcher.ended().num_since(cut.closure) == 1

    run_roles(script)


def failing() -> None:
    raise ValueError("it has")


def is_done(value: Any) -> bool:
    try:
        value.fetch()
    except LockstepError:
        return False
    return True


def test_a_loop_may_go_back_while_it_runs(run_roles: RoleThreads, tmp_path: Path) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model()
        found: list[Any] = []
        with coordinator.create_checkpoints(tmp_path, own.model) as checkpoints:
            for _ in range(3):
                for number in range(4):
                    coordinator.schedule(step, args=batch(number))
                if not found:
                    checkpoints.save(Position(epoch=1, batch=0, step=0))
                for number in range(4, 7):
                    coordinator.schedule(step, args=batch(number))
                coordinator.join()
                found.append(values_here(strategy.scope))
                checkpoints.restore()
                for number in range(4, 7):
                    coordinator.schedule(step, args=batch(number))
                coordinator.join()
                assert_close(values_here(strategy.scope), found[0])
                checkpoints.restore()
        return [int(one["num"]) for one in found]

    assert run_roles(script, num_servers=2) == [7 + 7 * 16, 7 + 11 * 16, 7 + 11 * 16]


@pytest.mark.heavy
def test_a_learning_rate_that_is_set_again_after_going_back_holds(run_roles: RoleThreads, tmp_path: Path) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model()
        optimizer = own.model.optimizer
        rates: list[float] = []
        with coordinator.create_checkpoints(tmp_path, own.model) as checkpoints:
            coordinator.schedule(step, args=batch(0)).fetch()
            checkpoints.save(Position(epoch=1, batch=0, step=0))
            checkpoints.wait()
            for _ in range(2):
                checkpoints.restore()
                optimizer.learning_rate = 0.5
                coordinator.schedule(step, args=batch(1)).fetch()
                chief = strategy.member.chief
                assert chief is not None
                states = chief.read_optimizer(optimizer)
                place = next(n for n, one in enumerate(optimizer.variables) if one is optimizer._learning_rate)
                rate = states[place]
                assert rate is not None
                rates.append(float(rate))
        return rates

    assert run_roles(script) == [0.5, 0.5]


def test_evaluating_between_closures_undoes_none(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> int:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model()
        coordinator.schedule(step, args=batch(0))
        coordinator.join()
        for number in range(3):
            coordinator.schedule(step, args=batch(number)).fetch()
            with strategy.scope():
                own.model.evaluate(*batch(5), verbose=0)
        coordinator.schedule(step, args=batch(3)).fetch()
        coordinator.join()
        return int(own.num_rows.value)

    assert run_roles(script) == 7 + 5 * 16


@pytest.mark.heavy
def test_an_optimizer_of_tables_alone_counts_steps_too(run_roles: RoleThreads, tmp_path: Path) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            own.model = keras.Sequential([keras.Input((3,), dtype="int32"), Embedding(NUM_ROWS, 1, name="rows")])
            own.model.compile(keras.optimizers.SGD(1.0))
            own.model.optimizer.build(own.model.trainable_variables)
            own.mean = keras.metrics.Mean(name="mean")
        with coordinator.create_checkpoints(tmp_path, own.model) as checkpoints:
            before = checkpoints.restore()
            for number in range(2):
                coordinator.schedule(descend, args=batch(number)[:1])
                coordinator.schedule(descend, args=batch(number)[:1])
                checkpoints.save(Position(epoch=number + 1, batch=0, step=0))
                checkpoints.wait()
        return None if before is None else before.step, sorted(int(one.name) for one in tmp_path.glob("[0-9]*"))

    assert run_roles(script) == (None, [2, 4])
    assert run_roles(script) == (4, [6, 8])


@lockstep.function
def descend(ids: Any) -> Any:
    variables = own.model.trainable_variables
    loss, gradients = lockstep.value_and_grad(lambda: jnp.sum(own.model(ids)), variables)
    own.mean.update_state(loss)
    own.model.optimizer.apply(gradients, variables)
    return loss


@pytest.mark.parametrize(
    "optimizer", [pytest.param(None, id="none", marks=pytest.mark.heavy), pytest.param("sgd", id="another")]
)
def test_what_cannot_be_saved_is_said(run_roles: RoleThreads, tmp_path: Path, optimizer: str | None) -> None:
    def script(strategy: ParameterServerStrategy) -> None:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model(optimizer=optimizer)
        with pytest.raises(InvalidInputError, match="keep; received 0"):
            coordinator.create_checkpoints(tmp_path, own.model, keep=0)
        with pytest.raises(InvalidInputError, match=r"closures train by another one; received 'adam'.*model.compile"):
            coordinator.create_checkpoints(tmp_path, own.model).restore()
        coordinator.schedule(step, args=batch(0)).fetch()

    run_roles(script)
