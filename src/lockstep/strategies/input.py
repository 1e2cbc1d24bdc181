"""Which rows of a global batch a process reads: pure arithmetic, no JAX.

The rule: a batch whose rows divide by the number of replicas is shared out, each process reading a run of consecutive
rows in the order of the processes. A batch that does not divide (the last one of an epoch, say) is read whole by every
process: the strategy then lays it over as many devices as divide it and repeats it over the rest, which gives the exact
result of one device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from lockstep.errors import InvalidInputError


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


def rows_of_batch(data: GlobalBatches, batch: int) -> int:
    """Returns how many rows a global batch has, over all processes.

    Args:
        data: the batches.
        batch: position in an epoch, from 0.
    """
    is_last = batch % data.num_batches == data.num_batches - 1
    return (data.partial_batch_size if is_last else None) or data.batch_size
