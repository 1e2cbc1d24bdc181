"""Packs a data set into a bucket as sharded record files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, final

from lockstep.data.examples.features import AbstractFeature
from lockstep.data.packing.delivery import ShardUploader
from lockstep.data.packing.earlier import find_finished, settled_fingerprint
from lockstep.data.packing.manifest import Manifest, Skipped
from lockstep.data.packing.options import DEFAULT_MAX_SKIPPED, PackOptions
from lockstep.data.packing.placing import find_other_splits, publish
from lockstep.data.packing.plan import make_plan
from lockstep.data.packing.run import Progress, Report, Run, Say, begin_run
from lockstep.data.packing.workspace import workspace
from lockstep.data.sources.base import AbstractSource
from lockstep.data.sources.examples import Example, ExamplePart, Examples
from lockstep.errors import InvalidInputError
from lockstep.storage import open_bucket


@final
@dataclass(frozen=True, kw_only=True)
class Packed:
    """The result of packing a data set.

    Attributes:
        manifests: the manifest of each split, by the split's name.
        was_there: whether the data set was already in the bucket, so that nothing was done.
    """

    manifests: Mapping[str, Manifest]
    was_there: bool = False

    @property
    def manifest(self) -> Manifest:
        """The manifest of the only split.

        Raises:
            InvalidInputError: the data set has several splits.
        """
        if len(self.manifests) > 1:
            raise InvalidInputError("there are several splits", received=tuple(self.manifests), action="use manifests")
        return next(iter(self.manifests.values()))

    @property
    def num_records(self) -> int:
        """The number of records of all splits."""
        return sum(manifest.num_records for manifest in self.manifests.values())

    @property
    def size_bytes(self) -> int:
        """The total length of all shards, in bytes."""
        return sum(manifest.size_bytes for manifest in self.manifests.values())

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The damaged items that were skipped."""
        return tuple(item for manifest in self.manifests.values() for item in manifest.skipped)


def pack(
    source: AbstractSource | Iterable[Example],
    bucket_url: str,
    *,
    name: str | None = None,
    split: str | Mapping[str, float] | None = None,
    features: Mapping[str, AbstractFeature] | None = None,
    classes: Sequence[str] = (),
    origin: str = "",
    version: str | None = None,
    key: Callable[[Example], object] | None = None,
    num_examples: int | None = None,
    num_shards: int | None = None,
    records_per_shard: int | None = None,
    bytes_per_shard: int | None = None,
    compression: Literal["GZIP", "ZLIB"] | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
    num_workers: int | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    max_skipped: int = DEFAULT_MAX_SKIPPED,
    resume: bool = True,
    created: datetime | None = None,
    progress: Report | None = None,
    say: Say | None = None,
) -> Packed:
    """Packs a data set into files named ``{name}-{split}-{shard}-of-{shards}-{records}.tfrec``.

    Each shard appears in the bucket as a whole, and so does the data set: an earlier packing with the same name and
    splits stays until everything is packed, and the manifests are written last. An interrupted run resumes where it
    stopped, and its files are byte for byte those of an uninterrupted run. If everything is already packed, from the
    same source and with the same options, nothing is done. Only one run at a time may pack a data set of one name into
    a bucket.

    Args:
        source: a source that `lockstep.data.sources.open_source` opened; or any iterable of examples, which map names
            of features to values. The source is read once, in bounded memory.
        bucket_url: the URL of the bucket to write to.
        name: the name of the data set, from letters, digits, ".", "_" and "-"; by default, the source's name.
        split: the name of the only split, such as "train"; or the fractions of several splits by name, such as
            ``{"train": 0.9, "val": 0.1}``, to which items are assigned by a digest of their keys. By default, the
            splits of the source, or "train".
        features: for an iterable, the encoding of each value, by the feature's name. The manifest stores it for
            decoding.
        classes: for an iterable, the names of the classes, by label number.
        origin: for an iterable, a text that says where the data came from.
        version: for an iterable, a text that identifies its content. An interrupted run is resumed, or a finished one
            not repeated, only if the version is the same.
        key: for an iterable, the function that returns an example's key; by default, the key is the example's number.
        num_examples: for an iterable without a length, the number of examples, if it is known.
        num_shards: the number of shards of each split. By default, shards have about 128 MiB, and there are at least 8.
            If the number of records or their length is not known in advance, a shard ends before it would exceed
            128 MiB.
        records_per_shard: the number of records of each shard, instead of ``num_shards``.
        bytes_per_shard: the maximum length of each shard before compression, in bytes, instead of ``num_shards``.
        compression: the compression of each shard as a whole, "GZIP" or "ZLIB". The records of a compressed shard can
            only be read in order.
        shuffle: whether to shuffle the records; by default, only if the source is sorted by class. A source that can
            only be read in one order is shuffled within a window of at most 4,096 records and 128 MiB.
        seed: the seed of the shuffling.
        num_workers: the number of threads that load and encode; by default, one per processor. It does not change the
            files.
        on_error: "raise" fails at the first damaged item; "skip" skips damaged items, and lists them in the manifest.
        max_skipped: the maximum number of damaged items to skip.
        resume: whether to resume an interrupted run, and to do nothing if the data set is already packed.
        created: the creation time for the manifests; by default, now.
        progress: a function to call with the progress, after each chunk of items.
        say: a function to call with messages, about skipped items and about the results of earlier runs.

    Returns:
        The manifests of the packed splits.

    Raises:
        InvalidInputError: an argument or an example is invalid.
        CorruptDataError: the source is damaged, or more items are damaged than may be skipped.
        StorageError: the source could not be read.
        StorageWriteError: the bucket could not be written.
    """
    options = PackOptions(
        num_shards=num_shards,
        records_per_shard=records_per_shard,
        bytes_per_shard=bytes_per_shard,
        compression=compression,
        shuffle=shuffle,
        seed=seed,
        num_workers=num_workers,
        on_error=on_error,
        max_skipped=max_skipped,
    )
    of_examples = {
        "features": features,
        "classes": tuple(classes) or None,
        "origin": origin or None,
        "version": version,
        "key": key,
        "num_examples": num_examples,
    }
    opened = _as_source(source, name=name, **of_examples)
    plan = make_plan(opened, name=name, split=split, options=options)
    bucket = open_bucket(bucket_url)
    bucket.check_writable()
    say = say or _ignore
    others = find_other_splits(bucket, plan.name, plan.splits, origin=opened.origin)
    if others:
        say(
            f"{plan.name} was already packed from this source with other splits, which remain: {', '.join(others)}; "
            "the new splits contain their records too: delete the other splits, or pack under another name"
        )
    finished = find_finished(bucket, plan, say=say) if resume else None
    if finished is not None:
        say(f"{plan.name} is packed already, from the same source and with the same options: nothing to do")
        return Packed(manifests=finished, was_there=True)
    now = datetime.now(UTC)
    state = begin_run(bucket, plan, created=created or now, resume=resume, say=say)
    with workspace() as folder:
        if not state.is_publishing:
            with ShardUploader(bucket, plan, state) as uploader:
                Run(plan, uploader, folder=folder, report=progress or _ignore, say=say).pack()
                state = uploader.state
        fingerprint = settled_fingerprint(plan, begun=min(now, state.created))
        return Packed(manifests=publish(bucket, plan, state, fingerprint=fingerprint))


def _as_source(source: AbstractSource | Iterable[Example], *, name: str | None, **of_examples: Any) -> AbstractSource:
    if isinstance(source, AbstractSource):
        given = sorted(option for option, value in of_examples.items() if value is not None)
        if given:
            raise InvalidInputError("this argument applies only to iterables of examples", received=given[0])
        return source
    if of_examples["features"] is None or name is None:
        raise InvalidInputError("examples need a name and features", action="give name and features")
    part = ExamplePart(source, num_examples=of_examples["num_examples"], key=of_examples["key"])
    return Examples(
        part,
        name=name,
        features=of_examples["features"],
        classes=of_examples["classes"] or (),
        origin=of_examples["origin"] or "",
        version=of_examples["version"],
    )


def _ignore(_: Progress | str) -> None:
    """Ignores progress or a message."""
