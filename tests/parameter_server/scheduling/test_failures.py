"""What goes wrong in closures, and what cannot be scheduled: each has its error, and the loop goes on."""

from __future__ import annotations

import threading
import time
from typing import Any

import keras
import numpy as np
import pytest
from tests.parameter_server.role_threads import TIMEOUT_S, RoleThreads
from tests.parameter_server.scheduling.test_coordinator import (
    add_to,
    compiled_step,
    make_model,
    make_number,
    own,
    own_batches,
)

import lockstep
from lockstep.errors import InvalidInputError, WrongStateError
from lockstep.parameter_server import ClusterCoordinator, ParameterServerStrategy
from lockstep.parameter_server.coordination.remote_values import ClosureAbortedError, ClosureError
from lockstep.strategies import OneDeviceStrategy
from lockstep.topology import CLUSTER_TOKEN, Task, Topology

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

is_waiting, may_go_on = threading.Event(), threading.Event()


def fail_at(number: int) -> int:
    if number == 3:
        raise ValueError("no such luck")
    return number


def take_one(iterator: Any) -> Any:
    return next(iterator)


@lockstep.function
def take_one_compiled(iterator: Any) -> Any:
    return next(iterator)


def make_variable() -> None:
    own.other = keras.Variable(np.zeros(2), name="other")


def assign_trained() -> None:
    own.model.trainable_variables[0].assign(np.zeros((8, 12)))


def apply_unknown() -> None:
    optimizer = keras.optimizers.SGD(name="unknown")
    optimizer.apply([np.zeros((8, 12), np.float32)], [own.model.trainable_variables[0]])


def apply_wrong_shape() -> None:
    own.optimizer.apply([np.zeros((12, 8), np.float32)], [own.model.trainable_variables[0]])


def apply_wrong_dtype() -> None:
    own.optimizer.apply([np.zeros((8, 12), np.int32)], [own.model.trainable_variables[0]])


def apply_twice() -> None:
    for _ in range(2):
        own.optimizer.apply([np.zeros((8, 12), np.float32)], [own.model.trainable_variables[0]])


def return_a_model() -> Any:
    return own.model


def return_complex() -> Any:
    return {"spectrum": np.zeros(2, np.complex64)}


def return_a_long_list() -> Any:
    return [0.1234567] * 1_000_000


def return_half_a_character() -> Any:
    return "\ud800"


def fail_with_half_a_character() -> Any:
    raise ValueError("\ud800xxx")


def schedule_in_a_worker() -> Any:
    return own.coordinator.schedule(fail_at, args=(1,))


def ask_for_data_in_a_worker() -> Any:
    return own.coordinator.create_per_worker_dataset([1])


@pytest.mark.heavy
def test_what_fails_in_a_closure_is_raised_at_join_and_the_next_ones_run(run_roles: RoleThreads) -> None:
    refused = {
        fail_at: r"closure \d+ \(.*:fail_at\) failed in worker 0: ValueError: no such luck",
        take_one: "DataEndedError: the data of worker 0 have ended after 2 batches",
        take_one_compiled: "DataEndedError: the data of worker 0 have ended after 2 batches",
        assign_trained: "changes variable sequential/dense/kernel itself",
        apply_wrong_shape: r"a gradient of sequential/dense/kernel that is not like .*float32 of shape \(12, 8\)",
        apply_wrong_dtype: "received 'int32 of shape",
        apply_twice: "optimizer 'SGD' is applied twice in one step",
        return_a_model: "something that cannot be sent; received 'Sequential'",
        return_complex: r"what .*:return_complex returns has an array that cannot be sent; received 'complex64'",
        return_a_long_list: "returns is too large, apart from its arrays; .*; make one array of a list",
        return_half_a_character: "returns has a text with a lone surrogate",
        fail_with_half_a_character: r"failed in worker 0: ValueError: \\ud800xxx",
        apply_unknown: "optimizer 'unknown' is not known to the parameter servers",
        schedule_in_a_worker: "the coordinator was called in a worker, by a function that it has scheduled; have the",
        ask_for_data_in_a_worker: "create_per_worker_dataset was called after the first closure",
        make_variable: "a closure made a variable, which the parameter servers do not know; received '.*other'",
    }

    def script(strategy: ParameterServerStrategy) -> Any:
        own.coordinator = coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model(keras.optimizers.SGD(0.1, name="SGD"))
        iterator = iter(coordinator.create_per_worker_dataset(lambda: [np.ones(1)] * 2))
        values = [coordinator.schedule(take_one, args=[iterator]) for _ in range(2)]
        coordinator.join()
        before = own.model.trainable_variables[0].numpy()
        for function, words in refused.items():
            args = {fail_at: (3,), take_one: (iterator,), take_one_compiled: (iterator,)}.get(function, ())
            failed = coordinator.schedule(function, args=args)
            with pytest.raises(ClosureError, match=words) as caught:
                coordinator.join()
            assert "Traceback" in caught.value.__notes__[0], "the worker's stack"
            with pytest.raises(ClosureError, match=words):
                coordinator.fetch(failed)
        with pytest.raises(InvalidInputError, match=r"an argument of a closure has an array .* received 'complex64'"):
            coordinator.schedule(fail_at, args=(np.zeros(2, np.complex64),))
        assert (own.model.trainable_variables[0].numpy() == before).all()
        return [one.fetch().tolist() for one in values]

    assert run_roles(script) == [[1], [1]]


def test_what_had_not_begun_is_cancelled_and_done_raises_too(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_number()
        values = [coordinator.schedule(fail_at, args=(number,)) for number in range(3, 20)]
        with pytest.raises(ClosureError, match="no such luck"):
            wait_until_done(coordinator)
        with pytest.raises(ClosureAbortedError, match="was cancelled"):
            coordinator.fetch(values[-1])
        return coordinator.schedule(fail_at, args=(1,)).fetch()

    assert run_roles(script) == 1


def wait_and_go_on() -> None:
    is_waiting.set()
    assert may_go_on.wait(TIMEOUT_S)


def test_after_a_failure_nothing_more_is_begun(run_roles: RoleThreads) -> None:
    is_waiting.clear()
    may_go_on.clear()

    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_number()
        coordinator.schedule(wait_and_go_on)
        assert is_waiting.wait(TIMEOUT_S)
        failed = coordinator.schedule(fail_at, args=(3,))
        with pytest.raises(ClosureError, match="no such luck"):
            failed.fetch()
        ending = threading.Timer(0.2, may_go_on.set)
        ending.start()
        with pytest.raises(ClosureError, match="no such luck"):
            coordinator.schedule(fail_at, args=(1,))
        assert may_go_on.is_set(), "what ran beside it has ended"
        return coordinator.schedule(fail_at, args=(2,)).fetch()

    assert run_roles(script, num_workers=2) == 2


def wait_until_done(coordinator: ClusterCoordinator) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not coordinator.done() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_what_cannot_be_scheduled_is_refused_at_once(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> Any:
        with pytest.raises(InvalidInputError, match="workers cannot find by its name"):
            ClusterCoordinator(strategy).schedule(lambda: 1)
        with strategy.scope():
            make_number()
        coordinator = ClusterCoordinator(strategy)
        with pytest.raises(InvalidInputError, match=r"allowed: a tuple or list: args=\(iterator,\)"):
            coordinator.schedule(add_to, args=5)  # pyright: ignore[reportArgumentType]  # a wrong one is the point
        with pytest.raises(InvalidInputError, match="schedule's kwargs; received 'list'; allowed: arguments by name"):
            coordinator.schedule(add_to, kwargs=[5])  # pyright: ignore[reportArgumentType]  # as above
        values = coordinator.create_per_worker_values(lambda context: {"place": context.input_pipeline_id})
        with pytest.raises(InvalidInputError, match="a per-worker value's function"):
            coordinator.create_per_worker_values(5)  # pyright: ignore[reportArgumentType]  # as above
        value = ClusterCoordinator(strategy).schedule(place_of, args=(values,))
        with pytest.raises(InvalidInputError, match="a RemoteValue was passed to a closure; pass its value"):
            coordinator.schedule(add_to, args=([value],))
        with pytest.raises(InvalidInputError, match="cannot be sent; received 'Variable'"):
            coordinator.schedule(add_to, args=(own.number,))
        with pytest.raises(WrongStateError, match="create_per_worker_dataset was called after the first closure"):
            coordinator.create_per_worker_dataset(own_batches)
        return coordinator.fetch(value)

    assert run_roles(script) == 0


def place_of(values: dict[str, int]) -> int:
    return values["place"]


def test_a_coordinator_is_of_a_strategy_whose_steps_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="allowed: a ParameterServerStrategy"):
        ClusterCoordinator(OneDeviceStrategy())  # pyright: ignore[reportArgumentType]  # a wrong one is the point
    monkeypatch.setenv(CLUSTER_TOKEN, "t" * 64)
    cluster = {"chief": ("127.0.0.1:1",), "worker": ("127.0.0.1:2",), "ps": ("127.0.0.1:3",)}
    topology = Topology(cluster=cluster, task=Task(role="chief"))
    with pytest.raises(InvalidInputError, match="received 'num_backup_workers'"):
        ClusterCoordinator(ParameterServerStrategy(topology, num_backup_workers=0))
    evaluator = Topology(cluster=cluster, task=Task(role="evaluator"))
    with pytest.raises(InvalidInputError, match="an evaluator evaluates by the validation data of fit"):
        ClusterCoordinator(ParameterServerStrategy(evaluator)).join()


@pytest.mark.heavy
def test_a_script_that_trains_by_closures_does_not_fit(run_roles: RoleThreads) -> None:
    def script(strategy: ParameterServerStrategy) -> None:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_model(keras.optimizers.SGD(0.1))
            own.model.compile(own.optimizer, "mse")
        iterator = iter(coordinator.create_per_worker_dataset(own_batches))
        coordinator.schedule(compiled_step, args=(iterator,))
        coordinator.join()
        with pytest.raises(lockstep.errors.WrongStateError, match="have fit come before closures in a script"):
            own.model.fit(*next(own_batches(strategy.input_context)), steps_per_epoch=1)

    run_roles(script)


def test_a_worker_with_another_model_is_refused(run_roles: RoleThreads) -> None:
    refused = threading.Event()

    def script(strategy: ParameterServerStrategy) -> Any:
        coordinator = ClusterCoordinator(strategy)
        with strategy.scope():
            make_number()
            if strategy.topology.task.role == "worker" and strategy.topology.task.index == 1:
                own.other = keras.Variable(np.zeros(2), name="other")
                with pytest.raises(lockstep.errors.LockstepError, match="worker 1 has another model"):
                    coordinator.join()
                refused.set()
                raise SystemExit(0)
        found = coordinator.schedule(add_to, args=(1,)).fetch().tolist()
        assert refused.wait(TIMEOUT_S), "it comes to the cluster while there is one"
        return found

    assert run_roles(script, num_workers=2) == [1] * 3
