"""The plan of a packing run: which items, in which order, into which splits and shards. Planning reads only keys."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from lockstep.data.packing.assigning import SplitAssigner
from lockstep.data.packing.options import DEFAULT_NUM_SHARDS, DEFAULT_SHARD_BYTES, PackOptions, check_name
from lockstep.data.sources.base import AbstractPart, AbstractSource, Item, digest_of
from lockstep.data.sources.examples import ExamplePart
from lockstep.errors import InvalidInputError

MAX_WINDOW_ITEMS: Final = 4096
"""The size of the shuffle window, in items, for a source that can only be read in one order."""

MAX_WINDOW_BYTES: Final = 1 << 27
"""The most memory of the shuffle window, in bytes. Large items make the window shorter."""

_FORMAT: Final = 1


@final
@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """How one split is divided into shards.

    Attributes:
        num_items: the number of items of the split; None if it is not known in advance.
        num_shards: the number of shards; None if it is not known in advance.
        items_per_shard: the number of items per shard; None if the number or the length of the shards decides.
        bytes_per_shard: the maximum length of a shard before compression, in bytes; None if the number of items
            decides.
    """

    num_items: int | None
    num_shards: int | None
    items_per_shard: int | None
    bytes_per_shard: int | None

    def num_items_in(self, index: int) -> float:
        """Returns the number of items of a shard, including damaged ones; infinity if the shard's length decides."""
        if self.items_per_shard is not None:
            return self.items_per_shard
        if self.num_shards is None or self.num_items is None:
            return math.inf
        return self.num_items // self.num_shards + (index < self.num_items % self.num_shards)


@final
@dataclass(frozen=True, kw_only=True)
class PartPlan:
    """How one part of a source is packed.

    Attributes:
        part: the part, which has the items.
        assigner: the object that assigns each item to a split.
        shards: the division of each split into shards, by the split's name.
        seed: the seed of the shuffling; None keeps the order.
    """

    part: AbstractPart
    assigner: SplitAssigner
    shards: Mapping[str, ShardPlan]
    seed: int | None

    def items(self) -> Iterator[Item]:
        """Yields the items in the order in which they are packed."""
        if self.seed is None:
            return self.part.items()
        if self.part.has_any_order:
            assert self.part.num_items is not None, "what can be had in any order can be counted"
            return self.part.items(_random(self.seed).permutation(self.part.num_items).tolist())
        return _shuffled(self.part.items(), seed=self.seed)


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a source is packed.

    Attributes:
        name: the data set's name in the bucket.
        source: the source of the records.
        parts: the plans of the source's parts.
        options: the packing options.
        document: the options as the manifest stores them.
        fingerprint: a digest of everything that decides the bytes of the shards; None if the source's content cannot be
            identified.
    """

    name: str
    source: AbstractSource
    parts: tuple[PartPlan, ...]
    options: PackOptions
    document: Mapping[str, Any]
    fingerprint: str | None

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of all splits."""
        return tuple(split for part in self.parts for split in part.shards)

    @property
    def num_items(self) -> int | None:
        """The number of items of all parts; None if it is not known in advance."""
        counts = [part.part.num_items for part in self.parts]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def counts_are_known(self) -> bool:
        """Whether the number of shards of each split, which is in each shard's name, is known in advance."""
        return all(shards.num_shards is not None for part in self.parts for shards in part.shards.values())


def make_plan(
    source: AbstractSource, *, name: str | None, split: str | Mapping[str, float] | None, options: PackOptions
) -> Plan:
    """Plans how a source is packed.

    Args:
        source: the source of the records.
        name: the name of the packed data set; None uses the source's name.
        split: the name of the only split, or the fractions of several splits by name; None keeps the source's splits.
        options: the packing options.

    Raises:
        InvalidInputError: ``split`` is given for a source that has several splits, a split would get no record, or
            there would be more shards than records.
    """
    parts = source.splits()
    named = check_name(source.name if name is None else name, what="name")
    if split is not None and len(parts) > 1:
        raise InvalidInputError(
            "the data set already has splits (split)", received=split, allowed=f"its own splits: {', '.join(parts)}"
        )
    shuffle = source.is_sorted if options.shuffle is None else options.shuffle
    planned: list[PartPlan] = []
    for part_name, part in parts.items():
        shares = {part_name: 1.0} if split is None else {split: 1.0} if isinstance(split, str) else dict(split)
        assigner = SplitAssigner(shares)
        planned.append(
            PartPlan(
                part=part,
                assigner=assigner,
                shards=_cut(part, assigner, options, what=named),
                seed=options.seed if shuffle else None,
            )
        )
    document: dict[str, Any] = {**options.to_json(shuffle=shuffle), **source.options}
    if len(parts) == 1 and len(planned[0].shards) > 1:
        document["split"] = dict(planned[0].assigner.fractions)
    return Plan(
        name=named,
        source=source,
        parts=tuple(planned),
        options=options,
        document=document,
        fingerprint=_fingerprint(source, planned, document, named, options),
    )


def _cut(part: AbstractPart, assigner: SplitAssigner, options: PackOptions, *, what: str) -> dict[str, ShardPlan]:
    counts = _count(part, assigner)
    plans: dict[str, ShardPlan] = {}
    for split, share in assigner.fractions.items():
        num_items = counts.get(split, 0) if counts is not None else None
        if num_items == 0:
            raise InvalidInputError(
                f"{what} has no record for the split {split!r}", action="give it a larger fraction, or leave it out"
            )
        plans[split] = _cut_split(num_items, part=part, share=share, options=options)
    return plans


def _cut_split(num_items: int | None, *, part: AbstractPart, share: float, options: PackOptions) -> ShardPlan:
    num_shards = options.num_shards
    bytes_per_shard = options.bytes_per_shard
    if options.records_per_shard is not None:
        num_shards = None if num_items is None else math.ceil(num_items / options.records_per_shard)
    elif num_shards is not None:
        if num_items is None:
            count = ", or num_examples" if isinstance(part, ExamplePart) else ""
            raise InvalidInputError(
                "num_shards needs the number of records, which is known only after reading them",
                action=f"give records_per_shard or bytes_per_shard in its place{count}",
            )
        if num_shards > num_items:
            raise InvalidInputError(
                "more shards (num_shards) than records",
                received=num_shards,
                allowed=f"1 to {num_items}, the records of the smallest split",
            )
    elif bytes_per_shard is None:
        num_shards = _default_num_shards(num_items, part=part, share=share)
        bytes_per_shard = DEFAULT_SHARD_BYTES if num_shards is None else None
    return ShardPlan(
        num_items=num_items,
        num_shards=num_shards,
        items_per_shard=options.records_per_shard,
        bytes_per_shard=bytes_per_shard,
    )


def _default_num_shards(num_items: int | None, *, part: AbstractPart, share: float) -> int | None:
    """Returns a number of shards that gives about the default length; None if the number of records is not known."""
    if num_items is None or (part.size_bytes is None and not part.has_any_order):
        return None
    by_length = math.ceil((part.size_bytes or 0) * share / DEFAULT_SHARD_BYTES)
    return min(num_items, max(DEFAULT_NUM_SHARDS, by_length))


def _count(part: AbstractPart, assigner: SplitAssigner) -> Mapping[str, int] | None:
    """Returns the number of items of each split; None if the items would have to be read for it."""
    if len(assigner.fractions) == 1:
        return None if part.num_items is None else dict.fromkeys(assigner.fractions, part.num_items)
    keys = part.keys()
    return None if keys is None else Counter(map(assigner.split_of, keys))


def _random(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def _shuffled(items: Iterator[Item], *, seed: int) -> Iterator[Item]:
    """Yields items in a random order, each at most a window's length before its original position."""
    random = _random(seed)
    held: list[tuple[Item, int]] = []
    held_bytes = 0
    for item in items:
        size_bytes = _about_bytes(item.value)
        held.append((item, size_bytes))
        held_bytes += size_bytes
        while len(held) > MAX_WINDOW_ITEMS or (held_bytes > MAX_WINDOW_BYTES and len(held) > 1):
            chosen, freed_bytes = _take(held, random)
            held_bytes -= freed_bytes
            yield chosen
    while held:
        yield _take(held, random)[0]


def _take(held: list[tuple[Item, int]], random: np.random.Generator) -> tuple[Item, int]:
    place = int(random.integers(len(held)))
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def _about_bytes(value: Any) -> int:
    """Returns the approximate memory of a record's values in bytes, deterministically."""
    if isinstance(value, np.ndarray | np.generic):
        return value.nbytes
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_about_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_about_bytes, value))
    return 8


def _fingerprint(
    source: AbstractSource, parts: list[PartPlan], document: Mapping[str, Any], name: str, options: PackOptions
) -> str | None:
    content = source.fingerprint()
    if content is None:
        return None
    shards = [(split, plan) for part in parts for split, plan in part.shards.items()]
    features = {name: feature.to_json() for name, feature in source.features.items()}
    described = json.dumps([document, features, source.classes, options.on_error])
    return digest_of(_FORMAT, content, name, described, shards)
