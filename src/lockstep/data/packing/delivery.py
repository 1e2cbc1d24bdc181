"""Uploads finished shards while the next ones are being written."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Final, Self, final

from lockstep.data.files.record_index import SUFFIX as INDEX_SUFFIX
from lockstep.data.packing.journal import JournalState, check_journal, pending_key, write_journal
from lockstep.data.packing.placing import final_key
from lockstep.data.packing.plan import Plan
from lockstep.data.packing.writer import LocalShard
from lockstep.storage import AbstractBucket

_NUM_WAITING: Final = 2


@final
class ShardUploader:
    """Uploads shards one at a time in a separate thread, and records each in the journal after its upload.

    Only a few shards wait for upload at a time, so the local disk need not hold the whole data set.

    Args:
        bucket: the bucket to upload to.
        plan: the plan of the run.
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
        """Waits for the uploads; after an interruption such as Ctrl-C, only for the one that is running."""
        self._executor.shutdown(cancel_futures=error is not None and not isinstance(error, Exception))

    @property
    def state(self) -> JournalState:
        """The journal, which is complete after `wait`."""
        return self._state

    def add(self, local_shard: LocalShard) -> None:
        """Adds a shard to upload, and waits while too many are waiting.

        Raises:
            StorageWriteError: an earlier shard could not be uploaded.
        """
        self._waiting.append(self._executor.submit(self._upload, local_shard))
        while len(self._waiting) > _NUM_WAITING:
            self._waiting.popleft().result()

    def wait(self) -> None:
        """Waits until all shards are uploaded.

        Raises:
            StorageWriteError: a shard could not be uploaded.
        """
        while self._waiting:
            self._waiting.popleft().result()

    def _upload(self, local_shard: LocalShard) -> None:
        shard = local_shard.shard
        num_shards = self._num_shards[shard.split]
        if self._state.is_direct:
            assert num_shards is not None, "names are known ahead"
            key = final_key(self._plan.name, shard, num_shards=num_shards)
        else:
            key = pending_key(self._plan.name, shard)
        check_journal(self._bucket, self._plan.name, self._state)  # raises before a shard of another run is replaced
        self._bucket.upload(key, path=local_shard.path)
        if local_shard.record_index is not None:
            self._bucket.write(key + INDEX_SUFFIX, local_shard.record_index)
        local_shard.path.unlink()
        self._state = replace(self._state, shards=(*self._state.shards, shard))
        write_journal(self._bucket, self._plan.name, self._state)
