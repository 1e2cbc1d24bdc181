"""Looking at packed files: what is there, and what the records have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np

from lockstep.data.examples.example import decode_example
from lockstep.data.examples.parsing import parse_batch
from lockstep.data.examples.ragged import RaggedArray, SparseArray
from lockstep.data.files.compression import find_compression, read_compressed
from lockstep.data.files.framing import read_records
from lockstep.data.files.record_source import RecordSource
from lockstep.data.files.shards import ShardName, check_complete, find_shards
from lockstep.data.packing.manifest import SUFFIX as MANIFEST_SUFFIX
from lockstep.data.packing.manifest import Manifest
from lockstep.errors import CorruptDataError, MissingInputError
from lockstep.storage import glob_urls, join_url, open_bucket, read_url, split_url

_SHOWN_VALUES: Final = 8
_SHOWN_BYTES: Final = 16
_SHOWN_CHARACTERS: Final = 80
PACKED: Final = re.compile(r".*\.tfrec(ord)?s?(\.(gz|gzip|zlib|zz))?")
"""Names of packed files."""


@final
@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """One file of records.

    Attributes:
        url: where it is.
        num_records: how many records it has, counted.
        size_bytes: its length.
        compression: of the whole file: "GZIP", "ZLIB" or None.
    """

    url: str
    num_records: int
    size_bytes: int
    compression: str | None = None

    def read(self) -> Iterator[bytes]:
        """Reads its records one after the other; see `lockstep.data.read_records` for what can go wrong."""
        return read_records(self.url) if self.compression is None else read_compressed(self.url)


@final
@dataclass(frozen=True, kw_only=True)
class FoundSet:
    """Files that belong together.

    Attributes:
        name: the data set and its split, such as "fashion-mnist-train"; a single file's own name where it is no shard.
        files: in the order of their records.
        manifest: what the data set says about itself, None where it says nothing.
    """

    name: str
    files: tuple[FoundFile, ...]
    manifest: Manifest | None

    def first_records(self, limit: int) -> Iterator[dict[str, Any]]:
        """Decodes records, checking their checksums.

        Args:
            limit: how many.

        Yields:
            A record's values by feature: of a manifest's types and shapes where there is one.

        Raises:
            CorruptDataError: a checksum does not match, or a record is no ``tf.train.Example``.
        """
        for file in self.files:
            if limit <= 0:
                return
            for number, data in enumerate(file.read()):
                if number == limit:
                    return
                yield self._decode(data)
            limit -= file.num_records

    def spread_records(self, limit: int) -> Iterator[dict[str, Any]]:
        """Decodes records from all over the files, in their order: what was packed class by class shows each class.

        Of files that are compressed as a whole it is the first ones.

        Args:
            limit: how many.

        Yields:
            What `first_records` yields.

        Raises:
            CorruptDataError: a checksum does not match, or a record is no ``tf.train.Example``.
        """
        if any(file.compression for file in self.files):
            yield from self.first_records(limit)
            return
        source = RecordSource([file.url for file in self.files])
        num_shown = min(limit, len(source))
        for data in source.__getitems__([position * len(source) // num_shown for position in range(num_shown)]):
            yield self._decode(data)

    def _decode(self, data: bytes) -> dict[str, Any]:
        if self.manifest is None:
            return dict(decode_example(data))
        return {
            name: found.values if isinstance(found, SparseArray | RaggedArray) else found[0]
            for name, found in parse_batch([data], self.manifest.features).items()
        }


def find_sets(target: str) -> list[FoundSet]:
    """Finds the packed files under a URL and reads their frames.

    Args:
        target: a file's URL, a pattern, or a bucket, in which files are looked for at every depth.

    Raises:
        MissingInputError: nothing was found, or a shard is missing.
        CorruptDataError: a file is cut off or damaged, or is not as its name or manifest states.
    """
    urls = _find_urls(target)
    by_name: dict[tuple[str, str], list[str]] = {}
    for url in urls:
        folder, _, file = url.rpartition("/")
        name = ShardName.parse(file)
        by_name.setdefault((folder, file if name is None else name.data_set), []).append(url)
    return [_describe(folder, name, members) for (folder, name), members in by_name.items()]


def is_pattern(target: str) -> bool:
    """Whether a URL has wildcards."""
    return re.search(r"[*?[]", target) is not None


def _find_urls(target: str) -> list[str]:
    if is_pattern(target):
        return find_shards(target)
    if PACKED.fullmatch(target) and glob_urls(target):
        return [target]
    bucket = open_bucket(target)
    urls = [join_url(target, item.key) for item in bucket.list() if PACKED.fullmatch(item.key)]
    if not urls:
        raise MissingInputError(f"no packed file is at {target}", allowed="a file's URL, a pattern, or a bucket")
    check_complete(urls, what=target)
    return urls


def _describe(folder: str, name: str, urls: list[str]) -> FoundSet:
    compressions = {url: find_compression(url) for url in urls}
    plain = [url for url in urls if compressions[url] is None]
    counts = RecordSource(plain).num_records_by_url if plain else {}
    files: list[FoundFile] = []
    for url in urls:
        bucket_url, key = split_url(url)
        size_bytes = open_bucket(bucket_url).size_bytes(key)
        file = FoundFile(url=url, num_records=counts.get(url, 0), size_bytes=size_bytes, compression=compressions[url])
        if file.compression is not None:
            file = replace(file, num_records=sum(1 for _ in file.read()))
        files.append(file)
    manifest = _find_manifest(join_url(folder, name + MANIFEST_SUFFIX) if folder else name + MANIFEST_SUFFIX)
    if manifest is not None:
        stated = {shard.file: (shard.num_records, shard.size_bytes) for shard in manifest.shards}
        for file in files:
            found = (file.num_records, file.size_bytes)
            if stated.get(file.url.rsplit("/", 1)[-1]) != found:
                raise CorruptDataError(
                    f"{file.url}: not the file that {manifest.key} states",
                    received=f"{file.num_records} records, {file.size_bytes} bytes",
                    action="pack the data again",
                )
    return FoundSet(name=name, files=tuple(files), manifest=manifest)


def _find_manifest(url: str) -> Manifest | None:
    try:
        return Manifest.from_json(read_url(url), url=url)
    except MissingInputError:
        return None


def describe_value(value: Any) -> str:
    """Says a feature's value of one record in a line: small ones whole, large ones by shape and range.

    Args:
        value: bytes, an array or a number, or a list of bytes.
    """
    if isinstance(value, list):
        return ", ".join(describe_value(item) for item in value[:_SHOWN_VALUES]) or "no value"
    if isinstance(value, bytes):
        if value.isascii() and value.decode("ascii").isprintable():
            return f"{value.decode('ascii')!r}" if len(value) <= _SHOWN_CHARACTERS else f"{len(value)} bytes of text"
        shown = value[:_SHOWN_BYTES].hex(" ")
        return f"{len(value)} bytes: {shown}{' ...' if len(value) > _SHOWN_BYTES else ''}"
    array = np.asarray(value)
    if array.dtype == object:
        return describe_value(array.reshape(-1).tolist())
    if array.size <= _SHOWN_VALUES:
        return str(array.tolist())
    shape = " x ".join(map(str, array.shape))
    return f"{array.dtype}, {shape}, {array.min()} to {array.max()}, mean {array.mean():.4g}"
