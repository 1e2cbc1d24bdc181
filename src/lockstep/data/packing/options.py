"""The options of packing a data set."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, final, get_args

from lockstep.errors import InvalidInputError

Compression = Literal["GZIP", "ZLIB"]
OnError = Literal["skip", "raise"]

DEFAULT_SHARD_BYTES: Final = 1 << 27
"""The default approximate length of a shard: 128 MiB."""

DEFAULT_NUM_SHARDS: Final = 8
"""The default minimum number of shards, so that several readers have files of their own."""

DEFAULT_MAX_SKIPPED: Final = 1000
MAX_WORKERS: Final = 256

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@final
@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """The options of packing. At most one of the first three attributes may be given.

    Attributes:
        num_shards: the number of shards of each split.
        records_per_shard: the number of records of each shard; the last shard has the rest.
        bytes_per_shard: the maximum length of a shard before compression, in bytes. A shard with a single record may be
            longer.
        compression: the compression of each shard as a whole; None for none.
        shuffle: whether to shuffle the records; None shuffles only a source that is sorted by class.
        seed: the seed of the shuffling, 0 or more.
        num_workers: the number of threads that read, encode and check; None means one per processor.
        on_error: "raise" fails at the first damaged item; "skip" skips damaged items, and reports and counts them.
        max_skipped: the maximum number of damaged items to skip.

    Raises:
        InvalidInputError: a value is out of range, or more than one size of shards is given.
    """

    num_shards: int | None = None
    records_per_shard: int | None = None
    bytes_per_shard: int | None = None
    compression: Compression | None = None
    shuffle: bool | None = None
    seed: int = 0
    num_workers: int | None = None
    on_error: OnError = "raise"
    max_skipped: int = DEFAULT_MAX_SKIPPED

    def __post_init__(self) -> None:
        sizes = {
            "num_shards": self.num_shards,
            "records_per_shard": self.records_per_shard,
            "bytes_per_shard": self.bytes_per_shard,
        }
        given = {name: size for name, size in sizes.items() if size is not None}
        if len(given) > 1:
            raise InvalidInputError(
                "the size of shards is given more than once", received=given, allowed=f"one of {', '.join(sizes)}"
            )
        for name, size in given.items():
            if size < 1:
                raise InvalidInputError(f"the size of shards ({name})", received=size, allowed="1 or more")
        for what, value, words in (
            ("the compression of shards (compression)", self.compression, get_args(Compression)),
            ("how to handle damaged items (on_error)", self.on_error, get_args(OnError)),
        ):
            if value is not None and value not in words:
                raise InvalidInputError(what, received=value, allowed=words)
        if self.num_workers is not None and not 1 <= self.num_workers <= MAX_WORKERS:
            raise InvalidInputError(
                "the number of workers (num_workers)", received=self.num_workers, allowed=f"1 to {MAX_WORKERS}"
            )
        if self.seed < 0 or self.max_skipped < 0:
            raise InvalidInputError(
                "the seed (seed) and the number of items to skip (max_skipped)",
                received=(self.seed, self.max_skipped),
                allowed="0 or more",
            )

    @property
    def num_threads(self) -> int:
        """The number of threads to use."""
        return self.num_workers or min(os.cpu_count() or 1, MAX_WORKERS)

    def to_json(self, *, shuffle: bool) -> dict[str, Any]:
        """Returns the options that decide the contents of the shards, as the manifest stores them.

        Args:
            shuffle: whether the items are shuffled.
        """
        values: Mapping[str, Any] = {
            "num_shards": self.num_shards,
            "records_per_shard": self.records_per_shard,
            "bytes_per_shard": self.bytes_per_shard,
            "compression": self.compression,
            "shuffle_seed": self.seed if shuffle else None,
        }
        return {name: value for name, value in values.items() if value is not None}


def check_name(word: str, *, what: str) -> str:
    """Checks the name of a data set or split, and returns it unchanged.

    Raises:
        InvalidInputError: the name has a character that is not allowed in file names.
    """
    if not _NAME.fullmatch(word):
        raise InvalidInputError(
            f"the {what} of a data set ({what})", received=word, allowed='letters, digits, ".", "_", "-"'
        )
    return word
