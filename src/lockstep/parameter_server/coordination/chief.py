"""The coordinator's control of its cluster: what the servers keep, and which workers run closures."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, final

import jax
import keras
import numpy as np

from lockstep.errors import UnavailableError
from lockstep.parameter_server import protocol
from lockstep.parameter_server.checkpointing.cluster_state import write_back
from lockstep.parameter_server.chunks import AppliedState
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.dispatching import Dispatcher
from lockstep.parameter_server.coordination.open_step import OpenStep, expect
from lockstep.parameter_server.coordination.remote_values import Closure, RemoteValue
from lockstep.parameter_server.coordination.server_recovery import CLOSE_TIMEOUT_S, MAX_LOSSES, ServerRecovery
from lockstep.parameter_server.coordination.working import pack_call
from lockstep.parameter_server.flattening import flatten, unflatten
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.model_setup import ServedModel, trained_variables
from lockstep.parameter_server.protocol import Rate, to_fields
from lockstep.parameter_server.servers import Servers, is_missing_values
from lockstep.parameter_server.whole_state import gather, local_state, placed_slots
from lockstep.upstream.keras_variables import learning_rate_of

LOGGER: Final = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@final
class Chief:
    """Sets up the servers, assigns closures to workers, and reads and writes the values of variables.

    Belongs to one thread, except where stated otherwise. If a server is lost, its successor is restored from the last
    checkpoint (`recovery`), and workers repeat the steps that had not ended. Without a checkpoint, the training ends.

    Args:
        cluster: the processes of the cluster.
        served: what the servers are to keep, with this process's variables, whose values are the initial ones.
        max_lead: the number of steps that a worker may be ahead of the slowest one; None for no limit.
        num_backups: the number of workers whose pushes a synchronous step need not wait for.
        stage: the stage that the script is in; see `Dispatcher`.
        stage_results: the message with the results of the previous stage; None if there is none.

    Attributes:
        recovery: watches the servers, and restores lost ones.
        num_writes: the number of times that the values were set. What workers pulled before the last time is outdated.
        num_restores: the number of times that the servers were restored from a checkpoint. What workers' pushes left
            out before the last time is void.
    """

    def __init__(
        self,
        cluster: Cluster,
        served: ServedModel,
        *,
        max_lead: int | None,
        num_backups: int,
        stage: int = 0,
        stage_results: Message | None = None,
    ) -> None:
        self._cluster = cluster
        self.served = served
        placement = served.setup.placement
        self._unflatten: Any = jax.jit(lambda buffers: unflatten(placement, buffers))
        everything = range(len(placement.variables))
        self._flatten: Any = jax.jit(lambda values: flatten(placement, everything, values)[0])
        self._slots = [
            placed_slots(optimizer, trained_variables(optimizer), placement=placement)
            for optimizer in served.optimizers
        ]
        self._last_values: dict[int, np.ndarray[Any, Any]] = {}
        self.num_writes = self.num_restores = 0
        self._rates = {
            number: float(np.asarray(rate.value))
            for number, optimizer in enumerate(served.optimizers)
            if isinstance(rate := learning_rate_of(optimizer), keras.Variable)
        }
        self._servers = cluster.reach_servers()
        control = cluster.reach_servers()  # for the dispatcher's thread
        self._open_step = OpenStep(control, dispatcher=lambda: self.dispatcher, num_backups=num_backups)
        self._servers.set_up(served.setup)
        first_closure = self._servers.begin()
        self._write_first_state(first_closure)
        self.dispatcher = Dispatcher(
            cluster.listen(),
            first_closure=first_closure,
            max_lead=max_lead,
            wait_for_workers_s=cluster.start_within_s,
            on_change=self._workers_have_changed,
            stage=stage,
            stage_results=stage_results,
        )
        self.recovery = ServerRecovery(
            cluster,
            served.setup,
            dispatcher=self.dispatcher,
            open_step=self._open_step,
            restore_rates=self._restore_rates,
        )

    @property
    def num_workers(self) -> int:
        """The number of connected workers, but at least one."""
        return max(1, len(self.dispatcher.workers))

    def schedule(
        self,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        choose: Callable[[str], Mapping[str, Any]] | None = None,
        on_end: Callable[[RemoteValue], object] | None = None,
        num_steps: int = 1,
        unpack: Callable[[Any], Any] | None = None,
        holds: Any = None,
        **options: Any,
    ) -> RemoteValue:
        """Schedules a call of a function in a worker; see `Dispatcher.schedule` and `Closure`."""
        arguments, arrays = pack_call(tuple(args), dict(kwargs or {}), **options)
        closure = Closure(
            function=function,
            arguments=arguments,
            arrays=arrays,
            choose=choose,
            on_end=on_end,
            num_steps=num_steps,
            unpack=unpack,
            holds=holds,
        )
        return self.dispatcher.schedule(closure)

    def pull(self) -> dict[int, Any]:
        """Pulls the values of the variables. Returns them as JAX arrays, by the ids of the variables."""
        buffers = [dict(own) for own in self._ask(lambda servers: servers.pull()).dense]
        values = jax.block_until_ready(self._unflatten(buffers))
        found = {id(variable): value for variable, value in zip(self.served.variables, values, strict=True)}
        self._last_values = {key: np.asarray(value) for key, value in found.items()}
        return found

    def note_restored(self) -> None:
        """Records that the servers were restored from a checkpoint, and pulls their values as the last known ones."""
        self.num_writes += 1
        self.num_restores += 1
        self.pull()

    def read_optimizer(self, optimizer: Any) -> list[np.ndarray[Any, Any] | None]:
        """Returns copies of an optimizer's own variables, in its order; None for those that no server has whole.

        Args:
            optimizer: one of the optimizers that the servers run.
        """
        setup = self.served.setup
        group = next(number for number, one in enumerate(self.served.optimizers) if one is optimizer)

        def read(servers: Servers) -> list[np.ndarray[Any, Any] | None]:
            found = gather(setup, servers.read_states()).optimizer_values(self._slots[group], group=group)
            return [None if value is None else np.array(value) for value in found]

        return self._ask(read)

    def write(self, values: Mapping[int, Any]) -> None:
        """Sets the values of all variables in the servers. No closure may be running.

        Args:
            values: the values by the ids of the variables.
        """
        ordered = [values[id(variable)] for variable in self.served.variables]
        buffers = [{dtype: np.asarray(array) for dtype, array in own.items()} for own in self._flatten(ordered)]
        self.num_writes += 1
        self._ask(lambda servers: servers.write(buffers))
        self._last_values = {
            id(one): np.asarray(value) for one, value in zip(self.served.variables, ordered, strict=True)
        }

    def _write_first_state(self, first_closure: int) -> None:
        """Sends the servers the model's whole state with that of its optimizers: it may be trained already."""
        links: dict[int, Link] = {}
        try:
            for server in range(self._cluster.num_servers):
                links[server] = self._cluster.reach_server(server)
            write_first_state(links, self.served, first_closure=first_closure)
        finally:
            for link in links.values():
                link.close()
        self.num_writes += 1
        self._last_values = {id(variable): np.asarray(variable.value) for variable in self.served.variables}

    def differs(self, values: Mapping[int, Any]) -> bool:
        """Whether values of variables that the servers keep differ from those that were last read or written.

        Args:
            values: the values of all or some variables, by the ids of the variables.
        """
        return any(
            self._last_values[key].tobytes() != np.asarray(value).tobytes()
            for key, value in values.items()
            if key in self._last_values
        )

    def read_rows(self, wanted: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns copies of rows of tables.

        Args:
            wanted: the ids of the rows by table name: int64[rows], ascending.

        Returns:
            float32[rows, columns] for each table.
        """
        rows = self._ask(lambda servers: servers.pull(wanted=wanted, is_answered_by_values=False)).rows
        return {name: np.array(own) for name, own in rows.items()}

    def set_learning_rate(self, learning_rate: float, *, group: int) -> None:
        """Sets the learning rate of a group's optimizer, and of the rows that follow it, from the next push on.

        The servers are only told if the rate has changed.
        """
        if self._rates[group] == learning_rate:
            return
        self._rates[group] = learning_rate
        self._ask(lambda servers: servers.set_learning_rate(learning_rate, group=group, tables=self._following(group)))

    def _following(self, group: int) -> list[str]:
        return [table.spec.name for table in self.served.tables if table.follows == group]

    def reach_server(self, index: int) -> Link:
        """Connects to one server, for requests beside those of this object. May be called from any thread.

        Raises:
            UnavailableError: the server does not start in time.
        """
        return self._cluster.reach_server(index)

    @property
    def round(self) -> int:
        """The synchronous step that is being collected, or the next one."""
        return self._open_step.number

    def begin_round(self, step: int) -> int:
        """Begins a synchronous step, and tells the servers; returns its number of closures."""
        num_closures = self._open_step.begin(step)
        self._ask(lambda servers: self._open_step.announce(servers, step=step))
        return num_closures

    def end_round(self, following: int) -> None:
        """Ends a synchronous step. `following` is the number of the next one."""
        self._open_step.end(following)

    def leave_round(self, following: int) -> None:
        """Ends a synchronous step after an error, and makes the servers give it up, so that waiting workers go on."""
        self.end_round(following)
        if not self.dispatcher.is_settled:
            self._ask(lambda servers: expect(servers, 1, step=following))

    def end_stage(self, last_message: Message) -> None:
        """Ends this training but not the cluster: workers continue their scripts, and servers wait for another model.

        Args:
            last_message: the last message for the workers.
        """
        self.recovery.end()
        self.dispatcher.close(last_message)
        self._servers.clear()
        self._servers.close()
        self._open_step.close()
        self.recovery.close()

    def close(self) -> None:
        """Ends the cluster: tells workers and servers that the training is over. Idempotent."""
        self.recovery.end()
        self.dispatcher.close()
        for server in self._servers.finish():  # a successor may have come in its place, and waits
            with (
                contextlib.suppress(UnavailableError),
                contextlib.closing(self._cluster.reach_server(server, within_s=CLOSE_TIMEOUT_S)) as link,
            ):
                link.request(Message(kind=protocol.DONE))
        self._servers.close()
        self._open_step.close()
        self.recovery.close()

    def _workers_have_changed(self, names: list[str]) -> None:
        if not self._open_step.workers_have_changed(len(names)):
            self.recovery.recover_in_background()

    def _restore_rates(self, link: Link) -> None:
        for group, rate in self._rates.items():
            fields = to_fields(Rate(group=group, learning_rate=rate, tables=tuple(self._following(group))))
            link.request(Message(kind=protocol.RATE, fields=fields))

    def _ask(self, request: Callable[[Servers], Answer]) -> Answer:
        """Sends a request to the servers, and repeats it if one of them was lost meanwhile."""
        for _ in range(MAX_LOSSES):
            try:
                return request(self._servers)
            except UnavailableError as error:
                LOGGER.warning("a parameter server is out of reach: %s", error)
            except RemoteError as error:
                if not is_missing_values(error):
                    raise
            self.recovery.recover()
            self._servers.close()
            self._servers = self._cluster.reach_servers()
        return request(self._servers)


def write_first_state(links: Mapping[int, Link], served: ServedModel, *, first_closure: int) -> None:
    """Sends servers that are set up the values of a process's variables, and of its optimizers' own variables.

    Args:
        links: the links to all servers, by index.
        served: what the servers keep.
        first_closure: the number of the first closure to come.

    Raises:
        UnavailableError: a server is lost.
    """
    optimizers = [(one, trained_variables(one)) for one in served.optimizers]
    whole = local_state(served.setup, served.variables, optimizers=optimizers)
    applied_state = AppliedState(closure=first_closure)
    write_back(links, served.setup, whole=whole, applied_states=dict.fromkeys(links, applied_state), rows=())
