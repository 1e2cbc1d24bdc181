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
from lockstep.storage import glob_urls

SUFFIX: Final = ".tfrec"
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
        urls: a pattern as `lockstep.storage.glob_urls` takes it, or the URLs themselves.

    Returns:
        URLs: those found by the pattern, sorted; or those given, in their order.

    Raises:
        MissingInputError: nothing matches, or a data set among what was found lacks a shard.
        CorruptDataError: a shard is there twice, or under two numbers of shards.
    """
    if isinstance(urls, str | os.PathLike):
        pattern = os.fspath(urls)
        # A manifest or an index beside the shards is no file of records, however wide the pattern.
        found = [url for url in glob_urls(pattern) if not url.endswith((MANIFEST_SUFFIX, INDEX_SUFFIX))]
        if not found:
            raise MissingInputError(
                f"no file matches {pattern}", action="name a pattern of packed files, such as BUCKET/NAME-train-*.tfrec"
            )
        check_complete(found, what=pattern.rsplit("/", 1)[-1])
        return found
    if not urls:
        raise MissingInputError("no file was named", allowed="a pattern, or one URL or more")
    return list(urls)


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
