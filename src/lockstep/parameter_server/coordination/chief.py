"""The coordinator's hold of its cluster: what the servers keep, and who runs closures."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

import jax
import keras
import numpy as np

from lockstep.errors import LockstepError, UnavailableError, counted
from lockstep.parameter_server import protocol
from lockstep.parameter_server.checkpointing.cluster_state import write_back
from lockstep.parameter_server.chunks import Standing
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.dispatching import Closure, Dispatcher, RemoteValue
from lockstep.parameter_server.coordination.working import pack_call
from lockstep.parameter_server.flattening import flatten, unflatten
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.model_setup import ServedModel, trained_variables
from lockstep.parameter_server.protocol import Mode, Rate, Setup, to_fields
from lockstep.parameter_server.servers import Servers
from lockstep.parameter_server.whole_state import gather, placed_slots, state_here

LOGGER: Final = logging.getLogger(__name__)
FAREWELL_S: Final = 2.0
MAX_LOSSES: Final = 10
"""How often in a row a server may be lost before all are there again."""
Answer = TypeVar("Answer")


class _NoCheckpointError(UnavailableError):
    """What a server had is nowhere."""


@final
@dataclass(frozen=True, kw_only=True)
class CutAt:
    """Where a checkpoint was cut.

    Attributes:
        closure: it has what closures below this one did.
        round: the synchronous step that was next.
        epoch: how many epochs had ended.
    """

    closure: int
    round: int
    epoch: int


@final
class Chief:
    """Sets the servers up, gives closures to workers, and reads and writes the variables' values.

    Belongs to one thread but for what is said otherwise. Where a server is lost, its successor is given what the last
    checkpoint has for it (`restore_server`), and workers take their steps again; without a checkpoint all ends.

    Args:
        cluster: who is in it.
        served: what the servers are to keep, with this process's variables, whose values are the first ones.
        max_lead: how many steps a worker may be ahead of the slowest; None for any number.
        num_backups: of a synchronous step, how many workers need not have pushed.

    Attributes:
        restore_server: given a server's index and the synchronous step, gives it what the last checkpoint has, and
            returns where that was cut; None where there is no checkpoint. Called from any thread.
        round: the synchronous step that is being collected, or that will be next.
        num_writes: how often the values were set: what workers have pulled before is old then.
    """

    def __init__(self, cluster: Cluster, served: ServedModel, *, max_lead: int | None, num_backups: int) -> None:
        self._cluster = cluster
        self.served = served
        self._num_backups = num_backups
        self._is_synchronous = served.setup.mode is Mode.SYNCHRONOUS
        placement = served.setup.placement
        self._unflatten: Any = jax.jit(lambda buffers: unflatten(placement, buffers))
        everything = range(len(placement.variables))
        self._flatten: Any = jax.jit(lambda values: flatten(placement, everything, values)[0])
        self._slots = [
            placed_slots(optimizer, trained_variables(optimizer), placement=placement)
            for optimizer in served.optimizers
        ]
        self._known: dict[int, np.ndarray[Any, Any]] = {}
        self.restore_server: Callable[..., CutAt | None] | None = None
        self.round = 0
        self.num_writes = 0
        self._healing = threading.Lock()
        self._rates = {
            number: float(np.asarray(rate.value))
            for number, optimizer in enumerate(served.optimizers)
            if isinstance(rate := optimizer._learning_rate, keras.Variable)
        }
        self._expectations = threading.Lock()
        self._round_size = self._round_first = 0
        self._servers = cluster.reach_servers()
        self._control = cluster.reach_servers()  # for the dispatcher's thread
        self._servers.set_up(served.setup)
        first_closure = self._servers.begin()
        self._write_first_state(first_closure)
        self.dispatcher = Dispatcher(
            cluster.listen(),
            first_closure=first_closure,
            max_lead=max_lead,
            wait_for_workers_s=cluster.start_within_s,
            on_change=self._workers_have_changed,
            on_again=self._servers_are_missed,
        )

    @property
    def num_workers(self) -> int:
        """How many workers are there, at least one."""
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
        **options: Any,
    ) -> RemoteValue:
        """Has a worker call a function; see `Dispatcher.schedule` and `Closure`."""
        arguments, arrays = pack_call(tuple(args), dict(kwargs or {}), **options)
        closure = Closure(
            function=function,
            arguments=arguments,
            arrays=arrays,
            choose=choose,
            on_end=on_end,
            num_steps=num_steps,
            unpack=unpack,
        )
        return self.dispatcher.schedule(closure)

    def pull(self) -> dict[int, Any]:
        """Returns the variables' values, as arrays of JAX, by the variables' identities."""
        buffers = [dict(own) for own in self._ask(lambda servers: servers.pull()).dense]
        values = jax.block_until_ready(self._unflatten(buffers))
        found = {id(variable): value for variable, value in zip(self.served.variables, values, strict=True)}
        self._known = {key: np.asarray(value) for key, value in found.items()}
        return found

    def read_optimizer(self, optimizer: Any) -> list[np.ndarray[Any, Any] | None]:
        """Returns a copy of an optimizer's own variables, in its order; None for those that no server has whole.

        Args:
            optimizer: one of those that the servers run.
        """
        setup = self.served.setup
        group = next(number for number, one in enumerate(self.served.optimizers) if one is optimizer)

        def read(servers: Servers) -> list[np.ndarray[Any, Any] | None]:
            found = gather(setup, servers.read_states()).optimizer_values(self._slots[group], group=group)
            return [None if value is None else np.array(value) for value in found]

        return self._ask(read)

    def write(self, values: Mapping[int, Any]) -> None:
        """Gives the servers values for all variables; nothing may be under way.

        Args:
            values: by the variables' identities.
        """
        ordered = [values[id(variable)] for variable in self.served.variables]
        buffers = [{dtype: np.asarray(array) for dtype, array in own.items()} for own in self._flatten(ordered)]
        self.num_writes += 1
        self._ask(lambda servers: servers.write(buffers))
        self._known = {id(one): np.asarray(value) for one, value in zip(self.served.variables, ordered, strict=True)}

    def _write_first_state(self, first_closure: int) -> None:
        """Gives the servers all that the model has, its optimizers' state too: it may have been trained before."""
        links: dict[int, Link] = {}
        try:
            for server in range(self._cluster.num_servers):
                links[server] = self._cluster.reach_server(server)
            write_first_state(links, self.served, first_closure=first_closure)
        finally:
            for link in links.values():
                link.close()
        self.num_writes += 1
        self._known = {id(variable): np.asarray(variable.value) for variable in self.served.variables}

    def differs(self, values: Mapping[int, Any]) -> bool:
        """Whether values of variables that the servers keep are other ones than those that were read, or written, last.

        Args:
            values: by the variables' identities; of all variables or some.
        """
        return any(
            self._known[key].tobytes() != np.asarray(value).tobytes()
            for key, value in values.items()
            if key in self._known
        )

    def read_rows(self, wanted: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns a copy of rows of tables.

        Args:
            wanted: int64[rows] of ids, rising, by the tables' names.

        Returns:
            float32[rows, columns] for each.
        """
        rows = self._ask(lambda servers: servers.pull(wanted=wanted, is_answered_by_values=False)).rows
        return {name: np.array(own) for name, own in rows.items()}

    def set_learning_rate(self, learning_rate: float, *, group: int) -> None:
        """Sets the rate of a group's optimizer, and of the rows that follow it, from the next push on.

        The servers are told where it is another one than before.
        """
        if self._rates[group] == learning_rate:
            return
        self._rates[group] = learning_rate
        self._ask(lambda servers: servers.set_learning_rate(learning_rate, group=group, tables=self._following(group)))

    def _following(self, group: int) -> list[str]:
        return [table.spec.name for table in self.served.tables if table.follows == group]

    def reach_server(self, index: int) -> Link:
        """Connects to one server, for who asks it beside this; any thread may.

        Raises:
            UnavailableError: it is not there in time.
        """
        return self._cluster.reach_server(index)

    def begin_round(self, step: int) -> int:
        """Says that a synchronous step begins; returns of how many closures it is."""
        # The dispatcher's thread asks for the lock while it has the dispatcher's.
        num_workers, first = self.num_workers, self.dispatcher.next_closure
        with self._expectations:
            self.round, self._round_size, self._round_first = step, num_workers, first
        self._ask(lambda servers: self._say_expected(servers, step=step))
        return num_workers

    def end_round(self, following: int) -> None:
        """Says that a synchronous step has ended, and which one is next."""
        with self._expectations:
            self.round, self._round_size = following, 0

    def leave_round(self, following: int) -> None:
        """Has the servers give a synchronous step up, which an error has ended: who waits for it goes on."""
        self.end_round(following)
        if self.dispatcher.ended().under_way:
            self._ask(lambda servers: servers.expect(1, step=following))

    def close(self) -> None:
        """Ends the cluster: workers and servers are told that it is over. Idempotent."""
        self.dispatcher.close()
        for server in self._servers.finish():  # another one may have come in its place, and waits
            with (
                contextlib.suppress(UnavailableError),
                contextlib.closing(self._cluster.reach_server(server, within_s=FAREWELL_S)) as link,
            ):
                link.request(Message(kind=protocol.DONE))
        self._servers.close()
        self._control.close()

    def _workers_have_changed(self, names: list[str]) -> None:
        if not self._is_synchronous:
            return
        with self._expectations:
            if self._round_size:
                try:
                    _expect(self._control, self._num_expected(len(names)), step=self.round)
                except LockstepError as error:
                    LOGGER.warning("the servers could not be told how many workers there are: %s", error)

    def _num_expected(self, num_workers: int) -> int:
        """Returns how many pushes the synchronous step needs.

        Once a worker has gone on from it, all servers have had enough, but for one that was lost meanwhile: what this
        gets is of workers that missed it, and who knows how many these are.
        """
        has_ended = self.dispatcher.has_ended_since(self._round_first)
        return 1 if has_ended else max(1, min(self._round_size, num_workers) - self._num_backups)

    def _say_expected(self, servers: Servers, *, step: int) -> None:
        """Says how many pushes a step needs; again where workers came or went meanwhile."""
        said = 0
        while said != (now := self._num_expected(self.num_workers)):
            _expect(servers, now, step=step)
            said = now

    def _ask(self, request: Callable[[Servers], Answer]) -> Answer:
        """Asks the servers something; again where one of them was lost meanwhile."""
        for _ in range(MAX_LOSSES):
            try:
                return request(self._servers)
            except UnavailableError as error:
                LOGGER.warning("a parameter server is out of reach: %s", error)
            except RemoteError as error:
                if not _is_of_a_new_one(error):
                    raise
            self._heal()
            self._servers.close()
            self._servers = self._cluster.reach_servers()
        return request(self._servers)

    def _servers_are_missed(self) -> None:
        """A worker has lost a server: heals in a thread of its own, since everybody else may be waiting for that."""
        if not self._healing.locked():
            threading.Thread(target=self._heal_or_fail, name="healing", daemon=True).start()

    def _heal_or_fail(self) -> None:
        try:
            self._heal()
        except LockstepError as error:
            self.dispatcher.fail(error)
        except Exception as error:  # who waits must hear of it
            LOGGER.exception("a parameter server's successor could not be given what it lacks")
            self.dispatcher.fail(UnavailableError(f"a parameter server's successor cannot be set up: {error!r}"))

    def _heal(self) -> None:
        """Waits until all servers are there, and gives those who are new what the last checkpoint has for them.

        Raises:
            UnavailableError: one of them is not there in time, or there is no checkpoint.
        """
        with self._healing:
            for num_left in reversed(range(MAX_LOSSES)):
                with contextlib.ExitStack() as stack:
                    links = [
                        stack.enter_context(contextlib.closing(self._cluster.reach_server(index)))
                        for index in range(self._cluster.num_servers)
                    ]
                    try:
                        self._restore_lost(links)
                        self._renew_control()
                        step = self.round  # read first: what is said of a step that has ended since is nothing
                        if self._round_size:
                            self._say_expected(Servers(links), step=step)
                        break
                    except _NoCheckpointError:
                        raise
                    except UnavailableError as error:
                        if not num_left:
                            raise
                        LOGGER.warning("a parameter server was lost while others were waited for: %s", error)

    def _renew_control(self) -> None:
        control = self._cluster.reach_servers()
        with self._expectations:
            self._control.close()
            self._control = control

    def _restore_lost(self, links: Sequence[Link]) -> None:
        for index, link in enumerate(links):
            if not _has_values(link, self.served.setup):
                self._restore(index, link)

    def _restore(self, index: int, link: Link) -> None:
        LOGGER.warning("ps %d was lost: another one has come in its place, with nothing", index)
        ended = self.dispatcher.ended()  # before anybody goes on
        step = self.round
        cut = None if self.restore_server is None else self.restore_server(index, step=step)
        if cut is None:
            raise _NoCheckpointError(
                f"ps {index} was lost with its part of the parameters, and there is no checkpoint to begin from",
                action="save checkpoints, and train again: by fit's callback lockstep.training.BackupAndRestore, or "
                "ClusterCoordinator.create_checkpoints",
            )
        for group, rate in self._rates.items():
            fields = to_fields(Rate(group=group, learning_rate=rate, tables=tuple(self._following(group))))
            link.request(Message(kind=protocol.RATE, fields=fields))
        lost = counted(step - cut.round if self._is_synchronous else ended.num_since(cut.closure), "step")
        LOGGER.warning(
            "ps %d has its part of the checkpoint after epoch %d: %s since then are lost to it", index, cut.epoch, lost
        )


def write_first_state(links: Mapping[int, Link], served: ServedModel, *, first_closure: int) -> None:
    """Gives servers that are set up the values of a process's variables, and of its optimizers' own.

    Args:
        links: to all servers, by their numbers.
        served: what they keep.
        first_closure: the number of the first closure to come.

    Raises:
        UnavailableError: a server is gone.
    """
    optimizers = [(one, trained_variables(one)) for one in served.optimizers]
    whole = state_here(served.setup, served.variables, optimizers=optimizers)
    standing = Standing(closure=first_closure)
    write_back(links, served.setup, whole=whole, standings=dict.fromkeys(links, standing), rows=())


def _expect(servers: Servers, num_pushes: int, *, step: int) -> None:
    """Says how many pushes a synchronous step needs."""
    for index, num_left_out in enumerate(servers.expect(num_pushes, step=step)):
        if num_left_out:
            lost = counted(num_left_out, "step")
            LOGGER.warning("ps %d was there too late for all gradients of %s, lost to it as well", index, lost)


def _has_values(link: Link, setup: Setup) -> bool:
    """Whether a server keeps the model, or is new."""
    try:
        link.request(Message(kind=protocol.JOIN, fields={"signature": setup.signature}))
    except RemoteError as error:
        if not _is_of_a_new_one(error):
            raise
        return False
    return True


def _is_of_a_new_one(error: RemoteError) -> bool:
    """Whether a server says that it was not given yet what it is to keep: it has come in the place of one."""
    return error.error == "WrongStateError"
