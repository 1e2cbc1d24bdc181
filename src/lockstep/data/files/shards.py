"""The shards of a data set: how their files are named, and whether all of them are there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from lockstep.data.files.record_index import SUFFIX as INDEX_SUFFIX
from lockstep.data.packing.manifest import SUFFIX as MANIFEST_SUFFIX
from lockstep.errors import CorruptDataError, MissingInputError
from lockstep.storage import glob_urls, open_bucket

SUFFIX: Final = ".tfrec"
_WILDCARD: Final = re.compile(r"[*?[]")
_OTHERS: Final = re.compile(r"(?P<set>.+)-(?P<index>\d{5,})-of-(?P<count>\d{5,})(?P<suffix>(?:\.[A-Za-z_]\w*)*)")
"""As others name shards: ``mnist-train.tfrecord-00000-of-00010``, ``train-00000-of-01024``, ``x-00000-of-00002.gz``."""

_NAME: Final = re.compile(r"(?P<set>.+)-(?P<index>\d{5,})-of-(?P<count>\d{5,})(?:-(?P<records>\d+))?\.tfrec(?:ord)?")


@final
@dataclass(frozen=True, kw_only=True)
class ShardName:
    """What the name of a shard's file says: ``fashion-mnist-train-00003-of-00008-7500.tfrec``.

    Attributes:
        data_set: the part before the numbers, ``fashion-mnist-train``.
        index: which shard this is, from 0.
        num_shards: how many there are.
        num_records: how many records it has, None where the name does not say.
    """

    data_set: str
    index: int
    num_shards: int
    num_records: int | None

    def __str__(self) -> str:
        records = "" if self.num_records is None else f"-{self.num_records}"
        return f"{self.data_set}-{self.index:05d}-of-{self.num_shards:05d}{records}{SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """Reads a file's name or URL, folders left out; None where it is not a shard's."""
        found = _NAME.fullmatch(name.rsplit("/", 1)[-1])
        if found is None:
            return None
        records = found["records"]
        return cls(
            data_set=found["set"],
            index=int(found["index"]),
            num_shards=int(found["count"]),
            num_records=None if records is None else int(records),
        )


def find_shards(urls: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """Finds the files of a data set and checks that none is missing.

    Args:
        urls: a pattern as `lockstep.storage.glob_urls` takes it; the name of a data set's split, BUCKET/NAME-train; or
            the URLs themselves.

    Returns:
        URLs: those found by the pattern or the name, sorted; or those given, in their order.

    Raises:
        MissingInputError: nothing matches, or a data set among what was found lacks a shard.
        CorruptDataError: a shard is there twice, or under two numbers of shards.
    """
    if isinstance(urls, str | os.PathLike):
        pattern = os.fspath(urls)
        # A manifest or an index beside the shards is no file of records, however wide the pattern.
        found = [url for url in glob_urls(pattern) if not url.endswith((MANIFEST_SUFFIX, INDEX_SUFFIX))]
        if not found and not is_pattern(pattern):
            found = list(find_set(pattern))
        if not found:
            raise MissingInputError(
                f"no file matches {pattern}",
                action="name a data set's split, BUCKET/NAME-train, or a pattern of files, BUCKET/NAME-train-*.tfrec",
            )
        check_complete(found, what=pattern.rsplit("/", 1)[-1])
        return found
    if not urls:
        raise MissingInputError("no file was named", allowed="a pattern, or one URL or more")
    return list(urls)


def data_set_of(name: str) -> str:
    """Returns the data set that a file belongs to by its name, by us or as others name shards; its own name of others.

    Args:
        name: the file's, without folders.
    """
    shard = ShardName.parse(name)
    if shard is not None:
        return shard.data_set
    found = _OTHERS.fullmatch(name)
    return name if found is None else found["set"] + found["suffix"]


def is_pattern(url: str) -> bool:
    """Whether a URL has wildcards."""
    return _WILDCARD.search(url) is not None


def find_set(url: str) -> dict[str, int]:
    """Finds the shards of a data set's split by its name, such as ``gs://b/pets-train``.

    Args:
        url: the name, behind the folder or bucket.

    Returns:
        How long each is in bytes, by its URL, sorted; nothing where the URL names no data set.
    """
    parent, separator, name = url.rstrip("/").rpartition("/")
    folder = parent + separator
    if name in ("", ".", "..") or folder.endswith("://"):  # the latter is a bucket
        return {}
    items = open_bucket(folder or ".").list(f"{name}-")
    named = {item.key: (ShardName.parse(item.key), item.size_bytes) for item in items if "/" not in item.key}
    return {
        folder + key: size_bytes
        for key, (shard, size_bytes) in named.items()
        if shard is not None and shard.data_set == name
    }


def check_complete(urls: Iterable[str], *, what: str) -> None:
    """Checks by their names that the shards of each data set are all there, once.

    Args:
        urls: files; those that are not named as shards, by us or as others do, are left out.
        what: the pattern or folder they were found by, for errors.

    Raises:
        MissingInputError: a shard is missing.
        CorruptDataError: a shard is there twice, or under two numbers of shards.
    """
    sets: dict[tuple[str, str], list[ShardName]] = {}
    for url in urls:
        folder, _, file = url.rpartition("/")
        name = ShardName.parse(file)
        if name is not None:
            sets.setdefault((folder, name.data_set), []).append(name)
        elif found := _OTHERS.fullmatch(file):
            numbers = {"index": int(found["index"]), "num_shards": int(found["count"]), "num_records": None}
            name = ShardName(data_set=found["set"], **numbers)
            sets.setdefault((folder, found["set"] + "*" + found["suffix"]), []).append(name)
    for names in sets.values():
        num_shards = names[0].num_shards
        if any(name.num_shards != num_shards for name in names):
            counts = sorted({name.num_shards for name in names})
            raise CorruptDataError(
                f"{what}: {names[0].data_set} is there in {' and in '.join(map(str, counts))} shards",
                action="delete the older ones, or name a pattern that finds one of both",
            )
        present = sorted(name.index for name in names)
        repeated = sorted({index for index, following in pairwise(present) if index == following})
        if repeated:
            raise CorruptDataError(
                f"{what}: more than one file for shard {_numbers(repeated)} of {names[0].data_set}",
                action="delete the older ones",
            )
        missing = sorted(set(range(num_shards)) - set(present))
        if missing:
            raise MissingInputError(
                f"{what}: {len(present)} of {num_shards} shards found, missing {_numbers(missing)}",
                action="pack the data again, or name the files one by one to use them without the rest",
            )


def _numbers(indices: Sequence[int]) -> str:
    shown = ", ".join(f"{index:05d}" for index in indices[:8])
    return f"{shown}, ... ({len(indices)} in all)" if len(indices) > 8 else shown
