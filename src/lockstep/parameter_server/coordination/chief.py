"""The coordinator's hold of its cluster: what the servers keep, and who runs closures."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import jax
import numpy as np

from lockstep.errors import LockstepError, UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.dispatching import Closure, Dispatcher, RemoteValue
from lockstep.parameter_server.coordination.working import pack_call
from lockstep.parameter_server.flattening import flatten, unflatten
from lockstep.parameter_server.links import Link
from lockstep.parameter_server.model_setup import ServedModel
from lockstep.parameter_server.protocol import Mode

LOGGER: Final = logging.getLogger(__name__)


@final
class Chief:
    """Sets the servers up, gives closures to workers, and reads and writes the variables' values.

    Belongs to one thread but for what is said otherwise.

    Args:
        cluster: who is in it.
        served: what the servers are to keep, with this process's variables, whose values are the first ones.
        max_lead: how many steps a worker may be ahead of the slowest; None for any number.
        num_backups: of a synchronous step, how many workers need not have pushed.
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
        self._known: dict[int, np.ndarray[Any, Any]] = {}
        self._expectations = threading.Lock()
        self._round_size = 0
        self._servers = cluster.reach_servers()
        self._control = cluster.reach_servers()  # for the dispatcher's thread
        self._servers.set_up(served.setup)
        self.write({id(variable): variable.value for variable in served.variables})
        self.dispatcher = Dispatcher(
            cluster.listen(),
            max_lead=max_lead,
            wait_for_workers_s=cluster.start_within_s,
            on_change=self._workers_have_changed,
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
        unpack: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> RemoteValue:
        """Has a worker call a function; see `Dispatcher.schedule` and `Closure`."""
        arguments, arrays = pack_call(tuple(args), dict(kwargs or {}), **options)
        closure = Closure(
            function=function, arguments=arguments, arrays=arrays, choose=choose, on_end=on_end, unpack=unpack
        )
        return self.dispatcher.schedule(closure)

    def pull(self) -> dict[int, Any]:
        """Returns the variables' values, as arrays of JAX, by the variables' identities."""
        buffers = [dict(own) for own in self._servers.pull().dense]
        values = jax.block_until_ready(self._unflatten(buffers))
        found = {id(variable): value for variable, value in zip(self.served.variables, values, strict=True)}
        self._known = {key: np.asarray(value) for key, value in found.items()}
        return found

    def write(self, values: Mapping[int, Any]) -> None:
        """Gives the servers values for all variables; nothing may be under way.

        Args:
            values: by the variables' identities.
        """
        ordered = [values[id(variable)] for variable in self.served.variables]
        buffers = [{dtype: np.asarray(array) for dtype, array in own.items()} for own in self._flatten(ordered)]
        self._servers.write(buffers)
        self._known = {id(one): np.asarray(value) for one, value in zip(self.served.variables, ordered, strict=True)}

    def differs(self, values: Mapping[int, Any]) -> bool:
        """Whether values are other ones than those that were read, or written, last."""
        return any(known.tobytes() != np.asarray(values[key]).tobytes() for key, known in self._known.items())

    def read_rows(self, table: str, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns a copy of rows of a table.

        Args:
            table: its name.
            ids: int64[rows], rising.

        Returns:
            float32[rows, columns].
        """
        return self._servers.pull(wanted={table: ids}, is_answered_by_values=False).rows[table]

    def set_learning_rate(self, learning_rate: float, *, group: int) -> None:
        """Sets the rate of a group's optimizer, and of the rows that follow it, from the next push on."""
        tables = [table.spec.name for table in self.served.tables if table.follows_model]
        self._servers.set_learning_rate(learning_rate, group=group, tables=tables)

    def reach_server(self, index: int) -> Link:
        """Connects to one server, for who asks it beside this; any thread may.

        Raises:
            UnavailableError: it is not there in time.
        """
        return self._cluster.reach_server(index)

    def begin_round(self) -> int:
        """Says that a synchronous step begins; returns of how many closures it is."""
        with self._expectations:
            self._round_size = self.num_workers
            self._expect(self._servers, self._round_size)
            return self._round_size

    def close(self) -> None:
        """Ends the cluster: workers and servers are told that it is over. Idempotent."""
        self.dispatcher.close()
        with contextlib.suppress(UnavailableError):
            self._servers.finish()
        self._servers.close()
        self._control.close()

    def _workers_have_changed(self, names: list[str]) -> None:
        if not self._is_synchronous:
            return
        with self._expectations:
            if self._round_size:
                try:
                    self._expect(self._control, min(self._round_size, max(1, len(names))))
                except LockstepError as error:
                    LOGGER.warning("the servers could not be told how many workers there are: %s", error)

    def _expect(self, servers: Any, num_workers: int) -> None:
        servers.expect(max(1, num_workers - self._num_backups))
