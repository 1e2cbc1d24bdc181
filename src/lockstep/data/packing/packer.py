"""Packing: examples into the sharded TFRecord files of a bucket."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import google_crc32c
import numpy as np

from lockstep.data.examples.example import encode_example
from lockstep.data.examples.features import AbstractFeature
from lockstep.data.files.framing import frame
from lockstep.data.files.record_index import MIN_INDEXED_BYTES, RecordIndex
from lockstep.data.files.record_index import SUFFIX as INDEX_SUFFIX
from lockstep.data.files.shards import ShardName
from lockstep.data.packing.manifest import Manifest, Shard
from lockstep.errors import InvalidInputError
from lockstep.storage import AbstractBucket, open_bucket

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RECORDS_PER_REPORT: Final = 500


def pack(
    examples: Iterable[Mapping[str, Any]],
    bucket_url: str,
    *,
    name: str,
    split: str,
    num_shards: int,
    features: Mapping[str, AbstractFeature],
    source: str = "",
    num_examples: int | None = None,
    created: datetime | None = None,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Packs examples into files named ``{name}-{split}-{shard}-of-{shards}-{records}.tfrec``.

    Each file has its share of the examples, in their order: the records of all files are the examples. It is made in
    a temporary folder and appears in the bucket whole. Files that an earlier packing of the same name and split left
    are then deleted, and the manifest is written last.

    Args:
        examples: for each record its values by feature.
        bucket_url: where the files go.
        name: the data set: letters, digits, ".", "_" and "-".
        split: its part, such as "train": the same characters.
        num_shards: how many files, at most one for each example.
        features: how each value is encoded; what it is decoded by later, from the manifest.
        source: where the examples came from, in words.
        num_examples: how many there are, where ``examples`` has no length.
        created: the time that the manifest states; now, by default.
        progress: called with the number of records that were packed since the last call.

    Returns:
        What was packed.

    Raises:
        InvalidInputError: an argument or an example is not usable.
        StorageWriteError: the bucket could not be written.
    """
    for what, word in (("name", name), ("split", split)):
        if not _NAME.fullmatch(word):
            raise InvalidInputError(
                f"the {what} of a data set", received=word, allowed='letters, digits, ".", "_", "-"'
            )
    if num_examples is None:
        if not isinstance(examples, Sized):
            raise InvalidInputError("the number of examples is not known", action="give num_examples")
        num_examples = len(examples)
    if not 1 <= num_shards <= num_examples:
        raise InvalidInputError(
            "the number of shards", received=num_shards, allowed=f"1 to {num_examples}, the examples"
        )
    bucket = open_bucket(bucket_url)
    bucket.check_writable()
    encoded = _encode(examples, features)
    shards: list[Shard] = []
    with tempfile.TemporaryDirectory(prefix="lockstep-pack-") as folder:
        for index in range(num_shards):
            num_records = num_examples // num_shards + (index < num_examples % num_shards)
            shard_name = ShardName(
                data_set=f"{name}-{split}", index=index, num_shards=num_shards, num_records=num_records
            )
            path = Path(folder) / str(shard_name)
            shard, record_index = _write_shard(path, encoded, num_records, progress or _ignore)
            shards.append(shard)
            bucket.upload(path.name, path=path)
            path.unlink()
            if shard.size_bytes >= MIN_INDEXED_BYTES:
                bucket.write(path.name + INDEX_SUFFIX, record_index.to_bytes())
    if next(encoded, None) is not None:
        raise InvalidInputError("there are more examples than stated", allowed=f"{num_examples}")
    indexes = {shard.file + INDEX_SUFFIX for shard in shards if shard.size_bytes >= MIN_INDEXED_BYTES}
    _delete_older(bucket, f"{name}-{split}", keep={shard.file for shard in shards} | indexes)
    manifest = Manifest(
        name=name,
        split=split,
        shards=tuple(shards),
        features=dict(features),
        source=source,
        created=created or datetime.now(UTC),
    )
    bucket.write(manifest.key, manifest.to_json().encode())
    return manifest


def _encode(examples: Iterable[Mapping[str, Any]], features: Mapping[str, AbstractFeature]) -> Iterator[bytes]:
    for number, example in enumerate(examples):
        if example.keys() != features.keys():
            raise InvalidInputError(
                f"example {number} has other features than stated",
                received=sorted(example),
                allowed=sorted(features),
            )
        values: dict[str, Any] = {}
        for name, feature in features.items():
            try:
                values[name] = feature.encode(example[name])
            except (InvalidInputError, TypeError, ValueError) as error:
                raise InvalidInputError(f"feature {name!r} of example {number}: {error}") from None
        yield encode_example(values)


def _write_shard(
    path: Path, encoded: Iterator[bytes], num_records: int, progress: Callable[[int], None]
) -> tuple[Shard, RecordIndex]:
    crc = 0
    lengths: list[int] = []
    unreported = 0
    with open(path, "wb") as file:
        for number in range(num_records):
            data = next(encoded, None)
            if data is None:
                raise InvalidInputError(
                    "there are fewer examples than stated",
                    received=f"the end, {num_records - number} short in {path.name}",
                )
            framed = frame(data)
            file.write(framed)
            crc = google_crc32c.extend(crc, framed)
            lengths.append(len(data))
            unreported += 1
            if unreported == _RECORDS_PER_REPORT:
                progress(unreported)
                unreported = 0
    if unreported:
        progress(unreported)
    index = RecordIndex(lengths=np.array(lengths, np.int64))
    return Shard(file=path.name, num_records=num_records, size_bytes=index.size_bytes, crc32c=f"{crc:08x}"), index


def _delete_older(bucket: AbstractBucket, data_set: str, *, keep: set[str]) -> None:
    for item in bucket.list(f"{data_set}-"):
        name = ShardName.parse(item.key.removesuffix(INDEX_SUFFIX))
        if "/" not in item.key and name is not None and name.data_set == data_set and item.key not in keep:
            bucket.delete(item.key)


def _ignore(_: int) -> None:
    """Reports progress to nobody."""
