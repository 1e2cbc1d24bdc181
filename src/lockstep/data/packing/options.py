"""What can be asked for when a data set is packed."""

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
"""About how long a shard is where nothing is said: 128 MiB."""

DEFAULT_NUM_SHARDS: Final = 8
"""How many shards there are at least where nothing is said, so that several readers have files of their own."""

DEFAULT_MAX_SKIPPED: Final = 1000
MAX_WORKERS: Final = 256

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@final
@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """How records are laid into shards. Of the first three at most one is given.

    Attributes:
        num_shards: how many shards each split has.
        records_per_shard: how many records a shard has; the last one has the rest.
        bytes_per_shard: how long a shard is at most, uncompressed; one record alone may be longer.
        compression: of each shard as a whole.
        shuffle: whether records are packed in another order than the source's; None: where it goes class by class.
        seed: of the shuffling.
        num_workers: how many threads read, encode and check; as many as there are processors by default.
        on_error: "raise" ends with the first damaged item; "skip" names it, leaves it out and counts it.
        max_skipped: how many damaged items may be left out.

    Raises:
        InvalidInputError: a value is none of these, or two sizes are given.
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
                "the size of shards is said twice", received=given, allowed=f"one of {', '.join(sizes)}"
            )
        for name, size in given.items():
            if size < 1:
                raise InvalidInputError(f"the size of shards ({name})", received=size, allowed="1 or more")
        for what, value, words in (
            ("the compression of shards (compression)", self.compression, get_args(Compression)),
            ("what is done about damaged items (on_error)", self.on_error, get_args(OnError)),
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
        """How many workers there are."""
        return self.num_workers or min(os.cpu_count() or 1, MAX_WORKERS)

    def to_json(self, *, shuffle: bool) -> dict[str, Any]:
        """Returns what a manifest says of them: what decides the shards.

        Args:
            shuffle: whether the source's items were shuffled.
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
    """Returns the name of a data set or split as it is.

    Raises:
        InvalidInputError: it could not stand in the name of a file.
    """
    if not _NAME.fullmatch(word):
        raise InvalidInputError(
            f"the {what} of a data set ({what})", received=word, allowed='letters, digits, ".", "_", "-"'
        )
    return word
