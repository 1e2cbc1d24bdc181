"""What a process reads of files, records and batches: pure arithmetic, no JAX.

By records (`AutoShardPolicy.DATA`): a batch whose rows divide by the number of replicas is shared out, each process
reading a run of consecutive rows in the order of the processes. A batch that does not divide (the last one of an epoch,
say) is read whole by every process: the strategy then lays it over as many devices as divide it and repeats it over the
rest, which gives the exact result of one device.

By files (`AutoShardPolicy.FILE`): each process reads files of its own, and a global batch is what the processes read
for it, one after the other. Their shares may differ at an epoch's end, and be empty (`Shares`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

from lockstep.errors import InvalidInputError


@final
class AutoShardPolicy(enum.IntEnum):
    """What the processes divide among them, by the names and numbers of ``tf.data.experimental.AutoShardPolicy``.

    ``HINT`` has no meaning here: it marks a place in ``tf.data``'s pipelines.
    """

    OFF = -1
    """Nothing: each process reads all that it was given, and a global batch is what they read together."""

    AUTO = 0
    """Files, where there are as many as processes or more, and a batch has a row for each; records otherwise."""

    FILE = 1
    """Files: each process opens files of its own."""

    DATA = 2
    """Records: each process reads its rows of every global batch, and the order is that of one process."""


def decide_policy(
    policy: AutoShardPolicy, *, num_files: int | None, num_workers: int, batch_size: int | None = None
) -> AutoShardPolicy:
    """Says what AUTO means for some data, and checks that FILE can be.

    Args:
        policy: what was asked for.
        num_files: how many files the records lie in; None where they lie in none that we know of.
        num_workers: how many processes read.
        batch_size: rows of a global batch; None where it is not known.

    Returns:
        OFF, FILE or DATA.

    Raises:
        InvalidInputError: FILE was asked for, and there are fewer files than processes.
    """
    if policy is AutoShardPolicy.AUTO:
        # As tf.data does: files if that can be. A worker without a row of each batch would never read its own.
        has_files = num_files is not None and num_files >= num_workers
        has_rows = batch_size is None or batch_size >= num_workers
        return AutoShardPolicy.FILE if has_files and has_rows else AutoShardPolicy.DATA
    if policy is AutoShardPolicy.FILE and num_files is None:
        raise InvalidInputError(
            "the policy FILE divides files, and this data has none that are known",
            allowed="AUTO, DATA, OFF",
            action="read lockstep.data.RecordFiles, or take another policy",
        )
    if policy is AutoShardPolicy.FILE and num_files is not None and num_files < num_workers:
        raise InvalidInputError(
            "the policy FILE needs a file for each worker",
            received=f"{num_files} files for {num_workers} workers",
            allowed=f"{num_workers} files or more",
            action=f"pack the data into {num_workers} shards or more, or take the policy DATA",
        )
    return policy


@final
@dataclass(frozen=True, kw_only=True)
class InputContext:
    """One process's place among those that read input, by the names of ``tf.distribute.InputContext``.

    Attributes:
        num_input_pipelines: how many processes read.
        input_pipeline_id: this process's rank among them, from 0.
        num_replicas_in_sync: replicas in all processes together; a multiple of the number of processes.

    Raises:
        InvalidInputError: the numbers contradict each other.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def __post_init__(self) -> None:
        if self.num_input_pipelines < 1 or not 0 <= self.input_pipeline_id < self.num_input_pipelines:
            raise InvalidInputError(
                "the input context's pipeline",
                received=f"{self.input_pipeline_id} of {self.num_input_pipelines}",
                allowed="0 <= input_pipeline_id < num_input_pipelines",
            )
        if self.num_replicas_in_sync < 1 or self.num_replicas_in_sync % self.num_input_pipelines:
            raise InvalidInputError(
                "the input context's replicas",
                received=self.num_replicas_in_sync,
                allowed=f"a multiple of the {self.num_input_pipelines} input pipelines",
            )

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns a replica's rows of a global batch.

        Raises:
            InvalidInputError: the batch does not divide over the replicas.
        """
        if global_batch_size < 1 or global_batch_size % self.num_replicas_in_sync:
            raise InvalidInputError(
                "the global batch size does not divide over the replicas",
                received=global_batch_size,
                allowed=f"a multiple of {self.num_replicas_in_sync}",
            )
        return global_batch_size // self.num_replicas_in_sync

    def files_to_read(self, num_files: int) -> range:
        """Returns the files that this process reads under the policy FILE: every n-th one, n being the processes."""
        return range(self.input_pipeline_id, num_files, self.num_input_pipelines)

    def rows_to_read(self, num_rows: int) -> range:
        """Returns the rows of a global batch that this process reads: its run, or all where they do not divide.

        Args:
            num_rows: rows of the global batch.

        Raises:
            InvalidInputError: the batch has no row.
        """
        if num_rows < 1:
            raise InvalidInputError("a batch's rows", received=num_rows, allowed="1 or more")
        if num_rows % self.num_replicas_in_sync:
            return range(num_rows)
        share = num_rows // self.num_input_pipelines
        return range(self.input_pipeline_id * share, (self.input_pipeline_id + 1) * share)


@final
@dataclass(frozen=True, kw_only=True)
class Shares:
    """How many rows each process has of each global batch of an epoch, where each reads records of its own.

    Each process reads ``batch_size / n`` rows for every batch, the first ones one more where that is no whole number,
    until its records end. The epoch ends when all processes' records have.

    Attributes:
        batch_size: rows of a global batch, while no process has ended.
        num_records: how many records each process has, in their order.

    Raises:
        InvalidInputError: there are more processes than rows, so that one of them would never read, or no records.
    """

    batch_size: int
    num_records: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.batch_size < len(self.num_records):
            raise InvalidInputError(
                "a batch in which each worker has rows of its own is smaller than the number of workers",
                received=f"batch_size {self.batch_size} for {len(self.num_records)} workers",
                allowed=f"{len(self.num_records)} or more",
                action="take larger batches, or the policy DATA",
            )
        if not any(self.num_records):
            raise InvalidInputError("no worker has a record", allowed="one record or more")

    @property
    def num_batches(self) -> int:
        """How many batches an epoch has: until the last process has ended."""
        return max(-(-count // self.rows_of_process(process)) for process, count in enumerate(self.num_records))

    def rows_of_process(self, process: int) -> int:
        """Returns the rows that a process reads for a batch, while it has as many."""
        even, more = divmod(self.batch_size, len(self.num_records))
        return even + (process < more)

    def of_batch(self, batch: int) -> tuple[int, ...]:
        """Returns the rows that each process has of a batch, 0 for one that has ended.

        Args:
            batch: position in an epoch, from 0.
        """
        sizes = [self.rows_of_process(process) for process in range(len(self.num_records))]
        return tuple(
            min(size, max(0, count - batch * size)) for size, count in zip(sizes, self.num_records, strict=True)
        )


@runtime_checkable
class GlobalBatches(Protocol):
    """Data that knows its place: `lockstep.data.Batches` is of this kind.

    Each batch holds this process's rows of a global batch, by the rule of `InputContext.rows_to_read`. Data of another
    kind (arrays, generators, Grain's and PyTorch's data sets) is taken to yield the same whole global batches in every
    process.
    """

    @property
    def num_batches(self) -> int:
        """How many batches an epoch has."""
        ...

    @property
    def batch_size(self) -> int:
        """Rows of a global batch, over all processes."""
        ...

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last global batch where it is smaller."""
        ...

    def seek(self, *, epoch: int, batch: int) -> None:
        """Has the next iteration begin at a batch of an epoch."""
        ...


@runtime_checkable
class UnevenBatches(GlobalBatches, Protocol):
    """Data of which each process may read records of its own: `lockstep.data.Batches`."""

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and batch at which the next iteration starts."""
        ...

    def shares_of_batch(self, batch: int) -> Sequence[int] | None:
        """Returns the rows that each process yields of a batch; None where the rule is `InputContext.rows_to_read`.

        Args:
            batch: position in an epoch, from 0.
        """
        ...


@runtime_checkable
class ChangedBatches(Protocol):
    """Data that lies on the devices when it is read: what changes its batches has to come before that."""

    def iterate_mapped(self, change: Callable[[Any], Any]) -> Iterator[Any]:
        """Begins a pass over batches that were changed before they were placed.

        Args:
            change: takes this process's rows of a batch on the host, and returns what takes their place.
        """
        ...


@runtime_checkable
class ResumableData(Protocol):
    """Whole global batches that can be begun anywhere: `lockstep.data.Dataset`."""

    @property
    def num_batches(self) -> int | None:
        """How many batches an epoch has, None where nobody knows."""
        ...

    def start_at(self, *, epoch: int, batch: int) -> None:
        """Has the next iteration begin at a batch of an epoch, counted on through later ones where that is known."""
        ...


@runtime_checkable
class DividedData(Protocol):
    """Data that several processes can divide by a policy: `lockstep.data.Dataset`."""

    def divide(self, policy: AutoShardPolicy, *, input_context: InputContext) -> tuple[Any, AutoShardPolicy]:
        """Returns what one process reads, and the policy: DATA where that is whole global batches."""
        ...


@runtime_checkable
class OrderedBatches(GlobalBatches, Protocol):
    """Data that says what its order depends on: `lockstep.data.Batches`. A checkpoint keeps it."""

    @property
    def order_key(self) -> Mapping[str, Any]:
        """What decides which records a batch of an epoch has, by name: as JSON has it."""
        ...


def rows_of_batch(data: GlobalBatches, batch: int) -> int:
    """Returns how many rows a global batch has, over all processes.

    Args:
        data: the batches.
        batch: position in an epoch, from 0.
    """
    is_last = batch % data.num_batches == data.num_batches - 1
    return (data.partial_batch_size if is_last else None) or data.batch_size
