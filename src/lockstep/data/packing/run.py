"""One packing run: makes the shards of a plan, and resumes where an interrupted run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import final

from lockstep.data.packing.delivery import ShardUploader
from lockstep.data.packing.encoding import Encoded, Encoder, PackingItem, encode_in_order
from lockstep.data.packing.journal import JournalState, claim_journal, journal_folder, read_journal
from lockstep.data.packing.placing import check_shards, find_earlier_keys
from lockstep.data.packing.plan import PartPlan, Plan
from lockstep.data.packing.writer import SplitWriter
from lockstep.errors import CorruptDataError, InvalidInputError, counted
from lockstep.storage import AbstractBucket


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run.

    Attributes:
        num_items: the number of finished items: packed or skipped, by this run or by the interrupted one.
        total_items: the number of all items; None if it is not known in advance.
        num_resumed: the number of items that the interrupted run had finished.
        num_skipped: the number of damaged items that were skipped.
    """

    num_items: int = 0
    total_items: int | None = None
    num_resumed: int = 0
    num_skipped: int = 0


Report = Callable[[Progress], None]
Say = Callable[[str], None]


def begin_run(bucket: AbstractBucket, plan: Plan, *, created: datetime, resume: bool, say: Say) -> JournalState:
    """Decides where to begin, and writes the journal of the run.

    Args:
        bucket: the bucket to pack into.
        plan: the plan of the run.
        created: the creation time of the data set.
        resume: whether to resume an interrupted run.
        say: the function to call with a message about an interrupted run.

    Returns:
        The journal: a new one, or the one of the interrupted run.
    """
    found = read_journal(bucket, plan.name)
    if found is not None:
        is_same = plan.fingerprint is not None and found.fingerprint == plan.fingerprint
        if resume and is_same:
            return _resume(bucket, plan, found, say)
        if not resume:
            reason = "as requested"
        elif plan.fingerprint is None:
            reason = "it cannot be determined whether the source is the same"
        else:
            reason = "the source or the options are not the same"
        if found.shards:
            say(
                f"starting from the beginning: {reason}; discarding "
                f"{counted(len(found.shards), 'finished shard')} of an interrupted run"
            )
    bucket.delete_prefix(journal_folder(plan.name))
    is_direct = plan.counts_are_known and not find_earlier_keys(bucket, plan.name, plan.splits)
    state = JournalState(fingerprint=plan.fingerprint, created=created, is_direct=is_direct)
    return claim_journal(bucket, plan.name, state)


def _resume(bucket: AbstractBucket, plan: Plan, found: JournalState, say: Say) -> JournalState:
    num_shards = {split: shards.num_shards or 0 for part in plan.parts for split, shards in part.shards.items()}
    state = check_shards(bucket, plan.name, found, num_shards)
    if found.shards:
        num_records = sum(shard.num_records for shard in state.shards)
        lost = len(found.shards) - len(state.shards)
        also = f"; no longer there: {counted(lost, 'shard')}" if lost else ""
        say(
            f"resuming after {counted(len(state.shards), 'finished shard')} with {counted(num_records, 'record')}{also}"
        )
    return claim_journal(bucket, plan.name, state)


@final
class Run:
    """Makes the shards that are not finished yet.

    Args:
        plan: the plan of the run.
        uploader: the object that uploads finished shards.
        folder: the folder for temporary files.
        report: the function to call with the progress.
        say: the function to call with a message about each skipped item.
    """

    def __init__(self, plan: Plan, uploader: ShardUploader, *, folder: Path, report: Report, say: Say) -> None:
        self._plan = plan
        self._uploader = uploader
        self._folder = folder
        self._report = report
        self._say = say
        finished = uploader.state.shards
        self._progress = Progress(total_items=plan.num_items, num_skipped=sum(len(shard.skipped) for shard in finished))

    def pack(self) -> None:
        """Makes the shards of all parts, and waits until they are uploaded.

        Raises:
            CorruptDataError: an item is damaged and may not be skipped.
            InvalidInputError: an item's values do not match the features, the number of items differs from the
                expected one, or a split has no record.
            StorageError: the source could not be read, or the bucket could not be written.
        """
        for part in self._plan.parts:
            self._pack_part(part)
        self._uploader.wait()
        for split in self._plan.splits:
            if not any(shard.num_records for shard in self._uploader.state.shards if shard.split == split):
                raise InvalidInputError(
                    f"{self._plan.name} has no record for the split {split!r}",
                    action="give it a larger fraction, or leave it out",
                )

    def _pack_part(self, plan: PartPlan) -> None:
        finished = dict.fromkeys(plan.shards, 0)
        done = dict.fromkeys(plan.shards, -1)
        for shard in self._uploader.state.shards:
            if shard.split in done:
                finished[shard.split] += 1
                done[shard.split] = max(done[shard.split], shard.last_position)
        if all(finished[split] == shards.num_shards for split, shards in plan.shards.items()):
            self._advance(num_resumed=plan.part.num_items or 0)
            return
        writers = {
            split: SplitWriter(
                split,
                plan=shards,
                compression=self._plan.options.compression,
                folder=self._folder,
                next_index=finished[split],
            )
            for split, shards in plan.shards.items()
        }
        encoder = Encoder(plan.part, self._plan.source.features)
        packing_items = self._unfinished_items(plan, done)
        try:
            with closing(encode_in_order(encoder, packing_items, num_workers=self._plan.options.num_threads)) as chunks:
                for chunk in chunks:
                    for encoded in chunk:
                        self._write(writers[encoded.packing_item.split], encoded)
                    self._advance(num_new=len(chunk))
            for writer in writers.values():
                for local_shard in writer.end():
                    self._uploader.add(local_shard)
        finally:
            for writer in writers.values():
                writer.abandon()

    def _unfinished_items(self, plan: PartPlan, done: dict[str, int]) -> Iterator[PackingItem]:
        """Yields the items of a part that are not in finished shards."""
        stated = plan.part.num_items
        num_items = 0
        for position, item in enumerate(plan.items()):
            num_items += 1
            if stated is not None and num_items > stated:
                raise InvalidInputError("there are more examples than stated", allowed=f"{stated}")
            split = plan.assigner.split_of(item.key)
            if position > done[split]:
                yield PackingItem(position=position, split=split, item=item)
            else:
                self._progress = replace(self._progress, num_items=self._progress.num_items + 1)
                self._progress = replace(self._progress, num_resumed=self._progress.num_resumed + 1)
        if stated is not None and num_items < stated:
            raise InvalidInputError("there are fewer examples than stated", received=num_items, allowed=f"{stated}")

    def _write(self, writer: SplitWriter, encoded: Encoded) -> None:
        if encoded.framed is None:
            self._skip(encoded)
        for local_shard in writer.add(encoded):
            self._uploader.add(local_shard)

    def _skip(self, encoded: Encoded) -> None:
        options = self._plan.options
        named = f"{_printable(encoded.packing_item.item.key)}: {encoded.reason}"
        if options.on_error == "raise":
            raise CorruptDataError(named, action="repair or remove it, or skip such items (on_error: skip)")
        self._progress = replace(self._progress, num_skipped=self._progress.num_skipped + 1)
        if self._progress.num_skipped > options.max_skipped:
            raise CorruptDataError(
                f"more than {counted(options.max_skipped, 'damaged item')}; the last one: {named}",
                action="check the source, or raise max_skipped",
            )
        self._say(f"skipped: {named}")

    def _advance(self, *, num_new: int = 0, num_resumed: int = 0) -> None:
        now = self._progress
        self._progress = replace(
            now, num_items=now.num_items + num_new + num_resumed, num_resumed=now.num_resumed + num_resumed
        )
        self._report(self._progress)


def _printable(key: str) -> str:
    return key if key.isprintable() else repr(key)
