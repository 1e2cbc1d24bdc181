"""Finished shards into the bucket, beside the making of the next ones."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, final

from lockstep.data.files.record_index import SUFFIX as INDEX_SUFFIX
from lockstep.data.packing.journal import JournalState, check_journal, waiting_key, write_journal
from lockstep.data.packing.placing import final_key
from lockstep.data.packing.plan import Plan
from lockstep.data.packing.writer import MadeShard
from lockstep.storage import AbstractBucket

_NUM_WAITING: Final = 2


@final
class Delivery:
    """Uploads shards one after the other in a thread of its own, and notes each in the journal once it is there.

    At most a few shards wait: the disk of this machine need not hold the data set.

    Args:
        bucket: where they go.
        plan: what is packed.
        state: the journal so far.
    """

    def __init__(self, bucket: AbstractBucket, plan: Plan, state: JournalState) -> None:
        self._bucket = bucket
        self._plan = plan
        self._state = state
        self._num_shards = {split: shards.num_shards for part in plan.parts for split, shards in part.shards.items()}
        self._executor = ThreadPoolExecutor(1, "lockstep-deliver")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the shards that are on their way; where it is interrupted, for the running upload alone."""
        self._executor.shutdown(cancel_futures=error is not None and not isinstance(error, Exception))

    @property
    def state(self) -> JournalState:
        """The journal; complete after `wait`."""
        return self._state

    def add(self, made: MadeShard) -> None:
        """Hands over a shard; waits while too many are on their way.

        Raises:
            StorageWriteError: an earlier one could not be written.
        """
        self._waiting.append(self._executor.submit(self._deliver, made))
        while len(self._waiting) > _NUM_WAITING:
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Waits until all are there.

        Raises:
            StorageWriteError: one could not be written.
        """
        while self._waiting:
            self._waiting.popleft().result()

    def _deliver(self, made: MadeShard) -> None:
        shard = made.shard
        num_shards = self._num_shards[shard.split]
        if self._state.is_direct:
            assert num_shards is not None, "names are known ahead"
            key = final_key(self._plan.name, shard, num_shards=num_shards)
        else:
            key = waiting_key(self._plan.name, shard)
        check_journal(self._bucket, self._plan.name, self._state)  # before another run's shard is replaced
        self._bucket.upload(key, path=made.path)
        if made.record_index is not None:
            self._bucket.write(key + INDEX_SUFFIX, made.record_index)
        made.path.unlink()
        self._state = replace(self._state, shards=(*self._state.shards, shard))
        write_journal(self._bucket, self._plan.name, self._state)
