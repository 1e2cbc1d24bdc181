"""Decides which files, records and rows each process reads. Pure arithmetic, without JAX.

By records (`AutoShardPolicy.DATA`): if the rows of a batch divide by the number of replicas, each process reads
consecutive rows of it, in the order of the processes. Every other batch, such as the last one of an epoch, is read
whole by every process. The strategy then divides it over gcd(rows, devices) devices and repeats it on the others, which
gives the exact result of one device.

By files (`AutoShardPolicy.FILE`): each process reads its own files. A global batch is the rows that all processes read
for it, in the order of the processes. At the end of an epoch, the shares may differ in size and may be empty
(`Shares`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable

from lockstep.errors import InvalidInputError


@final
class AutoShardPolicy(enum.IntEnum):
    """What the processes divide among themselves.

    The names and numbers are those of ``tf.data.experimental.AutoShardPolicy``. Its ``HINT`` is missing here, because
    it marks a place in ``tf.data``'s pipelines.
    """

    OFF = -1
    """Nothing: each process reads all data that it was given. A global batch is what the processes read together."""

    AUTO = 0
    """Files, if there is at least one file and one row of a batch for each process; records otherwise."""

    FILE = 1
    """Files: each process opens its own files."""

    DATA = 2
    """Records: each process reads its rows of every global batch. The order is the same as with one process."""


def decide_policy(
    policy: AutoShardPolicy, *, num_files: int | None, num_workers: int, batch_size: int | None = None
) -> AutoShardPolicy:
    """Resolves AUTO for some data, and checks that FILE is possible.

    Args:
        policy: the requested policy.
        num_files: the number of files of the data; None if the data has no known files.
        num_workers: the number of processes that read.
        batch_size: the number of rows of a global batch; None if unknown.

    Returns:
        OFF, FILE or DATA.

    Raises:
        InvalidInputError: FILE was requested, and the data has no known files or fewer files than processes.
    """
    if policy is AutoShardPolicy.AUTO:
        # As tf.data does: files, if possible. A worker without a row of each batch would never read its own files.
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
    """One process's position among the processes that read input. The names are ``tf.distribute.InputContext``'s.

    Attributes:
        num_input_pipelines: the number of processes that read.
        input_pipeline_id: this process's rank among them, from 0.
        num_replicas_in_sync: the number of replicas of all processes together; a multiple of the number of processes.

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
        """Returns the number of rows of a global batch that each replica has.

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
        """Returns the numbers of the files that this process reads under the policy FILE: every n-th of n processes."""
        return range(self.input_pipeline_id, num_files, self.num_input_pipelines)

    def rows_to_read(self, num_rows: int) -> range:
        """Returns the rows of a global batch that this process reads: all rows if they do not divide evenly.

        Args:
            num_rows: the number of rows of the global batch.

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
    """The number of rows that each process has of each global batch of an epoch, if each process reads its own records.

    Each of n processes reads ``batch_size / n`` rows for every batch until its records end. If that is not a whole
    number, the first processes read one row more. The epoch ends when the records of all processes have ended.

    Attributes:
        batch_size: the number of rows of a global batch, until the first process runs out of records.
        num_records: the number of records of each process, in the order of the processes.

    Raises:
        InvalidInputError: there are more processes than rows, so a process would never read; or there are no records.
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
        """The number of batches of an epoch, which ends with the last process's records."""
        return max(-(-count // self.rows_of_process(process)) for process, count in enumerate(self.num_records))

    def rows_of_process(self, process: int) -> int:
        """Returns the number of rows that a process reads for a batch, while it has enough records."""
        even, more = divmod(self.batch_size, len(self.num_records))
        return even + (process < more)

    def of_batch(self, batch: int) -> tuple[int, ...]:
        """Returns the number of rows that each process has of a batch; 0 for a process whose records have ended.

        Args:
            batch: the position of the batch in the epoch, from 0.
        """
        sizes = [self.rows_of_process(process) for process in range(len(self.num_records))]
        return tuple(
            min(size, max(0, count - batch * size)) for size, count in zip(sizes, self.num_records, strict=True)
        )


@runtime_checkable
class GlobalBatches(Protocol):
    """Data that yields only this process's rows, such as `lockstep.data.Batches`.

    Each batch holds this process's rows of a global batch, by the rule of `InputContext.rows_to_read`. All other data
    (arrays, generators, data sets of Grain and PyTorch) is assumed to yield the same whole global batches in every
    process.
    """

    @property
    def num_batches(self) -> int:
        """The number of batches of an epoch."""
        ...

    @property
    def batch_size(self) -> int:
        """The number of rows of a global batch, over all processes."""
        ...

    @property
    def partial_batch_size(self) -> int | None:
        """The number of rows of the last global batch, if it is smaller than the others; else None."""
        ...

    def seek(self, *, epoch: int, batch: int) -> None:
        """Makes the next iteration start at a batch of an epoch."""
        ...


@runtime_checkable
class UnevenBatches(GlobalBatches, Protocol):
    """Data of which each process may read its own records, such as `lockstep.data.Batches`."""

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and the batch at which the next iteration starts."""
        ...

    def shares_of_batch(self, batch: int) -> Sequence[int] | None:
        """Returns the number of rows that each process yields of a batch; None if `InputContext.rows_to_read` says it.

        Args:
            batch: the position of the batch in the epoch, from 0.
        """
        ...


@runtime_checkable
class ChangedBatches(Protocol):
    """Data that yields batches on the devices, and can change them before it places them there."""

    def iterate_mapped(self, change: Callable[[Any], Any]) -> Iterator[Any]:
        """Begins a pass over batches that are changed before they are placed.

        Args:
            change: a function that takes this process's rows of a batch in host memory and returns their replacement.
        """
        ...


@runtime_checkable
class ResumableData(Protocol):
    """Whole global batches that can be read from any position, such as `lockstep.data.Dataset`."""

    @property
    def num_batches(self) -> int | None:
        """The number of batches of an epoch, None if unknown."""
        ...

    def start_at(self, *, epoch: int, batch: int) -> None:
        """Makes the next iteration start at a batch of an epoch.

        If the length of an epoch is known, a batch beyond its end is a batch of a later epoch.
        """
        ...


@runtime_checkable
class DividedData(Protocol):
    """Data that several processes can divide by a policy, such as `lockstep.data.Dataset`."""

    def divide(self, policy: AutoShardPolicy, *, input_context: InputContext) -> tuple[Any, AutoShardPolicy]:
        """Returns the data that one process reads, and the policy: DATA if the process reads whole global batches."""
        ...


@runtime_checkable
class OrderedBatches(GlobalBatches, Protocol):
    """Data that says what its order depends on, such as `lockstep.data.Batches`. Checkpoints save this."""

    @property
    def order_key(self) -> Mapping[str, Any]:
        """The values that decide which records a batch of an epoch has, by name; JSON can represent them."""
        ...


def rows_of_batch(data: GlobalBatches, batch: int) -> int:
    """Returns the number of rows of a global batch, over all processes.

    Args:
        data: the batches.
        batch: the position of the batch in the epoch, from 0.
    """
    is_last = batch % data.num_batches == data.num_batches - 1
    return (data.partial_batch_size if is_last else None) or data.batch_size
