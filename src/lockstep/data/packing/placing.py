"""Moves finished shards to their final names: all of them at the end of a run, and the manifests last.

Until then, an earlier packing with the same name stays readable. The files never look complete without being complete:
first the earlier manifests are deleted, then the earlier shards, and only then are the new shards moved. Each shard's
name has the number of shards, so readers reject the incomplete states in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from lockstep.data.files.record_index import SUFFIX as INDEX_SUFFIX
from lockstep.data.files.shards import ShardName
from lockstep.data.packing.journal import JournalState, check_journal, journal_folder, pending_key, write_journal
from lockstep.data.packing.manifest import SUFFIX as MANIFEST_SUFFIX
from lockstep.data.packing.manifest import Manifest, Shard, manifest_key
from lockstep.data.packing.plan import Plan
from lockstep.data.packing.writer import FinishedShard
from lockstep.errors import CorruptDataError, MissingInputError
from lockstep.storage import AbstractBucket


def final_key(name: str, shard: FinishedShard, *, num_shards: int) -> str:
    """Returns the key of a shard in its final place."""
    stated = ShardName(
        data_set=f"{name}-{shard.split}", index=shard.index, num_shards=num_shards, num_records=shard.num_records
    )
    return str(stated)


def find_earlier_keys(bucket: AbstractBucket, name: str, splits: Collection[str]) -> list[str]:
    """Returns the keys of an earlier packing with this name and these splits: manifests, then shards and indexes."""
    data_sets = {f"{name}-{split}" for split in splits}
    manifests = [key for key in (manifest_key(name, split=split) for split in splits) if bucket.exists(key)]
    found: list[str] = []
    for item in bucket.list(f"{name}-"):
        stated = ShardName.parse(item.key.removesuffix(INDEX_SUFFIX))
        if "/" not in item.key and stated is not None and stated.data_set in data_sets:
            found.append(item.key)
    return manifests + found


def find_other_splits(bucket: AbstractBucket, name: str, splits: Collection[str], *, origin: str) -> list[str]:
    """Finds splits of an earlier packing of the same source that this packing does not replace.

    Args:
        bucket: the bucket of the packed data.
        name: the data set's name.
        splits: the splits that this packing replaces.
        origin: the origin of the records, because other sources may be packed as other splits of the same name. If it
            is "", for unknown, no splits are returned.
    """
    found: list[str] = []
    for item in bucket.list(f"{name}-") if origin else ():
        if "/" in item.key or not item.key.endswith(MANIFEST_SUFFIX):
            continue
        try:
            manifest = Manifest.from_json(bucket.read(item.key), url=bucket.url_of(item.key))
        except CorruptDataError:
            continue  # readers of that data set get the error
        if manifest.name == name and manifest.source == origin and manifest.split not in splits:
            found.append(manifest.split)
    return found


def check_shards(bucket: AbstractBucket, name: str, state: JournalState, num_shards: Mapping[str, int]) -> JournalState:
    """Checks which of a journal's shards are still in the bucket.

    Args:
        bucket: the bucket of the packed data.
        name: the data set's name.
        state: the journal.
        num_shards: the number of shards of each split, if it is known in advance.

    Returns:
        The journal with the shards of each split before the first missing one. If the shards were being moved to their
        final names and one is missing, ``is_publishing`` is reset to False.
    """
    sizes = {item.key: item.size_bytes for prefix in (journal_folder(name), f"{name}-") for item in bucket.list(prefix)}
    totals = Counter(shard.split for shard in state.shards) if state.is_publishing else num_shards

    def is_there(shard: FinishedShard, *, placed: bool) -> bool:
        key = final_key(name, shard, num_shards=totals[shard.split]) if placed else pending_key(name, shard)
        has_index = not shard.has_index or key + INDEX_SUFFIX in sizes
        return sizes.get(key) == shard.size_bytes and has_index

    if state.is_publishing:
        if all(is_there(shard, placed=True) or is_there(shard, placed=False) for shard in state.shards):
            return state
        state = replace(state, is_publishing=False)
        totals = num_shards
    kept: list[FinishedShard] = []
    lost: set[str] = set()
    for shard in state.shards:
        if shard.split not in lost and is_there(shard, placed=state.is_direct):
            kept.append(shard)
        else:
            lost.add(shard.split)
    return replace(state, shards=tuple(kept))


def publish(bucket: AbstractBucket, plan: Plan, state: JournalState, *, fingerprint: str | None) -> dict[str, Manifest]:
    """Replaces an earlier data set by the shards of a finished run. May be interrupted and repeated.

    Args:
        bucket: the bucket of the packed data.
        plan: the plan of the run.
        state: the journal of the run.
        fingerprint: the fingerprint for the manifests.

    Returns:
        The manifests, by the split's name.

    Raises:
        StorageError: the bucket could not be read or written.
    """
    totals = Counter(shard.split for shard in state.shards)
    keys = {shard: final_key(plan.name, shard, num_shards=totals[shard.split]) for shard in state.shards}
    if not state.is_publishing:
        ours = {*keys.values(), *(key + INDEX_SUFFIX for key in keys.values())} if state.is_direct else set[str]()
        for key in find_earlier_keys(bucket, plan.name, plan.splits):
            if key not in ours:
                bucket.delete(key)
        state = replace(state, is_publishing=True)
        write_journal(bucket, plan.name, state)
    if not state.is_direct:
        for shard, key in keys.items():
            waiting = pending_key(plan.name, shard)
            if shard.has_index:
                _move(bucket, waiting + INDEX_SUFFIX, key + INDEX_SUFFIX)
            _move(bucket, waiting, key)
        check_journal(bucket, plan.name, state)
    manifests = {split: _manifest(plan, state, split, keys, fingerprint) for split in plan.splits}
    for manifest in manifests.values():
        bucket.write(manifest.key, manifest.to_json().encode())
    bucket.delete_prefix(journal_folder(plan.name))
    return manifests


def _move(bucket: AbstractBucket, key: str, target: str) -> None:
    try:
        bucket.move(key, to=target)
    except MissingInputError:
        if not bucket.exists(target):  # otherwise, an interrupted run has already moved the object
            raise


def _manifest(
    plan: Plan, state: JournalState, split: str, keys: Mapping[FinishedShard, str], fingerprint: str | None
) -> Manifest:
    shards = [shard for shard in state.shards if shard.split == split]
    return Manifest(
        name=plan.name,
        split=split,
        shards=tuple(
            Shard(file=keys[shard], num_records=shard.num_records, size_bytes=shard.size_bytes, crc32c=shard.crc32c)
            for shard in shards
        ),
        features=dict(plan.source.features),
        source=plan.source.origin,
        created=state.created,
        classes=plan.source.classes,
        options=dict(plan.document),
        compression=plan.options.compression,
        skipped=tuple(item for shard in shards for item in shard.skipped),
        lockstep_version=_lockstep_version(),
        fingerprint=fingerprint,
    )


def _lockstep_version() -> str:
    try:
        return version("lockstep-train")
    except PackageNotFoundError:  # Lockstep is imported from its source tree and not installed
        return ""
