"""A directory of checkpoints, with one folder for each checkpoint, written and read by Orbax."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self, final

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath

from lockstep.checkpoints.arrays import Array, StoredArray, process_options, unreadable
from lockstep.checkpoints.checksums import SummedSave, SummingHandler, find_damage, write_list
from lockstep.checkpoints.sending import broadcast_number, broadcast_state, check_shared, exists_for_all
from lockstep.checkpoints.state import Position, TrainingState
from lockstep.checkpoints.tables import FOLDER, SavedTable, StoredTable, remove_unnamed
from lockstep.checkpoints.turnover import Ranking, Turnover
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, StorageWriteError
from lockstep.processes.exits import STARTS_THREADS, finish_at_exit
from lockstep.strategies.shares import gather_counts

logger = logging.getLogger(__name__)

_ARRAYS: Final = "arrays"
_DOCUMENT: Final = "document"
_SCHEMES: Final = ("file", "gs")
_CHUNK_BYTES: Final = 2**22
"""The size of a chunk, the least that is read of an array. A different layout reads different chunks."""
_FILE_BYTES: Final = 2**26
"""The target size of a file. Orbax collects this much of it in memory."""
_WRITE_BYTES: Final = 2**25
_WRITE_PART: Final = 16
"""A process compresses and writes `_WRITE_BYTES` bytes of its shards at a time, or 1/`_WRITE_PART` of them if that is
more. A save needs this memory in addition to the copy of the shards."""
_FAILURES: Final = (OSError, ValueError, jax.errors.JaxRuntimeError)
"""The errors that Orbax raises if it cannot write; the last one if another process does not reach a barrier."""
_MOST_FAILURES: Final = 4
"""About the number of threads with which Orbax writes; each may fail once."""


@final
class CheckpointDirectory:
    """Saves and reads training states. Each checkpoint appears whole or not at all. The latest and the best are kept.

    A checkpoint has a list of its files' checksums, which are compared before it is restored. If the latest checkpoint
    is damaged, the one before is restored. The damaged one is removed once the next one is complete.

    If a model is divided over several processes, each process writes its own shards, and all processes must be able to
    access the directory. If every process holds the whole model, only the chief writes. On restore, each process reads
    the shards that it needs. If a process cannot access the directory, the chief sends the state to the processes. So
    every process of a job must call `save`, `restore`, `wait` and `close`.

    A background thread writes while training continues. Only one thread may use the object, and only one job at a time
    may write to a directory.

    Args:
        directory: a local path, a ``file://`` URL or a ``gs://`` URL.
        keep: the number of checkpoints to keep; older ones are removed.
        is_read_only: whether the directory is only read. It must exist then; another process may write to it.

    Raises:
        InvalidInputError: the URL has another scheme, or ``keep`` is not positive.
        StorageWriteError: the directory cannot be created.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 2, is_read_only: bool = False) -> None:
        if keep < 1:
            raise InvalidInputError("keep", received=keep, allowed="1 or more")
        self._path = open_path(directory)
        self._keep = keep
        self._is_read_only = is_read_only
        self._is_chief = jax.process_index() == 0
        self._processes = {0}
        self._write_bytes = _WRITE_BYTES
        self._turnover = Turnover(keep, read_metrics=self._read_metrics)
        self._writing: int | None = None
        self._manager = self._make_manager() if self._is_chief else None
        self._has_saved = False
        self._cancel_exit_hook: Callable[[], None] | None = None

    @property
    def url(self) -> str:
        """The URL or path of the directory."""
        return str(self._path)

    @property
    def tables(self) -> epath.Path:
        """The folder with rows of parameter servers' tables, beside the checkpoints that refer to them."""
        return self._path / FOLDER

    def latest_step(self) -> int | None:
        """Returns the step of the latest checkpoint; None if there is none, and always None in processes but the chief.

        Raises:
            CorruptDataError: the directory cannot be read.
        """
        if self._manager is None or not self._is_chief:
            return None
        try:
            self._manager.reload()
        except (OSError, ValueError) as error:
            raise CorruptDataError(f"the checkpoints in {self._path} cannot be listed: {error}") from error
        return self._manager.latest_step()

    def rank(self, ranking: Ranking) -> None:
        """Keeps the best checkpoints from now on, besides the latest ones. A checkpoint without the metric is none."""
        self._turnover.ranking = ranking

    @property
    def damaged(self) -> frozenset[int]:
        """The steps of checkpoints that `restore` found to be damaged. They do not count among those that are kept."""
        return self._turnover.damaged

    def note_damaged(self, steps: Iterable[int]) -> None:
        """Makes the object treat checkpoints as damaged that another object of this directory has found to be so."""
        self._turnover.note_damaged(steps)

    def save(self, state: TrainingState) -> None:
        """Starts to write a state under the number of its step, after the previous state has been written completely.

        If the script ends before the state is written, the process waits for it. If writing fails then, the exit code
        and a message report it (`lockstep.processes.exits`). Python 3.12.0 and 3.12.1 cannot finish writing at the end
        of the script, so on these versions this method waits until the state is written.

        If this step or a later one exists already, the state gets the number after the latest. So no checkpoint is
        removed before its replacement is written.

        Raises:
            StorageWriteError: this state, or the previous one, could not be written.
            CorruptDataError: the state is still in a checkpoint, and that checkpoint cannot be read.
            InvalidInputError: the state is divided over processes, and one of them cannot access the directory.
        """
        state = state.read()  # if it is still in a checkpoint
        self._prepare(state)
        if self._manager is None:
            return
        document = {
            "position": state.position.to_json(),
            "paths": state.paths,
            "generators": state.generators,
            "arrays": {
                name: {key: [list(value.shape), value.dtype.name] for key, value in group.items()}
                for name, group in state.arrays.items()
            },
            "tables": [table.saved.to_json() for table in state.tables],
            "cluster": state.cluster,
            "run": state.run,
            "has_checksums": True,
        }
        arrays = {name: dict(group) for name, group in state.arrays.items() if group}
        sizes = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES), arrays)
        try:
            self._manager.wait_until_finished()
            self._has_saved = True
            latest = self._manager.latest_step()
            step: int | None = state.position.step if latest is None else max(state.position.step, latest + 1)
            if len(self._processes) > 1:
                step = broadcast_number(step)
            assert step is not None, "the chief has one"
            self._writing = step
            self._turnover.note_metrics(step, _metrics_in(document))
            self._forget_exit()
            self._cancel_exit_hook = finish_at_exit(self.wait, what=f"checkpoint {step} in {self._path}")
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    **{
                        _ARRAYS: SummedSave(arrays, sizes, ocdbt_target_data_file_size=_FILE_BYTES),
                        _DOCUMENT: ocp.args.JsonSave(document),
                    }
                ),
            )
            if not STARTS_THREADS:
                self._manager.wait_until_finished()
        except _FAILURES as error:
            raise self._not_written(error) from error

    def restore(self, step: int | None = None) -> TrainingState | None:
        """Returns a state in every process; None if there is none.

        Its arrays may still be in the checkpoint: `TrainingState.apply` or `TrainingState.read` reads them. Until then
        the checkpoint must not be removed.

        Args:
            step: the number under which the state was saved. By default, the latest one that is not damaged.

        Raises:
            CorruptDataError: the checkpoint of this number is damaged; or without a number, all of them are.
        """
        return self._restore_first([step] if step is not None else reversed(self._steps()))

    def restore_best(self, ranking: Ranking) -> TrainingState | None:
        """Returns the best state in every process, as `restore` does. If it is damaged, returns the next best one.

        Returns:
            The state; None if no checkpoint has the metric.

        Raises:
            CorruptDataError: every checkpoint that has the metric is damaged.
        """
        return self._restore_first(ranking.best_first(self._turnover.metrics_of(self._steps())))

    def _steps(self) -> list[int]:
        """Returns the steps of all checkpoints, in ascending order; an empty list in processes but the chief."""
        return sorted(self._manager.all_steps()) if self._manager is not None and self._is_chief else []

    def _restore_first(self, steps: Iterable[int]) -> TrainingState | None:
        """Returns the first of several states that no process finds to be damaged. The chief's steps count."""
        candidates = iter(steps)
        damages: dict[int, CorruptDataError] = {}
        while True:
            step = broadcast_number(next(candidates, None) if self._is_chief else None)
            if step is None:
                break
            is_shared = jax.process_count() == 1 or exists_for_all(self._path / str(step))
            found: TrainingState | CorruptDataError | None = None
            if is_shared or self._is_chief:
                found = self._check(step, is_shared=is_shared)
            counts = gather_counts(int(isinstance(found, CorruptDataError)))
            if not any(counts):
                self._warn_of(damages, restored=step)
                if is_shared:
                    return found if isinstance(found, TrainingState) else None
                return broadcast_state(_whole(found) if isinstance(found, TrainingState) else None)
            if not isinstance(found, CorruptDataError):
                found = CorruptDataError(
                    f"checkpoint {self._path / str(step)} is damaged: see the log of process {counts.index(1)}"
                )
            damages[step] = found
        self._warn_of(damages, restored=None)
        if not damages:
            return None
        if len(damages) == 1:
            raise next(iter(damages.values()))
        raise CorruptDataError(
            f"all {len(damages)} checkpoints in {self._path} are damaged; {next(iter(damages.values())).what}",
            action="delete them to train from the beginning, or name another directory",
        )

    def _warn_of(self, damages: Mapping[int, CorruptDataError], *, restored: int | None) -> None:
        self._turnover.note_damaged(damages)
        for error in damages.values():
            instead = "" if restored is None else f"; checkpoint {restored} is restored instead"
            logger.warning("%s%s", error.what, instead)

    def _check(self, step: int, *, is_shared: bool) -> TrainingState | CorruptDataError:
        """Compares a checkpoint with its checksums; of a shared directory, each process compares a part."""
        path = self._path / str(step)
        try:
            document = self._read_document(step)
            damage = find_damage(
                path,
                tables=self.tables,
                table_parts=[part for table in _saved_tables(document) for part in table.parts],
                part=jax.process_index() if is_shared else 0,
                num_parts=jax.process_count() if is_shared else 1,
                is_listed=bool(document.get("has_checksums")),
            )
            if damage is not None:
                return unreadable(path, ValueError(damage))
            return self._read(step)
        except CorruptDataError as error:
            return error
        except Exception as error:  # Orbax raises plain Exceptions
            return unreadable(path, error)

    def wait(self) -> None:
        """Waits until the last saved state is written.

        Raises:
            StorageWriteError: the state could not be written.
        """
        if self._manager is not None:
            try:
                self._manager.wait_until_finished()
            except _FAILURES as error:
                raise self._not_written(error) from error
            finally:
                self._forget_exit()
            if self._has_saved and self._is_chief:  # otherwise another process may be writing
                self._remove_unnamed_rows()

    def close(self) -> None:
        """Waits as `wait` does, and closes the directory. Idempotent.

        Raises:
            StorageWriteError: the last state could not be written. The directory is closed nevertheless.
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
        cancel_exit_hook, self._cancel_exit_hook = self._cancel_exit_hook, None
        if cancel_exit_hook is not None:
            cancel_exit_hook()

    def _close(self, manager: ocp.CheckpointManager) -> None:
        """Closes Orbax's manager. Before it closes anything, the manager raises its threads' errors, one per call."""
        failure: Exception | None = None
        for _ in range(_MOST_FAILURES):
            try:
                manager.close()
                break
            except _FAILURES as error:
                failure = error
        if failure is not None:
            raise self._not_written(failure) from failure

    def _prepare(self, state: TrainingState) -> None:
        """Reopens the directory if more processes write than before, or more bytes: Orbax needs both as options."""
        processes = set(range(jax.process_count())) if state.is_scattered else self._processes
        write_bytes = max(self._write_bytes, _write_bytes(state))
        if processes == self._processes and write_bytes == self._write_bytes:
            return
        if processes != self._processes:
            check_shared(self._path)
        self._processes = processes
        self._write_bytes = write_bytes
        manager, self._manager = self._manager, None
        if manager is not None:
            self._close(manager)
        if self._is_chief or len(processes) > 1:
            self._manager = self._make_manager()

    def _make_manager(self) -> ocp.CheckpointManager:
        if not self._is_read_only:
            try:
                self._path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._not_written(error) from error
        processes = process_options(self._processes)
        options = ocp.CheckpointManagerOptions(
            read_only=self._is_read_only,
            save_interval_steps=0 if self._is_read_only else 1,  # Orbax warns about others
            preservation_policy=None if self._is_read_only else self._turnover,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._list_files),
            cleanup_tmp_directories=not self._is_read_only,  # left by killed writers
            create=False,  # Orbax cannot create it if only some processes take part
            multiprocessing_options=processes,
        )
        handlers = {
            _ARRAYS: SummingHandler(
                save_concurrent_gb=self._write_bytes / 1e9,  # pyright: ignore[reportArgumentType] - multiplied by 1e9
                multiprocessing_options=processes,
            ),
            _DOCUMENT: ocp.JsonCheckpointHandler(multiprocessing_options=processes),
        }
        return ocp.CheckpointManager(self._path, options=options, item_handlers=handlers)

    def _list_files(self) -> None:
        """Writes the list of checksums. Orbax calls this in the leading process, before the checkpoint appears."""
        path = self._path / str(self._writing)
        folders = [path] if path.exists() else list(self._path.glob(f"{self._writing}.orbax-checkpoint-tmp*"))
        for folder in folders:
            write_list(folder)

    def _read_metrics(self, step: int) -> Mapping[str, float]:
        try:
            return _metrics_in(self._read_document(step))
        except Exception as error:  # Orbax raises plain Exceptions
            logger.warning("the metrics of checkpoint %s/%d cannot be read: %s", self._path, step, error)
            return {}

    def _remove_unnamed_rows(self) -> None:
        assert self._manager is not None, "this process writes"
        try:
            if self.tables.exists():
                documents = [self._read_document(step) for step in self._manager.all_steps()]
                remove_unnamed(self.tables, tables=[table for one in documents for table in _saved_tables(one)])
        except (OSError, ValueError, KeyError, TypeError, CorruptDataError) as error:
            logger.warning("rows of tables that no checkpoint names are left in %s: %s", self.tables, error)

    def _read_document(self, step: int) -> Any:
        return ocp.JsonCheckpointHandler().restore(self._path / str(step) / _DOCUMENT)

    def _read(self, step: int) -> TrainingState:
        path = self._path / str(step)
        try:
            document = self._read_document(step)
            return TrainingState(
                position=Position.from_json(document["position"]),
                arrays=_stored_arrays(document["arrays"], folder=path / _ARRAYS),
                paths=document["paths"],
                generators=document["generators"],
                tables=tuple(StoredTable(saved=table, folder=self.tables) for table in _saved_tables(document)),
                cluster=document.get("cluster"),
                run=document.get("run"),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, CorruptDataError) as error:
            raise unreadable(path, error) from error

    def _not_written(self, error: Exception) -> StorageWriteError:
        return StorageWriteError(f"a checkpoint cannot be written to {self._path}: {error}")


def _metrics_in(document: Any) -> Mapping[str, float]:
    return (document.get("run") or {}).get("metrics", {})


def _saved_tables(document: Any) -> list[SavedTable]:
    return [SavedTable.from_json(table) for table in document.get("tables", [])]


def _stored_arrays(outlines: Any, *, folder: epath.Path) -> dict[str, dict[str, Array]]:
    return {
        name: {
            key: StoredArray(folder=folder, group=name, key=key, shape=tuple(shape), dtype=jnp.dtype(dtype))
            for key, (shape, dtype) in group.items()
        }
        for name, group in outlines.items()
    }


def _write_bytes(state: TrainingState) -> int:
    """Returns how many bytes of a state's shards to write at a time. Orbax requires that every shard is smaller."""
    cut = [value for group in state.arrays.values() for value in group.values() if isinstance(value, jax.Array)]
    shards = [shard.data.nbytes for value in cut for shard in value.addressable_shards]
    return max(0, *(size_bytes + 1 for size_bytes in shards), sum(shards) // _WRITE_PART)


def _whole(found: TrainingState) -> TrainingState | LockstepError:
    try:
        return found.read().with_whole_tables()
    except LockstepError as error:
        return error


def open_path(directory: str | os.PathLike[str]) -> epath.Path:
    """Returns the path of a directory of checkpoints.

    Raises:
        InvalidInputError: the URL's scheme is not supported for checkpoints.
    """
    text = os.fspath(directory)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return epath.Path(os.path.abspath(os.path.expanduser(text)))
    if scheme not in _SCHEMES:
        raise InvalidInputError(
            "unsupported URL for checkpoints", received=text, allowed="a local path, file:// or gs://"
        )
    return epath.Path(rest if scheme == "file" else text)
