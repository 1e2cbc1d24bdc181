"""Finds and describes what packing runs leave besides their result: unfinished runs, and splits of earlier runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, final

from lockstep.data.files.shards import ShardName
from lockstep.data.packing.journal import JournalState, journal_folder, journal_key, name_of_journal, read_journal
from lockstep.data.packing.manifest import Manifest
from lockstep.storage import AbstractBucket, StoredObject

TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S %Z"
"""The format of the times of packing runs in messages."""


@final
@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A packing run that has not ended: it was interrupted, or it is still running.

    Attributes:
        url: the folder or bucket of the data set, followed by the data set's name.
        state: the journal of the run; None if it is missing or unreadable.
        written: the time of the journal's last write; None if there is no journal.
        num_shards: the number of shards of each split, if the names of its first shards state it.
    """

    url: str
    state: JournalState | None
    written: datetime | None
    num_shards: Mapping[str, int] = field(default_factory=dict[str, int])

    def has_begun(self, split: str) -> bool:
        """Whether any shard of a split is finished."""
        return self.state is not None and any(shard.split == split for shard in self.state.shards)

    def has_placed(self, url: str) -> bool:
        """Whether the run has written shards of a split, ``BUCKET/NAME-train``, directly under their final names."""
        name, split = url[: len(self.url) + 1], url[len(self.url) + 1 :]
        return self.state is not None and self.state.is_direct and name == f"{self.url}-" and self.has_begun(split)

    def __str__(self) -> str:
        """Describes the progress of the run in one line, and how to resume it."""
        if self.state is None:
            return (
                f"{self.url}: its packing was interrupted, and what it left in {journal_folder(self.url)} cannot be "
                "resumed: the same command starts from the beginning"
            )
        written = "" if self.written is None else f" (last sign of it: {self.written:{TIME_FORMAT}})"
        goes_on = "the same command resumes it"
        if self.state.fingerprint is None:
            goes_on = (
                "packing it again starts from the beginning: it cannot be determined whether the source is the same"
            )
        begun = f"its packing, begun {self.state.created:{TIME_FORMAT}}, was interrupted or still runs{written}"
        return f"{self.url}: {begun}; {self._describe_progress(self.state)}; {goes_on}"

    def _describe_progress(self, state: JournalState) -> str:
        if state.is_publishing:
            return "all shards are finished and are being moved to their final names"
        parts: list[str] = []
        for split in dict.fromkeys(shard.split for shard in state.shards):
            shards = [shard for shard in state.shards if shard.split == split]
            total = f" of {self.num_shards[split]}" if split in self.num_shards else ""
            num_records = sum(shard.num_records for shard in shards)
            parts.append(f"{split} {len(shards)}{total} ({num_records:,} records)")
        return f"finished shards: {', '.join(parts) or 'none'}"


def find_unfinished(bucket: AbstractBucket, items: Iterable[StoredObject], *, beginning: str) -> tuple[Unfinished, ...]:
    """Finds packing runs that have not ended.

    Args:
        bucket: the bucket to search.
        items: the objects of the bucket, with those in the folders of journals.
        beginning: the prefix that turns a key into a URL as the caller writes it: "gs://b/", or "" for the working
            folder.
    """
    names: dict[str, datetime | None] = {}
    num_shards: dict[str, int] = {}
    for item in items:
        name = name_of_journal(item.key)
        if name is not None:
            names.setdefault(name, None)
            if item.key == journal_key(name):
                names[name] = datetime.fromtimestamp(int(item.modified_time_s), UTC)
        elif (shard := ShardName.parse(item.key)) is not None:
            num_shards[item.key.removesuffix(item.key.rpartition("/")[2]) + shard.data_set] = shard.num_shards
    found: list[Unfinished] = []
    for name, written in names.items():
        state = read_journal(bucket, name)
        if state is None and not bucket.list(journal_folder(name)):
            continue  # the run has ended since the listing
        splits = {shard.split for shard in state.shards} if state is not None and state.is_direct else set[str]()
        counts = {split: num_shards[f"{name}-{split}"] for split in splits if f"{name}-{split}" in num_shards}
        found.append(Unfinished(url=beginning + name, state=state, written=written, num_shards=counts))
    return tuple(found)


@final
@dataclass(frozen=True, kw_only=True)
class _Packing:
    """The splits of one packing run that still exist."""

    created: datetime
    source: str
    divided_among: tuple[str, ...]
    urls: list[str] = field(default_factory=list[str])
    splits: list[str] = field(default_factory=list[str])


def describe_earlier(manifests: Mapping[str, Manifest]) -> list[str]:
    """Describes splits of earlier packing runs that may share records with splits of later runs.

    That is the case if both runs have the same source, or if the earlier run divided the records among several splits
    and a later run replaced some of these. Splits that were packed separately from different sources are not reported.

    Args:
        manifests: the manifests, by the URL of the split, ``BUCKET/NAME-train``.

    Returns:
        One line for each pair of an earlier and a later run.
    """
    data_sets: dict[tuple[str, str], dict[tuple[str, ...], _Packing]] = {}
    for url, manifest in sorted(manifests.items()):
        packings = data_sets.setdefault((url.rpartition("/")[0], manifest.name), {})
        stated = (manifest.created.isoformat(), manifest.source, json.dumps(dict(manifest.options), sort_keys=True))
        fractions = manifest.options.get("split")
        packing = packings.setdefault(
            stated,
            _Packing(
                created=manifest.created,
                source=manifest.source,
                divided_among=tuple(fractions) if isinstance(fractions, Mapping) else (),
            ),
        )
        packing.urls.append(url)
        packing.splits.append(manifest.split)
    lines: list[str] = []
    for (_, name), packings in data_sets.items():
        in_order = sorted(packings.values(), key=lambda packing: packing.created.timestamp())
        for number, earlier in enumerate(in_order):
            lines.extend(
                _describe_pair(name, earlier, later) for later in in_order[number + 1 :] if _shares(earlier, later)
            )
    return lines


def _shares(earlier: _Packing, later: _Packing) -> bool:
    is_same_source = bool(earlier.source) and earlier.source == later.source
    return is_same_source or bool(set(earlier.divided_among) & set(later.splits))


def _describe_pair(name: str, earlier: _Packing, later: _Packing) -> str:
    now = [f"{name}-{split}" for split in later.splits]
    if earlier.source and earlier.source == later.source:
        how = f"from the same source as {_join_names(now)} at {later.created:{TIME_FORMAT}}"
        where = "there"
    else:
        replaced = [f"{name}-{split}" for split in later.splits if split in earlier.divided_among]
        how = f"together with another {_join_names(replaced)} than is here now, of {later.created:{TIME_FORMAT}}"
        where = "in that"
    were, its = ("was", "its") if len(earlier.urls) == 1 else ("were", "their")
    return (
        f"{_join_names(earlier.urls)} {were} packed at {earlier.created:{TIME_FORMAT}} {how}: {its} records may be "
        f"{where} too; delete {its} files if they are out of date"
    )


def _join_names(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
