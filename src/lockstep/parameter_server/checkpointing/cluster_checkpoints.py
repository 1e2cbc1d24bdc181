"""Checkpoints of a cluster: all servers at one closure, written while training goes on, and read by every strategy."""

# Keras is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.checkpoints.arrays import is_finite
from lockstep.checkpoints.run_state import RunState
from lockstep.checkpoints.tables import PART_BYTES, RowsWriter
from lockstep.checkpoints.turnover import Ranking
from lockstep.errors import InvalidInputError, LockstepError, StorageWriteError, UnavailableError, WrongStateError
from lockstep.parameter_server import protocol
from lockstep.parameter_server.checkpointing.checkpointed_model import CheckpointedModel
from lockstep.parameter_server.checkpointing.cluster_state import ClusterCut, write_back
from lockstep.parameter_server.chunks import CHUNK_BYTES, AppliedState, ChunkAssembler, Stage
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.protocol import Setup, to_fields
from lockstep.parameter_server.server.ledger import CLOSURES_OF_A_RUN
from lockstep.parameter_server.whole_state import WholeState, gather
from lockstep.strategies.table_rows import Rows

LOGGER: Final = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0


@final
@dataclass(frozen=True, kw_only=True)
class Restored:
    """The position from which a training goes on.

    Attributes:
        position: the position of the training.
        closure: the closure at which the checkpoint was cut.
        first_closure: the first closure to be assigned from now on.
        state: the content of the checkpoint.
    """

    position: Position
    closure: int
    first_closure: int
    state: TrainingState


@final
@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A checkpoint that was begun, and what it is read from.

    Attributes:
        cut: the part of the servers.
        state: the part of this process.
        served: the positions, in a checkpoint, of what the servers keep.
        closure: the closure at which it is cut.
        watermark: returns the lowest closure that may still push.
    """

    cut: ClusterCut
    state: TrainingState
    served: CheckpointedModel
    closure: int
    watermark: Callable[[], int]


@final
class ClusterCheckpoints:
    """Checkpoints of parameter servers, stored by `lockstep.checkpoints.CheckpointDirectory` like all others.

    Belongs to one thread. Checkpoints are written in another thread.

    Args:
        directory: a local path, a ``file://`` or a ``gs://`` URL.
        setup: what the servers keep.
        connect: a function that returns a new link to the server with an index.
        watching: a function that takes the closure of a checkpoint, and returns a function for the lowest closure that
            may still push. The latter is called from another thread. It raises an error if a closure below the
            checkpoint's has ended without having run.
        others: variables that the servers keep and that do not belong to the model.
        keep: the number of checkpoints to keep.
        part_bytes: the approximate size of a file with rows of a table, in bytes. This process holds as much in memory.
        patience_s: how long `close` waits for closures that have not ended, in seconds.

    Attributes:
        last_whole: the closure at which the last checkpoint was cut that was written or restored; None before the
            first.

    Raises:
        InvalidInputError: the URL is of an unsupported kind, a number is out of range, or the servers run several
            optimizers: a checkpoint has only the model's own.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        setup: Setup,
        connect: Callable[[int], Link],
        watching: Callable[[int], Callable[[], int]],
        others: Sequence[Any] = (),
        keep: int = 2,
        part_bytes: int = PART_BYTES,
        patience_s: float = PATIENCE_S,
    ) -> None:
        num_optimizers = sum(group.optimizer is not None for group in setup.groups)
        if num_optimizers > 1:
            raise InvalidInputError(
                "a checkpoint has the state of the model's own optimizer",
                received=f"{num_optimizers} optimizers on the parameter servers",
                allowed="one",
            )
        self._directory_url = directory
        self._setup = setup
        self._connect = connect
        self._watching = watching
        self._others = others
        self._keep = keep
        self._ranking: Ranking | None = None
        self._damaged: frozenset[int] = frozenset()
        self._part_bytes = part_bytes
        self._patience_s = patience_s
        self._known: tuple[Any, CheckpointedModel] | None = None
        self._links: list[Link] = []
        self._thread: threading.Thread | None = None
        self._gives_up = threading.Event()
        self._failure: Exception | None = None
        self.last_whole: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def rank(self, ranking: Ranking) -> None:
        """Keeps the best checkpoints from now on, besides the latest ones."""
        self._ranking = ranking

    def begin(self, closure: int, *, model: Any, position: Position, run: RunState | None = None) -> None:
        """Begins a checkpoint, which another thread reads and writes; waits until the previous one is written.

        The checkpoint has all pushes of closures below `closure`, and no others.

        Args:
            closure: the closure at which the checkpoint is cut. It must not be assigned to a worker before this
                returns.
            model: the model. What no server keeps is taken from it.
            position: the position of the training. Its step is replaced by that of the servers if they have an
                optimizer.
            run: what the run needs besides its model, if it is to be saved.

        Raises:
            UnavailableError: a server is lost.
            RemoteError: the closure has already pushed.
            InvalidInputError: the model does not match the setup.
        """
        self._join()
        served = self._served(model)
        state = TrainingState.capture(model, position=position, run=run)
        self._gives_up.clear()
        watermark = self._watching(closure)
        try:
            self._links = self._links or self._reach(range(self._setup.placement.num_servers))
            cut = ClusterCut(self._links, closure=closure)
        except LockstepError:
            self._close_links()
            raise
        begun = _Begun(cut=cut, state=state, served=served, closure=closure, watermark=watermark)
        self._thread = threading.Thread(target=self._run, args=(begun,), name="lockstep-checkpoint", daemon=True)
        self._thread.start()

    def give_up(self) -> None:
        """Gives up a checkpoint that waits for closures. May be called from any thread."""
        self._gives_up.set()

    def wait(self) -> None:
        """Waits until the last checkpoint is written.

        Raises:
            StorageWriteError: it could not be written. Training may go on, and the next checkpoint may succeed.
            LockstepError: a server could not be read.
        """
        self._join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Waits as `wait` does, but gives up after a time if closures do not end, and closes the links. Idempotent.

        Raises:
            LockstepError: as for `wait`.
        """
        if self._thread is not None:
            self._thread.join(self._patience_s)
        self._gives_up.set()
        try:
            self.wait()
        finally:
            self._close_links()

    def restore(
        self,
        model: Any,
        *,
        step: int | None = None,
        next_closure: int = 0,
        set_next_number: Callable[[int], object] = lambda _: None,
    ) -> Restored | None:
        """Restores the model and all servers from the latest checkpoint. Sets up servers that are not set up.

        Any strategy may have written the checkpoint. No closure may be running.

        Args:
            model: the model, built, with its optimizer.
            step: the synchronous step with which the coordinator goes on; None for that of the checkpoint.
            next_closure: the coordinator's next closure. Closures from now on have at least this number.
            set_next_number: a function that is called with the number of the next closure, before any server is
                restored.

        Returns:
            The position from which to go on; None if there is no checkpoint.

        Raises:
            CorruptDataError: the latest checkpoint cannot be read.
            InvalidInputError: the checkpoint belongs to another model.
            UnavailableError: a server is lost.
            RemoteError: a server keeps another model.
        """
        state = self._read()
        if state is None:
            return None
        self._known = None  # another model's variables may have other values
        whole = self._served(model).whole(state)
        state.apply(model)
        closure, applied_states = _applied_states(state, num_servers=self._setup.placement.num_servers)
        first = max(next_closure, (closure // CLOSURES_OF_A_RUN + 1) * CLOSURES_OF_A_RUN)
        applied_states = [
            replace(applied_state, closure=first, applied=(), step=applied_state.step if step is None else step)
            for applied_state in applied_states
        ]
        set_next_number(first)
        self._write_back(state, model, dict(enumerate(applied_states)), whole=whole)
        self.last_whole = closure
        return Restored(position=state.position, closure=closure, first_closure=first, state=state)

    def restore_server(self, index: int, *, model: Any, step: int | None = None) -> Restored | None:
        """Restores one server, in place of a lost one, from its part of the latest checkpoint.

        What the lost server had applied after the checkpoint is lost: pushes of closures from the checkpoint's on.

        Args:
            index: the index of the server.
            model: the model. It is not changed.
            step: the synchronous step that the other servers are at; None for that of the checkpoint.

        Returns:
            The position of the checkpoint; None if there is no checkpoint.

        Raises:
            CorruptDataError: as for `restore`.
            InvalidInputError: as for `restore`.
            UnavailableError: as for `restore`.
            RemoteError: as for `restore`.
        """
        self.give_up()  # it may wait for closures that need this server
        state = self._read()
        if state is None:
            return None
        closure, applied_states = _applied_states(state, num_servers=self._setup.placement.num_servers)
        applied_state = applied_states[index] if step is None else replace(applied_states[index], step=step)
        self._write_back(state, model, {index: applied_state}, whole=self._served(model).whole(state))
        self._close_links()  # including the link to the lost server
        return Restored(position=state.position, closure=closure, first_closure=closure, state=state)

    def _read(self) -> TrainingState | None:
        self._join()
        with CheckpointDirectory(self._directory_url, keep=self._keep) as directory:
            state = directory.restore()
            self._damaged |= directory.damaged
            return None if state is None else state.read()

    def _served(self, model: Any) -> CheckpointedModel:
        """Returns the positions of a model's variables. Computed only once: during training the model has no values."""
        if self._known is None or self._known[0] is not model:
            self._known = (model, CheckpointedModel.of(model, setup=self._setup, others=self._others))
        return self._known[1]

    def _write_back(
        self, state: TrainingState, model: Any, applied_states: dict[int, AppliedState], *, whole: WholeState
    ) -> None:
        served = self._served(model)
        links = dict(zip(applied_states, self._reach(applied_states), strict=True))
        try:
            for server, link in links.items():
                own = replace(self._setup, server=server)
                link.request(Message(kind=protocol.SETUP, fields=to_fields(own)))
            write_back(links, self._setup, whole=whole, applied_states=applied_states, rows=self._rows(state, served))
        finally:
            for link in links.values():
                link.close()

    def _rows(self, state: TrainingState, served: CheckpointedModel) -> Iterator[tuple[str, Rows]]:
        stored = {table.saved.name: table for table in state.tables}
        for table in self._setup.tables:
            if table.name in stored:
                yield from ((table.name, rows) for rows in stored[table.name].rows())
            else:
                yield from ((table.name, rows) for rows in served.rows(state, table, max_bytes=CHUNK_BYTES))

    def _reach(self, servers: Iterable[int]) -> list[Link]:
        links: list[Link] = []
        try:
            for server in servers:
                links.append(self._connect(server))
        except BaseException:
            for link in links:
                link.close()
            raise
        return links

    def _run(self, begun: _Begun) -> None:
        try:
            self._write(begun)
            self.last_whole = begun.closure
        except Exception as error:
            is_of_storage = isinstance(error, OSError)
            failure = StorageWriteError(self._not_written(error)) if is_of_storage else error
            LOGGER.warning("epoch %d has no checkpoint, and training goes on: %s", begun.state.position.epoch, failure)
            self._failure = failure
            self._close_links()  # this makes the servers forget the cut
            return
        try:
            begun.cut.end()
        except LockstepError:  # a server is lost, but the checkpoint is complete
            self._close_links()

    def _write(self, begun: _Begun) -> None:
        with CheckpointDirectory(self._directory_url, keep=self._keep) as directory:
            directory.note_damaged(self._damaged)
            if self._ranking is not None:
                directory.rank(self._ranking)
            name = f"{begun.state.position.step:x}-{uuid.uuid4().hex}"
            writer = RowsWriter(directory.tables, name=name, part_bytes=self._part_bytes)
            try:
                states: list[Any] = []
                applied_states: list[AppliedState] = []
                for server in range(self._setup.placement.num_servers):
                    assembler = ChunkAssembler()
                    for chunk in begun.cut.read(server, watermark=begun.watermark, wait=self._wait):
                        if chunk.header.applied_state is not None:
                            applied_states.append(chunk.header.applied_state)
                        elif chunk.header.stage is Stage.ROWS:
                            rows = chunk.rows()
                            if not all(map(is_finite, (rows.values, *rows.state.values()))):
                                raise _not_finite(f"rows of table {chunk.header.table}")
                            writer.add(f"{chunk.header.table}", rows)
                        assembler.add(chunk)
                    states.append(assembler.finish())
                cluster = {"closure": begun.closure, "servers": [asdict(one) for one in applied_states]}
                begun.watermark()
                tables = begun.served.saved_tables(writer.finish(), folder=directory.tables)
                num_pushes = max((table.saved.num_pushes for table in tables), default=None)
                whole = begun.served.checkpoint(
                    begun.state,
                    gather(self._setup, states),
                    num_table_pushes=num_pushes,
                    last_step=directory.latest_step(),
                )
                # Untrained variables do not count: a constant of a model may be infinite.
                found = whole.non_finite_variables() - set(whole.paths["non_trainable"])
                if found:
                    raise _not_finite(min(found))
                directory.save(replace(whole, tables=tables, cluster=cluster))
                directory.wait()
            except BaseException:
                with contextlib.suppress(OSError):
                    writer.discard()
                raise

    def _wait(self, timeout_s: float) -> None:
        if self._gives_up.wait(timeout_s):
            raise UnavailableError("a checkpoint was given up: not all closures before it have ended")

    def _not_written(self, error: Exception) -> str:
        return f"a checkpoint cannot be written to {os.fspath(self._directory_url)}: {error}"

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _close_links(self) -> None:
        links, self._links = self._links, []
        for link in links:
            link.close()


def _not_finite(what: str) -> WrongStateError:
    return WrongStateError(
        "training could not go on from NaN or infinite parameters, so that they are not saved",
        received=what,
        action="lower the learning rate, or clip gradients; the last checkpoint is an earlier one",
    )


def _applied_states(state: TrainingState, *, num_servers: int) -> tuple[int, list[AppliedState]]:
    """Returns the closure at which a checkpoint was cut, and what each server had applied, as far as it is recorded."""
    cluster = state.cluster
    if cluster is None:
        return 0, [AppliedState()] * num_servers
    found = [AppliedState(**{**one, "applied": tuple(map(tuple, one["applied"]))}) for one in cluster["servers"]]
    if len(found) != num_servers:
        most = max(found, key=lambda one: one.num_applied)
        found = [most] * num_servers
    return int(cluster["closure"]), found
