"""A script in every role of a cluster, as threads of the test: Keras's own state is each thread's."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import keras
import pytest
from tests.waiting import wait_until

from lockstep.parameter_server import ParameterServerStrategy
from lockstep.parameter_server.local_processes import hold_cluster
from lockstep.strategies import devices
from lockstep.topology import CLUSTER_TOKEN, Task, Topology

TIMEOUT_S = 30.0

Returned = TypeVar("Returned")


class RoleThreads:
    """Runs scripts; made by the fixture `run_roles`.

    Args:
        monkeypatch: of the test.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(CLUSTER_TOKEN, "t" * 64)
        self._monkeypatch = monkeypatch

    def __call__(
        self,
        script: Callable[[ParameterServerStrategy], Returned],
        *,
        num_workers: int = 1,
        num_servers: int = 1,
        num_devices: int = 1,
        **options: Any,
    ) -> Returned:
        """Runs a script in every role; returns what it returns in the coordinator, or raises its error."""
        some = devices.local_devices()[:num_devices]
        self._monkeypatch.setattr("lockstep.parameter_server.strategy.local_devices", lambda: some)
        cluster, held = hold_cluster(num_workers=num_workers, num_servers=num_servers)
        errors: list[BaseException] = []

        keras.backend.clear_session()  # names begin anew; it is all threads' at once

        def run(role: str, index: int) -> Any:
            topology = Topology(cluster=cluster, task=Task(role=role, index=index))
            strategy = ParameterServerStrategy(topology, silence_s=5.0, start_within_s=TIMEOUT_S, **options)
            try:
                returned = script(strategy)
                chief = strategy.member.chief
                if chief is not None:  # a worker that comes after the coordinator's end finds nobody
                    dispatcher = chief.dispatcher
                    wait_until(lambda: len(dispatcher.workers) == sum(thread.is_alive() for thread in workers))
                return returned
            finally:
                if strategy.member.chief is not None:
                    strategy.member.chief.close()

        def run_other(role: str, index: int) -> None:
            try:
                run(role, index)
            except SystemExit as end:
                if end.code:
                    errors.append(end)
            except BaseException as error:
                errors.append(error)
            else:
                errors.append(AssertionError(f"{role} {index} has left the cluster"))

        others = [(role, index) for role in ("ps", "worker") for index in range(len(cluster[role]))]
        threads = [
            threading.Thread(target=run_other, args=one, name=f"{one[0]} {one[1]}", daemon=True) for one in others
        ]
        workers = [thread for thread in threads if thread.name.startswith("worker")]
        for thread in threads:
            thread.start()
        try:
            # What the coordinator's strategy forbids ends with it: the test may train on one device afterwards.
            returned = contextvars.copy_context().run(run, "chief", 0)
        except BaseException as error:
            error.add_note(f"in other roles: {errors}")
            raise
        finally:
            for thread in threads:
                thread.join(TIMEOUT_S)
            for one in held:
                one.close()
        assert not [thread.name for thread in threads if thread.is_alive()]
        assert not errors, errors
        return returned
