"""Packing: a data set into the sharded record files of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, final

from lockstep.data.examples.features import AbstractFeature
from lockstep.data.packing.delivery import Delivery
from lockstep.data.packing.earlier import find_finished, lasting_fingerprint
from lockstep.data.packing.manifest import Manifest, Skipped
from lockstep.data.packing.options import DEFAULT_MAX_SKIPPED, PackOptions
from lockstep.data.packing.placing import find_other_splits, place
from lockstep.data.packing.plan import make_plan
from lockstep.data.packing.run import Progress, Report, Run, Say, begin
from lockstep.data.packing.workspace import workspace
from lockstep.data.sources.base import AbstractSource
from lockstep.data.sources.examples import Example, ExamplePart, Examples
from lockstep.errors import InvalidInputError
from lockstep.storage import open_bucket


@final
@dataclass(frozen=True, kw_only=True)
class Packed:
    """What was packed.

    Attributes:
        manifests: what the bucket says of it, by split.
        was_there: whether all of it was in the bucket already, so that nothing was done.
    """

    manifests: Mapping[str, Manifest]
    was_there: bool = False

    @property
    def manifest(self) -> Manifest:
        """The manifest of the only split.

        Raises:
            InvalidInputError: there are several.
        """
        if len(self.manifests) > 1:
            raise InvalidInputError("there are several splits", received=tuple(self.manifests), action="use manifests")
        return next(iter(self.manifests.values()))

    @property
    def num_records(self) -> int:
        """How many records all splits have."""
        return sum(manifest.num_records for manifest in self.manifests.values())

    @property
    def size_bytes(self) -> int:
        """How long all shards are together."""
        return sum(manifest.size_bytes for manifest in self.manifests.values())

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The items that were damaged and left out."""
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

    Shards appear in the bucket whole, and the data set appears whole: an earlier packing of the same name and splits
    stays until all is packed, and the manifests are written last. A run that was interrupted goes on where it stopped,
    and its files are byte for byte those of a run that was not. Where all is packed already, from the same source and
    with the same options, nothing is done. One run at a time may pack a name into a bucket.

    Args:
        source: what `lockstep.data.sources.open_source` opened; or any iterable that gives for each record its values
            by feature. It is gone through once, in bounded memory.
        bucket_url: where the files go.
        name: the data set: letters, digits, ".", "_" and "-"; by default the source's own name.
        split: its part, such as "train"; or shares by name, ``{"train": 0.9, "val": 0.1}``, dealt by a digest of each
            record's key. By default "train", or the splits that the source has.
        features: of an iterable, how each value is encoded; what it is decoded by later, from the manifest.
        classes: of an iterable, what its labels mean, by their number.
        origin: of an iterable, where it came from, in words.
        version: of an iterable, names its content: an interrupted run is gone on with where this is the same, and
            nothing is done where all is packed.
        key: of an iterable, gives an example's key; its number by default.
        num_examples: of an iterable, how many there are, where it has no length and that is known.
        num_shards: how many shards each split has. By default as many as make them about 128 MiB long, but at least 8;
            where the records or their length are not known ahead, a shard ends before it would be longer.
        records_per_shard: in its place, how many records each has.
        bytes_per_shard: in its place, how long each may be, before it is compressed.
        compression: "GZIP" or "ZLIB", of each shard as a whole: its records can then be read in order alone.
        shuffle: whether records are packed in another order than the source's; by default where that goes class by
            class. What has one order is shuffled within a window of at most 4,096 records and 128 MiB.
        seed: of the shuffling.
        num_workers: how many threads load and encode; as many as there are processors by default. It changes no byte.
        on_error: "skip" leaves damaged items out, names and counts them; "raise" ends with the first.
        max_skipped: how many damaged items may be left out.
        resume: whether to go on where an earlier run stopped, which is to do nothing where it finished.
        created: the time that the manifests state; now, by default.
        progress: told how far the packing is, some times a second.
        say: told in words of what is left out, and of what an interrupted run left.

    Returns:
        What was packed.

    Raises:
        InvalidInputError: an argument or an example is not usable.
        CorruptDataError: the source is damaged, or more of its items are than may be left out.
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
            f"{plan.name} was packed from here before, with other splits, which stay: {', '.join(others)}; records of "
            "them are in the new ones too: delete them, or pack under another name"
        )
    finished = find_finished(bucket, plan, say=say) if resume else None
    if finished is not None:
        say(f"{plan.name} is packed already, from the same source and with the same options: nothing to do")
        return Packed(manifests=finished, was_there=True)
    now = datetime.now(UTC)
    state = begin(bucket, plan, created=created or now, resume=resume, say=say)
    with workspace() as folder:
        if not state.is_placing:
            with Delivery(bucket, plan, state) as delivery:
                Run(plan, delivery, folder=folder, report=progress or _ignore, say=say).pack()
                state = delivery.state
        fingerprint = lasting_fingerprint(plan, begun=min(now, state.created))
        return Packed(manifests=place(bucket, plan, state, fingerprint=fingerprint))


def _as_source(source: AbstractSource | Iterable[Example], *, name: str | None, **of_examples: Any) -> AbstractSource:
    if isinstance(source, AbstractSource):
        given = sorted(option for option, value in of_examples.items() if value is not None)
        if given:
            raise InvalidInputError(
                "an argument is for iterables of examples; a source says it itself", received=given[0]
            )
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
    """Reports to nobody."""
