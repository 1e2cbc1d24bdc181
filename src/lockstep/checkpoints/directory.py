"""A directory of checkpoints, one folder for each, kept by Orbax."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, final

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from lockstep.checkpoints.state import Position, TrainingState
from lockstep.checkpoints.tables import FOLDER, SavedTable, StoredTable, remove_unnamed
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, StorageWriteError
from lockstep.processes.exits import STARTS_THREADS, finish_at_exit

logger = logging.getLogger(__name__)

_ARRAYS: Final = "arrays"
_DOCUMENT: Final = "document"
_SCHEMES: Final = ("file", "gs")
_PART_BYTES: Final = 2**28
_MOST_FAILURES: Final = 4
"""Orbax writes with so many threads, about; each may fail once."""


@final
class CheckpointDirectory:
    """Saves and reads training states; each appears whole or not at all, and the last ones are kept.

    Every replica holds the same values, so the chief alone writes and reads; a restored state is sent to the other
    processes, which need not see the directory. Writing goes on in a thread while training goes on. The object belongs
    to one thread; one process at a time may write into a directory.

    Args:
        directory: a local path, a ``file://`` or a ``gs://`` URL.
        keep: how many checkpoints are kept, the latest ones.
        is_read_only: whether another process writes into the directory, which is there and is left as it is.

    Raises:
        InvalidInputError: the URL is of another kind, or ``keep`` is not positive.
        StorageWriteError: the directory cannot be made.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2, is_read_only: bool = False) -> None:
        if keep < 1:
            raise InvalidInputError("how many checkpoints to keep", received=keep, allowed="1 or more")
        self._path = open_path(directory)
        self._keep = keep
        self._is_read_only = is_read_only
        self._is_chief = jax.process_index() == 0
        self._manager = self._make_manager() if self._is_chief else None
        self._has_saved = False
        self._take_back: Callable[[], None] | None = None

    @property
    def url(self) -> str:
        """Where the checkpoints are."""
        return str(self._path)

    @property
    def tables(self) -> epath.Path:
        """Where rows of parameter servers' tables are, beside the checkpoints that name them."""
        return self._path / FOLDER

    def latest_step(self) -> int | None:
        """Looks which step the latest checkpoint is of; None where there is none, and in all processes but the chief.

        Raises:
            CorruptDataError: the directory cannot be read.
        """
        if self._manager is None:
            return None
        try:
            self._manager.reload()
        except (OSError, ValueError) as error:
            raise CorruptDataError(f"the checkpoints in {self._path} cannot be listed: {error}") from error
        return self._manager.latest_step()

    def save(self, state: TrainingState) -> None:
        """Starts to write a state, under the number of its step; waits for the one before to be written.

        A script that ends before it is written waits for it; where it cannot be written then, the exit code and a line
        say so (`lockstep.processes.exits`). Python 3.12.0 and 3.12.1 cannot finish it at the script's end, so this
        waits there until the state is written.

        Only the chief writes; in other processes this does nothing. Where that step, or a later one, is there already,
        the state takes the number after the latest: none is removed before it is written.

        Raises:
            StorageWriteError: this state, or the one before, could not be written.
        """
        if self._manager is None:
            return
        document = {
            "position": state.position.to_json(),
            "paths": state.paths,
            "generators": state.generators,
            "tables": [table.saved.to_json() for table in state.tables],
            "cluster": state.cluster,
        }
        arrays = {name: dict(group) for name, group in state.arrays.items() if group}
        try:
            self._manager.wait_until_finished()
            self._has_saved = True
            latest = self._manager.latest_step()
            step = state.position.step if latest is None else max(state.position.step, latest + 1)
            self._forget_exit()
            self._take_back = finish_at_exit(self.wait, what=f"checkpoint {step} in {self._path}")
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    **{_ARRAYS: ocp.args.StandardSave(arrays), _DOCUMENT: ocp.args.JsonSave(document)}
                ),
            )
            if not STARTS_THREADS:
                self._manager.wait_until_finished()
        except (OSError, ValueError) as error:
            raise self._not_written(error) from error

    def restore(self, step: int | None = None) -> TrainingState | None:
        """Reads a state, in every process; None where there is none.

        Args:
            step: the number that it was saved under; the latest one by default.

        Raises:
            CorruptDataError: the checkpoint cannot be read.
        """
        if jax.process_count() == 1:
            return self._read(step)
        found: TrainingState | LockstepError | None = None
        try:
            found = self._read(step)
            found = None if found is None else found.with_whole_tables()
        except LockstepError as error:
            found = error  # the other processes wait for an answer
        return _from_chief(found)

    def wait(self) -> None:
        """Waits until what was saved is written.

        Raises:
            StorageWriteError: it could not be written.
        """
        if self._manager is not None:
            try:
                self._manager.wait_until_finished()
            except (OSError, ValueError) as error:
                raise self._not_written(error) from error
            finally:
                self._forget_exit()
            if self._has_saved:  # else another process may be writing
                self._remove_unnamed_rows()

    def close(self) -> None:
        """Waits as `wait` does, and lets go of the directory; a second call does nothing.

        Raises:
            StorageWriteError: as `wait` does; it is let go of all the same.
        """
        try:
            self.wait()
        finally:
            manager, self._manager = self._manager, None
            if manager is not None:
                self._close(manager)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _forget_exit(self) -> None:
        take_back, self._take_back = self._take_back, None
        if take_back is not None:
            take_back()

    def _close(self, manager: ocp.CheckpointManager) -> None:
        """Closes Orbax's manager, which says what each of its threads met, one a call, before it closes anything."""
        failure: Exception | None = None
        for _ in range(_MOST_FAILURES):
            try:
                manager.close()
                break
            except (OSError, ValueError) as error:
                failure = error
        if failure is not None:
            raise self._not_written(failure) from failure

    def _make_manager(self) -> ocp.CheckpointManager:
        if not self._is_read_only:
            try:
                self._path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._not_written(error) from error
        options = ocp.CheckpointManagerOptions(
            read_only=self._is_read_only,
            save_interval_steps=0 if self._is_read_only else 1,  # Orbax warns of any other
            max_to_keep=None if self._is_read_only else self._keep,
            cleanup_tmp_directories=not self._is_read_only,  # of a process that was killed while it wrote
            create=False,  # Orbax refuses to make the directory where only some processes take part
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=0, active_processes={0}, barrier_sync_key_prefix="lockstep"
            ),
        )
        return ocp.CheckpointManager(self._path, options=options)

    def _remove_unnamed_rows(self) -> None:
        assert self._manager is not None, "this process writes"
        try:
            if self.tables.exists():
                documents = [self._read_document(step) for step in self._manager.all_steps()]
                remove_unnamed(self.tables, tables=[table for one in documents for table in _saved_tables(one)])
        except (OSError, ValueError, KeyError, TypeError, CorruptDataError) as error:
            logger.warning("rows of tables that no checkpoint names are left in %s: %s", self.tables, error)

    def _read_document(self, step: int) -> Any:
        assert self._manager is not None, "this process reads"
        found: Any = self._manager.restore(step, args=ocp.args.Composite(**{_DOCUMENT: ocp.args.JsonRestore()}))
        return found[_DOCUMENT]

    def _read(self, step: int | None) -> TrainingState | None:
        if step is None and self._manager is not None:
            step = self._manager.latest_step()
        if self._manager is None or step is None:
            return None
        try:
            found: Any = self._manager.restore(
                step,
                args=ocp.args.Composite(**{_ARRAYS: ocp.args.StandardRestore(), _DOCUMENT: ocp.args.JsonRestore()}),
            )
            document = found[_DOCUMENT]
            return TrainingState(
                position=Position.from_json(document["position"]),
                arrays=found[_ARRAYS],
                paths=document["paths"],
                generators=document["generators"],
                tables=tuple(StoredTable(saved=table, folder=self.tables) for table in _saved_tables(document)),
                cluster=document.get("cluster"),
            )
        except (OSError, ValueError, KeyError, TypeError, CorruptDataError) as error:
            first_line = str(error).partition("\n")[0]
            raise CorruptDataError(
                f"checkpoint {self._path / str(step)} cannot be read: {first_line}",
                action="delete that folder to go on from the checkpoint before it",
            ) from error

    def _not_written(self, error: Exception) -> StorageWriteError:
        return StorageWriteError(f"a checkpoint cannot be written to {self._path}: {error}")


def _saved_tables(document: Any) -> list[SavedTable]:
    return [SavedTable.from_json(table) for table in document.get("tables", [])]


def open_path(directory: str | os.PathLike[str]) -> epath.Path:
    """Returns where a directory of checkpoints is.

    Raises:
        InvalidInputError: the URL is of a kind that checkpoints cannot be kept at.
    """
    text = os.fspath(directory)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return epath.Path(os.path.abspath(os.path.expanduser(text)))
    if scheme not in _SCHEMES:
        raise InvalidInputError(
            "checkpoints cannot be kept there", received=text, allowed="a local path, file:// or gs://"
        )
    return epath.Path(rest if scheme == "file" else text)


def _from_chief(found: TrainingState | LockstepError | None) -> TrainingState | None:
    """Sends what the chief found to every process: a line of JSON that describes it, then the arrays' bytes.

    Bytes arrive as they were sent, whatever the dtype; JAX would turn 64-bit numbers into 32-bit ones.
    """
    from jax.experimental import multihost_utils  # slow to import, and one process needs none of it

    payload = np.frombuffer(_pack(found), np.uint8)
    # In parts: a device holds one at a time, and 32 bits count them.
    sizes = np.array(divmod(payload.size, _PART_BYTES), np.uint32)
    num_whole, rest_bytes = map(int, multihost_utils.broadcast_one_to_all(sizes))
    received = bytearray()
    for part_bytes in filter(None, [*[_PART_BYTES] * num_whole, rest_bytes]):
        part = payload[len(received) : len(received) + part_bytes]
        part = part if jax.process_index() == 0 else np.zeros(part_bytes, np.uint8)
        received += np.asarray(multihost_utils.broadcast_one_to_all(part), np.uint8).tobytes()
    return _unpack(bytes(received))


def _pack(found: TrainingState | LockstepError | None) -> bytes:
    if found is None or isinstance(found, LockstepError):
        return json.dumps({"error": str(found)} if found else None).encode() + b"\n"
    flat = [(group, key, value) for group, arrays in found.arrays.items() for key, value in arrays.items()]
    outline = {
        "position": found.position.to_json(),
        "paths": found.paths,
        "generators": found.generators,
        "initial": sorted(found.initial),
        "arrays": [[group, key, list(value.shape), value.dtype.name] for group, key, value in flat],
    }
    return b"".join(
        [json.dumps(outline).encode(), b"\n", *(np.ascontiguousarray(value).tobytes() for *_, value in flat)]
    )


def _unpack(payload: bytes) -> TrainingState | None:
    line, _, data = payload.partition(b"\n")
    outline = json.loads(line)
    if outline is None:
        return None
    if "error" in outline:
        raise CorruptDataError(f"the chief could not restore: {outline['error']}")
    arrays: dict[str, dict[str, np.ndarray]] = {}
    start = 0
    for group, key, shape, dtype in outline["arrays"]:
        count = math.prod(shape)
        value = np.frombuffer(data, np.dtype(dtype), count, start).reshape(shape)
        arrays.setdefault(group, {})[key] = value
        start += value.nbytes
    return TrainingState(
        position=Position.from_json(outline["position"]),
        arrays=arrays,
        paths=outline["paths"],
        generators=outline["generators"],
        initial=frozenset(outline["initial"]),
    )
