"""Inspects packed files: lists them, finds errors without reading all data, and decodes some of the records."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from lockstep.data.examples.example import decode_example
from lockstep.data.examples.parsing import parse_batch
from lockstep.data.examples.ragged import RaggedArray, SparseArray
from lockstep.data.files.compression import find_compression, read_compressed
from lockstep.data.files.framing import read_records
from lockstep.data.files.record_source import RecordSource
from lockstep.data.finding import COPY_AGAIN, Damage, PackedFile, PackedSet, find_packed
from lockstep.data.images.codec import image_size
from lockstep.data.packing.manifest import Manifest, Shard
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError

_SHOWN_VALUES: Final = 8
_SHOWN_BYTES: Final = 16
_SHOWN_CHARACTERS: Final = 80
_SPACES: Final = "\t\n\r\N{NO-BREAK SPACE}\N{IDEOGRAPHIC SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}"
"""Characters that occur in text although ``str.isprintable`` is False for them; they are shown escaped."""

_NUM_THREADS: Final = 8
_IMAGES: Final = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n\x1a\n": "PNG"}


@final
@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """One file of records.

    Attributes:
        url: the file's URL.
        size_bytes: the file's length in bytes.
        num_records: the counted number of records; if they cannot be counted, the stated number, or 0.
        compression: the compression of the whole file: "GZIP", "ZLIB" or None.
        error: what is wrong with the file; None if its frames are valid and it agrees with its manifest.
        is_other: whether the data set has a manifest that does not list this file.
    """

    url: str
    size_bytes: int
    num_records: int
    compression: str | None = None
    error: LockstepError | None = None
    is_other: bool = False

    def read(self) -> Iterator[bytes]:
        """Reads the file's records in order; see `lockstep.data.read_records` for the errors that it raises."""
        return read_records(self.url) if self.compression is None else read_compressed(self.url)


@final
@dataclass(frozen=True, kw_only=True)
class FoundSet:
    """The files of one split of a data set, or a single file that is not a shard.

    Attributes:
        url: the folder, the data set's name and its split, such as "gs://b/fashion-mnist-train"; the URL of a single
            file that is not a shard.
        files: the files that exist, in the order of their records.
        missing: the shards that the manifest states but that do not exist.
        manifest: the split's manifest; None if there is none that can be read.
        damages: what is wrong with single files, or with the split as a whole.
    """

    url: str
    files: tuple[FoundFile, ...]
    missing: tuple[Shard, ...]
    manifest: Manifest | None
    damages: tuple[Damage, ...]

    @property
    def name(self) -> str:
        """The data set's name and its split, such as "fashion-mnist-train"; or the name of a file that is no shard."""
        return self.url.rpartition("/")[2]

    @property
    def sound_files(self) -> tuple[FoundFile, ...]:
        """The files whose records can be read; if a manifest states any file, only the files that it states."""
        has_stated = self.missing or any(not file.is_other for file in self.files)
        return tuple(file for file in self.files if file.error is None and not (has_stated and file.is_other))

    def first_records(self, limit: int) -> Iterator[dict[str, Any]]:
        """Decodes the first records of the sound files, and verifies their checksums.

        Args:
            limit: the number of records to decode, at most.

        Yields:
            A record's values by feature, with the manifest's dtypes and shapes if there is a manifest.

        Raises:
            CorruptDataError: If a checksum does not match, or a record is not a ``tf.train.Example``.
        """
        for file in self.sound_files:
            if limit <= 0:
                return
            for number, data in enumerate(file.read()):
                if number == limit:
                    return
                yield self._decode(data)
            limit -= file.num_records

    def spread_records(self, limit: int) -> Iterator[dict[str, Any]]:
        """Decodes records at even distances in the sound files, so that data packed class by class shows each class.

        If a file is compressed as a whole, these are the first records instead.

        Args:
            limit: the number of records to decode, at most.

        Yields:
            A record's values by feature, as `first_records` yields them.

        Raises:
            CorruptDataError: If a checksum does not match, or a record is not a ``tf.train.Example``.
        """
        if not self.sound_files or any(file.compression for file in self.sound_files):
            yield from self.first_records(limit)
            return
        source = RecordSource([file.url for file in self.sound_files])
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


@final
@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of `inspect`.

    Attributes:
        sets: the splits and single files that were found, in the order of their URLs.
        notes: remarks of one line each that are not damage: unfinished packing runs, and splits of earlier runs.
    """

    sets: tuple[FoundSet, ...]
    notes: tuple[str, ...]

    @property
    def damages(self) -> tuple[Damage, ...]:
        """Everything that is wrong, in all sets."""
        return tuple(damage for found in self.sets for damage in found.damages)

    @property
    def num_files(self) -> int:
        """The number of files that exist."""
        return sum(len(found.files) for found in self.sets)


def inspect(target: str) -> Inspection:
    """Finds packed files, and counts the records of each.

    Errors do not end it: files that are cut off, damaged, missing, or different from their name or manifest are in
    `Inspection.damages`, and `lockstep.data.finding.raise_damages` raises an error for them. The data of the records is
    only checked in compressed files; `lockstep.data.verify` checks all of it.

    Args:
        target: the URL of a file; a pattern; a bucket or folder, which is searched recursively; or the name of a data
            set's split, ``BUCKET/NAME-train``.

    Raises:
        InvalidInputError: If the target is not usable.
        MissingInputError: If nothing was found.
        StorageError: If the bucket could not be listed.
    """
    packed = find_packed(target)
    jobs = [(found, file) for found in packed.sets for file in found.files]
    with ThreadPoolExecutor(_NUM_THREADS, "lockstep-inspect") as executor:  # a bucket has high latency
        files = list(executor.map(lambda job: _inspect_file(job[1], manifest=job[0].manifest), jobs))
    sets: list[FoundSet] = []
    for found in packed.sets:
        members, files = tuple(files[: len(found.files)]), files[len(found.files) :]
        sets.append(_make_set(found, members))
    return Inspection(sets=tuple(sets), notes=packed.notes)


def _make_set(found: PackedSet, files: tuple[FoundFile, ...]) -> FoundSet:
    damages = [Damage(url=file.url, error=file.error) for file in files if file.error is not None]
    return FoundSet(
        url=found.url,
        files=files,
        missing=found.missing,
        manifest=found.manifest,
        damages=tuple(sorted([*found.damages, *damages], key=lambda damage: damage.url)),
    )


def _inspect_file(file: PackedFile, *, manifest: Manifest | None) -> FoundFile:
    compression: str | None = None
    error: LockstepError | None = None
    num_records = file.num_stated or 0
    try:
        compression = find_compression(file.url)
        if compression is None:
            num_records = len(RecordSource([file.url], held_bytes=0))  # only the records' lengths are needed
        else:
            num_records = sum(1 for _ in read_compressed(file.url))
        if file.stated is not None and (num_records, file.size_bytes) != (
            file.stated.num_records,
            file.stated.size_bytes,
        ):
            assert manifest is not None, "it states the file"
            error = CorruptDataError(
                f"{file.url}: not the file that {manifest.key} states",
                received=f"{num_records} records, {file.size_bytes} bytes",
                allowed=f"{file.stated.num_records} records, {file.stated.size_bytes} bytes",
                action=COPY_AGAIN,
            )
    except LockstepError as found:
        error = found
    return FoundFile(
        url=file.url,
        size_bytes=file.size_bytes,
        num_records=num_records,
        compression=compression,
        error=error,
        is_other=manifest is not None and file.stated is None,
    )


def describe_value(value: Any) -> str:
    """Describes the value of a feature of one record in a line: a small value in full, a large one by shape and range.

    Args:
        value: bytes, an array, a number, or a list of bytes.
    """
    if isinstance(value, list):
        shown = ", ".join(describe_value(item) for item in value[:_SHOWN_VALUES]) or "no value"
        return shown if len(value) <= _SHOWN_VALUES else f"{shown}, ... ({len(value):,} in all)"
    if isinstance(value, bytes):
        return _describe_image(value) or _describe_text(value) or _describe_bytes(value)
    array = np.asarray(value)
    if array.dtype == object:
        return describe_value(array.reshape(-1).tolist())
    if array.size <= _SHOWN_VALUES:
        return str(array.tolist())
    shape = " x ".join(map(str, array.shape))
    return f"{array.dtype}, {shape}, {array.min()} to {array.max()}, mean {array.mean():.4g}"


def _describe_image(data: bytes) -> str | None:
    for magic, codec in _IMAGES.items():
        if data.startswith(magic):
            try:
                height, width = image_size(data)
            except (CorruptDataError, InvalidInputError):  # damaged, or the extra is not installed
                return None
            return f"{codec}, {height} x {width}, {len(data):,} bytes"
    return None


def _describe_text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if not all(character.isprintable() or character in _SPACES for character in text):
        return None
    if len(text) <= _SHOWN_CHARACTERS:
        return f"{text!r}"
    return f"{len(data):,} bytes of text: {text[:_SHOWN_CHARACTERS]!r} ..."


def _describe_bytes(data: bytes) -> str:
    num_bytes = "1 byte" if len(data) == 1 else f"{len(data):,} bytes"
    return f"{num_bytes}: {data[:_SHOWN_BYTES].hex(' ')}{' ...' if len(data) > _SHOWN_BYTES else ''}"
