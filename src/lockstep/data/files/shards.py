"""The shards of a data set: parses their file names, finds them, and checks that none is missing."""

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
_OTHER_TOOLS_NAME: Final = re.compile(
    r"(?P<set>.+)-(?P<index>\d{5,})-of-(?P<count>\d{5,})(?P<suffix>(?:\.[A-Za-z_]\w*)*)"
)
"""Shard names of other tools: ``mnist.tfrecord-00000-of-00010``, ``train-00000-of-01024``, ``x-00000-of-00002.gz``."""

_NAME: Final = re.compile(r"(?P<set>.+)-(?P<index>\d{5,})-of-(?P<count>\d{5,})(?:-(?P<records>\d+))?\.tfrec(?:ord)?")


@final
@dataclass(frozen=True, kw_only=True)
class ShardName:
    """The parsed name of a shard's file, such as ``fashion-mnist-train-00003-of-00008-7500.tfrec``.

    Attributes:
        data_set: the part before the numbers, ``fashion-mnist-train``.
        index: the number of this shard, from 0.
        num_shards: the number of shards of the data set.
        num_records: the number of records of this shard; None if the name does not have it.
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
        """Parses the last part of a file's path or URL; None if it is not the name of a shard."""
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
    """Finds the files of a data set, and checks that none is missing. Given URLs are returned without a check.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`); the name of a data set's split, BUCKET/NAME-train; or the
            URLs of the files.

    Returns:
        The URLs that the pattern or the name matches, sorted; or the given URLs, in their order.

    Raises:
        MissingInputError: no file matches, no URL is given, or a shard of a matching data set is missing.
        CorruptDataError: a shard exists twice, or with two different numbers of shards.
    """
    if isinstance(urls, str | os.PathLike):
        pattern = os.fspath(urls)
        # A wide pattern may also match manifests and indexes, which are not record files.
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
    """Returns the data set of a shard from its file name, as Lockstep or other tools name shards.

    Args:
        name: the file's name, without folders. A name that is not a shard's is returned unchanged.
    """
    shard = ShardName.parse(name)
    if shard is not None:
        return shard.data_set
    found = _OTHER_TOOLS_NAME.fullmatch(name)
    return name if found is None else found["set"] + found["suffix"]


def is_pattern(url: str) -> bool:
    """Whether a URL contains wildcards."""
    return _WILDCARD.search(url) is not None


def find_set(url: str) -> dict[str, int]:
    """Finds the shards of a data set's split by its name, such as ``gs://b/pets-train``.

    Args:
        url: the URL of the folder or bucket, followed by the split's name.

    Returns:
        The length of each shard in bytes, by the shard's URL, sorted; empty if no shard has this name.
    """
    parent, separator, name = url.rstrip("/").rpartition("/")
    folder = parent + separator
    if name in ("", ".", "..") or folder.endswith("://"):  # the latter names only a bucket
        return {}
    items = open_bucket(folder or ".").list(f"{name}-")
    named = {item.key: (ShardName.parse(item.key), item.size_bytes) for item in items if "/" not in item.key}
    return {
        folder + key: size_bytes
        for key, (shard, size_bytes) in named.items()
        if shard is not None and shard.data_set == name
    }


def check_complete(urls: Iterable[str], *, what: str) -> None:
    """Checks by file names that each shard of each data set exists exactly once.

    Args:
        urls: the files; those whose names are not shard names, of Lockstep or of other tools, are ignored.
        what: the pattern or folder of the files, for error messages.

    Raises:
        MissingInputError: a shard is missing.
        CorruptDataError: a shard exists twice, or with two different numbers of shards.
    """
    sets: dict[tuple[str, str], list[ShardName]] = {}
    for url in urls:
        folder, _, file = url.rpartition("/")
        name = ShardName.parse(file)
        if name is not None:
            sets.setdefault((folder, name.data_set), []).append(name)
        elif found := _OTHER_TOOLS_NAME.fullmatch(file):
            numbers = {"index": int(found["index"]), "num_shards": int(found["count"]), "num_records": None}
            name = ShardName(data_set=found["set"], **numbers)
            sets.setdefault((folder, found["set"] + "*" + found["suffix"]), []).append(name)
    for names in sets.values():
        num_shards = names[0].num_shards
        if any(name.num_shards != num_shards for name in names):
            counts = sorted({name.num_shards for name in names})
            raise CorruptDataError(
                f"{what}: {names[0].data_set} exists with {' and '.join(map(str, counts))} shards",
                action="delete the older ones, or use a pattern that matches only one of them",
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
