"""The implementation of `ClusterCoordinator`: schedules closures in the coordinator, and runs them in a worker.

The variables in the coordinator's script have the servers' values as of the last time that closures were waited for.
What the script assigns to them is sent to the servers before the next closure.
"""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import keras
import numpy as np

from lockstep.checkpoints import TrainingState
from lockstep.errors import InvalidInputError, WrongStateError
from lockstep.parameter_server.coordination.chief import Chief
from lockstep.parameter_server.coordination.remote_values import ClosureError, RemoteValue
from lockstep.parameter_server.coordination.working import AbstractFunction
from lockstep.parameter_server.membership import Member
from lockstep.parameter_server.model_setup import (
    ServedModel,
    is_random_state,
    part_random_states,
    trained_variables,
)
from lockstep.parameter_server.scheduling.functions import ClosureRunner, ScheduledFunctions
from lockstep.parameter_server.scheduling.names import name_of
from lockstep.parameter_server.scheduling.per_worker import (
    DATASET,
    ITERATOR,
    VALUES,
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerObjects,
    PerWorkerValues,
)
from lockstep.strategies.updates import built_optimizers
from lockstep.upstream.keras_variables import learning_rate_of, set_stored_value, stored_value


@final
class Scheduler:
    """The closures of a strategy's cluster.

    Belongs to one thread.

    Args:
        member: this process as a member of the cluster.
        scope: a function that returns the strategy's scope.
    """

    def __init__(self, member: Member, *, scope: Callable[[], AbstractContextManager[Any]]) -> None:
        self._member = member
        self._scope = scope
        self._datasets: list[Any] = []
        self._values: list[Callable[..., Any]] = []
        self._chief: Chief | None = None
        self._works = False
        self._assigned: list[Any] = []
        self._is_behind = False
        self._num_writes = 0
        self._num_restores = 0
        self._lock = threading.Lock()
        self._versions: list[int] = []
        self._staleness = self._num_pushes = 0  # of closures that ended since the last request

    def schedule(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> RemoteValue:
        """Schedules a call of a function in a worker; see `ClusterCoordinator.schedule`."""
        name = name_of(function)
        self.raise_failure()
        self.flush()
        chief = self._begun()
        with self._lock:
            needed = {
                "writes": self._num_writes,
                "restores": self._num_restores,
                "versions": list(self._versions),
            }
        arguments = (needed, tuple(args), dict(kwargs))
        value = chief.schedule(name, arguments, refer=self._refer, unpack=self._unpack, holds=arguments)
        self._is_behind = True
        return value

    def join(self) -> None:
        """Waits for all closures, and updates the variables; see `ClusterCoordinator.join`."""
        self._wait(self._begun())

    def done(self) -> bool:
        """Whether all closures have ended. If so, updates the variables."""
        chief = self._begun()
        is_done = chief.dispatcher.done()
        if is_done:
            self._take_values(chief)
        return is_done

    def fetch(self, value: Any) -> Any:
        """Returns the results of closures; see `ClusterCoordinator.fetch`."""
        self._begun()
        return keras.tree.map_structure(lambda one: one.fetch() if isinstance(one, RemoteValue) else one, value)

    def staleness(self) -> float | None:
        """Returns the mean staleness of closures since the last call; see `ClusterCoordinator.staleness`."""
        self._begun()
        with self._lock:
            total, num_pushes = self._staleness, self._num_pushes
            self._staleness = self._num_pushes = 0
        return total / num_pushes if num_pushes else None

    @property
    def chief(self) -> Chief:
        """The coordinator's control of its cluster. Does not return in a worker."""
        return self._begun()

    def raise_failure(self) -> None:
        """Raises the error of a failed closure, once those that run beside it have ended.

        Raises:
            ClosureError: a closure failed.
        """
        self._begun().dispatcher.raise_failure()

    def flush(self) -> None:
        """Sends the servers the values that were assigned here. If there are any, waits for running closures.

        Raises:
            ClosureError: a closure failed.
        """
        chief = self._begun()
        self._write_rates(chief)
        if self._changed(chief):
            self._wait(chief)

    def restore(self, restore: Callable[[], TrainingState | None]) -> TrainingState | None:
        """Waits for all closures, restores the servers, and updates the variables.

        Args:
            restore: a function that restores the servers and this process. It returns the state; None if there is none.
        """
        chief = self._begun()
        self._wait(chief)
        state = restore()
        if state is not None:
            self._assigned = [
                stored_value(variable) for variable in chief.served.variables
            ]  # the servers have these values already
            self._num_writes += 1
            self._num_restores += 1
            with self._lock:
                self._versions = [0] * len(self._versions)
            self._is_behind = True
            self._take_values(chief)
        return state

    def forget_version(self, server: int) -> None:
        """Records that a server has lost recent pushes. May be called from any thread."""
        with self._lock:
            self._versions[server] = 0

    def add_dataset(self, dataset: Any) -> PerWorkerDataset:
        """Registers data that each worker creates for itself."""
        self._check_time("create_per_worker_dataset")
        self._datasets.append(dataset)
        return PerWorkerDataset(self, len(self._datasets) - 1)

    def add_values(self, function: Callable[..., Any]) -> PerWorkerValues:
        """Registers a value that each worker creates for itself."""
        self._check_time("create_per_worker_values")
        self._values.append(function)
        return PerWorkerValues(self, len(self._values) - 1)

    def _check_time(self, method: str) -> None:
        if self._chief is not None or self._works:
            raise WrongStateError(
                f"{method} was called after the first closure, beyond which no worker follows the script",
                action="call it before schedule, join, done and fetch, and before checkpoints are restored or saved",
            )

    def _begun(self) -> Chief:
        """Sets up the servers in the first call. Does not return in a worker, which runs closures from then on."""
        if self._works:
            raise WrongStateError(
                "the coordinator was called in a worker, by a function that it has scheduled",
                action="have the function return what is wanted, and the script schedule it",
            )
        if self._chief is None:
            if self._member.role == "evaluator":
                raise InvalidInputError(
                    "an evaluator evaluates by the validation data of fit, and this script has a loop of its own",
                    action="start the cluster without one, or train by fit",
                )
            self._member.leave_fit()
            gc.collect()  # else garbage in cycles would exist in some processes only
            served = self._describe()
            if self._member.role == "worker":
                part_random_states(served.local, worker=self._member.index)
                self._works = True
                self._member.work(lambda: self._equip(served))
            self._chief = self._member.begin_coordination(served, is_for_fit=False)
            self._assigned = [stored_value(variable) for variable in served.variables]
            self._versions = [0] * self._member.cluster.num_servers
        return self._chief

    def _describe(self) -> ServedModel:
        variables = self._member.layout.variables
        found = set(map(id, variables))
        optimizers = [one for one in built_optimizers() if any(id(own) in found for own in trained_variables(one))]
        wrapped = {id(getattr(one, "inner_optimizer", None)) for one in optimizers}
        optimizers = [one for one in optimizers if id(one) not in wrapped]
        own = {id(variable) for optimizer in optimizers for variable in optimizer.variables}
        return self._member.describe(
            [one for one in variables if id(one) not in own and one.aggregation != "only_first_replica"],
            optimizers=optimizers,
            is_kept=_is_kept,
        )

    @contextmanager
    def _equip(self, served: ServedModel) -> Generator[tuple[Mapping[str, AbstractFunction], Callable[..., Any]]]:
        runner = ClosureRunner(
            self._member.cluster,
            served,
            layout=self._member.layout,
            scope=self._scope,
            compression=self._member.options.compression,
        )
        things = PerWorkerObjects(
            datasets=self._datasets,
            values=self._values,
            context=self._member.context,
            process_name=self._member.cluster.process_name,
        )
        try:
            yield ScheduledFunctions(runner), things.resolve
        finally:
            runner.close()

    def _refer(self, value: Any) -> list[Any] | None:
        if isinstance(value, RemoteValue):
            raise InvalidInputError(
                "a RemoteValue was passed to a closure",
                action="pass its value: coordinator.fetch(value)",
            )
        if isinstance(value, PerWorkerIterator):
            self._check_owner(value.dataset.owner)
            return [ITERATOR, value.dataset.number, value.number, value.dataset.first_iterator]
        if isinstance(value, PerWorkerDataset | PerWorkerValues):
            self._check_owner(value.owner)
            return [DATASET if isinstance(value, PerWorkerDataset) else VALUES, value.number]
        return None

    def _check_owner(self, owner: object) -> None:
        if owner is not self:
            raise InvalidInputError("a closure was given a per-worker object of another cluster")

    def _unpack(self, returned: Any) -> Any:
        """Records the servers' versions when a closure had ended. Called from the dispatcher's thread."""
        with self._lock:
            self._versions = [max(pair) for pair in zip(self._versions, returned["versions"], strict=True)]
            if returned["staleness"] is not None:
                self._staleness += int(returned["staleness"])
                self._num_pushes += 1
        return returned["value"]

    def _wait(self, chief: Chief) -> None:
        try:
            chief.dispatcher.join()
        except ClosureError:
            self._take_values(chief)
            raise
        self._take_values(chief)

    def _take_values(self, chief: Chief) -> None:
        """Updates the variables with the servers' values, after sending what was assigned here.

        No closure may be running.
        """
        changed = self._changed(chief)
        if not changed and not self._is_behind:
            return
        values = {**chief.pull(), **changed}
        if changed:
            chief.write(values)
            self._num_writes += 1
        variables = chief.served.variables
        self._assigned = self._member.layout.to_compute_devices([values[id(variable)] for variable in variables])
        for variable, value in zip(variables, self._assigned, strict=True):
            set_stored_value(variable, value)
        self._is_behind = False

    def _changed(self, chief: Chief) -> dict[int, Any]:
        """Returns the values that were assigned since the last update: arrays are never changed in place.

        When Keras evaluates, it gives a model's variables new arrays with the same values. These do not count. A metric
        counts as reset if it was set to its former values, such as zeros, after closures have run.
        """
        changed: dict[int, Any] = {}
        for index, variable in enumerate(chief.served.variables):
            value = stored_value(variable)
            if value is self._assigned[index]:
                continue
            is_reset = self._is_behind and variable.aggregation == "sum"
            if is_reset or chief.differs({id(variable): value}):
                changed[id(variable)] = value
            else:
                self._assigned[index] = value
        return changed

    def _write_rates(self, chief: Chief) -> None:
        for group, optimizer in enumerate(chief.served.optimizers):
            rate = _learning_rate(optimizer)
            if rate is not None:
                chief.set_learning_rate(rate, group=group)


def _learning_rate(optimizer: Any) -> float | None:
    """Returns the learning rate of an optimizer; None if it follows a schedule."""
    rate = learning_rate_of(optimizer)
    return float(np.asarray(rate.value)) if isinstance(rate, keras.Variable) else None


def _is_kept(variable: Any) -> bool:
    return not is_random_state(variable) and variable.dtype != "bool"
