"""Checking packed files: every checksum of every record, and what the manifests state, of all files at once."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO, Final, final

import google_crc32c

from lockstep.data.files.compression import HEAD_BYTES, Unpacking, compression_of
from lockstep.data.files.framing import FOOTER_BYTES, HEADER_BYTES, masked_crc32c, read_fully
from lockstep.data.files.shards import ShardName
from lockstep.data.finding import COPY_AGAIN, Damage, PackedFile, find_packed, raise_worst
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, StorageError
from lockstep.storage import open_bucket, split_url

DEFAULT_NUM_THREADS: Final = 8
"""How many files are read at once: google_crc32c lets other threads run, and buckets answer slowly, many at a time."""

MAX_NAMED: Final = 20
"""How many damaged records of one file are named; all are counted."""

_CHUNK_BYTES: Final = 1 << 22
_HEADER: Final = struct.Struct("<QI")

Progress = Callable[[int, int], None]
"""Takes how many bytes were checked since the last call, and how many there are; called by one thread at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class FileReport:
    """What one file has.

    Attributes:
        url: where it is.
        num_records: how many records were found in it, damaged ones included.
        size_bytes: how long it is.
        num_damaged: how many of its records are damaged.
        num_stated: how many records its manifest or its name states; None where nothing does.
        damages: what is wrong with it: the first `MAX_NAMED` damaged records, and what is wrong with the whole.
    """

    url: str
    num_records: int
    size_bytes: int
    num_damaged: int
    num_stated: int | None
    damages: tuple[Damage, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """What was checked, and what was found.

    Attributes:
        files: in the order of their URLs.
        damages: all that is wrong: of each file, and of what should be there and is not.
        num_with_manifest: how many of the files a manifest states the checksum of.
        num_missing_files: how many files manifests state that are not there.
        num_missing_records: how many records they would have.
        notes: in a line each, what is not damage and worth knowing: packings that have not ended, earlier ones.
        elapsed_s: how long it took.
    """

    files: tuple[FileReport, ...]
    damages: tuple[Damage, ...]
    num_with_manifest: int
    num_missing_files: int
    num_missing_records: int
    notes: tuple[str, ...]
    elapsed_s: float

    @property
    def num_records(self) -> int:
        """How many records were checked."""
        return sum(file.num_records for file in self.files)

    @property
    def num_stated(self) -> int:
        """How many records there should be, as far as manifests and names state it; else those that were found."""
        return self.num_missing_records + sum(max(file.num_records, file.num_stated or 0) for file in self.files)

    @property
    def num_damaged(self) -> int:
        """How many of them are damaged."""
        return sum(file.num_damaged for file in self.files)

    @property
    def size_bytes(self) -> int:
        """How long all files are together."""
        return sum(file.size_bytes for file in self.files)

    def raise_damage(self) -> None:
        """Raises what is wrong, if anything is: the error itself where there is one, else a count of the class of one.

        Raises:
            CorruptDataError: data is damaged.
            MissingInputError: none is, but a file is missing.
            StorageError: neither, but a file could not be read.
        """
        raise_worst(self.damages, num_files=len(self.files), num_damaged=self.num_damaged)


def verify(target: str, *, num_threads: int = DEFAULT_NUM_THREADS, progress: Progress | None = None) -> Report:
    """Checks packed files: both checksums of every record, and counts, lengths and checksums that manifests state.

    It goes on after a damaged file, and after a damaged record within one; behind a damaged length nobody knows where
    the next record begins. Files are read in pieces of a few MiB, so that their length does not matter.

    Args:
        target: a file's URL; a pattern; a bucket or folder, in which files are looked for at every depth; or the name
            of a data set's split, ``BUCKET/NAME-train``.
        num_threads: how many files are read at once.
        progress: is told of each piece.

    Returns:
        What was found; `Report.raise_damage` makes an error of it.

    Raises:
        InvalidInputError: the target is not usable.
        MissingInputError: nothing was found.
        StorageError: the bucket could not be listed.
    """
    if num_threads < 1:
        raise InvalidInputError("num_threads", received=num_threads, allowed="1 or more")
    start_s = time.monotonic()
    found = find_packed(target)
    files = [file for of in found.sets for file in of.files]
    missing = [shard for of in found.sets for shard in of.missing]
    meter = _Meter(total_bytes=sum(file.size_bytes for file in files), report=progress)
    with ThreadPoolExecutor(min(num_threads, max(1, len(files))), "lockstep-verify") as executor:
        try:
            reports = tuple(executor.map(lambda file: _check_file(file, meter=meter), files))
        except BaseException:
            meter.stop()  # an interrupt need not wait for whole files
            raise
    damages = [damage for checked in (*found.sets, *reports) for damage in checked.damages]
    return Report(
        files=reports,
        damages=tuple(sorted(damages, key=lambda damage: damage.url)),
        num_with_manifest=sum(file.stated is not None for file in files),
        num_missing_files=len(missing),
        num_missing_records=sum(shard.num_records for shard in missing),
        notes=found.notes,
        elapsed_s=time.monotonic() - start_s,
    )


@final
class _Meter:
    """Tells what several threads have read, and ends them."""

    def __init__(self, *, total_bytes: int, report: Progress | None) -> None:
        self._total_bytes = total_bytes
        self._report = report
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        self._is_stopped.set()

    def add(self, num_bytes: int) -> None:
        if self._is_stopped.is_set():
            raise CancelledError
        if self._report is not None:
            with self._lock:
                self._report(num_bytes, self._total_bytes)


def _check_file(file: PackedFile, *, meter: _Meter) -> FileReport:
    walk = _Walk(file.url, num_stated=file.num_stated)
    passing: _Passing | None = None
    try:
        bucket_url, key = split_url(file.url)
        with open_bucket(bucket_url).open(key) as opened:
            passing = _Passing(opened, meter=meter)
            compression = compression_of(passing.look_ahead(HEAD_BYTES))
            unpacking = None if compression is None else Unpacking(passing, compression=compression)
            while part := passing.read(_CHUNK_BYTES) if unpacking is None else unpacking.read(_CHUNK_BYTES):
                walk.feed(part)
            if unpacking is not None and unpacking.failure is not None:
                while passing.read(_CHUNK_BYTES):  # its length and its checksum tell more
                    pass
                raise CorruptDataError(f"{file.url}: {unpacking.failure}", action=COPY_AGAIN)
            walk.finish()
    except LockstepError as error:
        walk.damages.append(Damage(url=file.url, error=error))
    except OSError as error:  # a disk that cannot read any more
        num_read = 0 if passing is None else passing.size_bytes
        failure = StorageError(f"cannot read {file.url} behind byte {num_read}: {error.strerror or error}")
        walk.damages.append(Damage(url=file.url, error=failure))
    size_bytes, crc = (0, 0) if passing is None else (passing.size_bytes, passing.crc)
    if not walk.damages:
        wrong = _find_difference(file, num_records=walk.num_records, size_bytes=size_bytes, crc=crc)
        if wrong is not None:
            walk.damages.append(Damage(url=file.url, error=wrong))
    return FileReport(
        url=file.url,
        num_records=walk.num_records,
        size_bytes=size_bytes,
        num_damaged=walk.num_damaged,
        num_stated=file.num_stated,
        damages=tuple(walk.damages),
    )


def _find_difference(file: PackedFile, *, num_records: int, size_bytes: int, crc: int) -> CorruptDataError | None:
    """Compares a file whose records are sound with what its name and its manifest state."""
    name = ShardName.parse(file.url)
    comparisons: list[tuple[str, object, object, str]] = []
    if name is not None and name.num_records is not None:
        comparisons.append(("records", num_records, name.num_records, "its name states"))
    if file.stated is not None:
        where = "the manifest states"
        comparisons.append(("records", num_records, file.stated.num_records, where))
        comparisons.append(("bytes", size_bytes, file.stated.size_bytes, where))
        comparisons.append(("CRC-32C", f"{crc:08x}", file.stated.crc32c, where))
    for what, found, wanted, where in comparisons:
        if found != wanted:
            return CorruptDataError(
                f"{file.url}: another file than {where}",
                received=f"{what}: {found}",
                allowed=f"{wanted}",
                action=COPY_AGAIN,
            )
    return None


@final
class _Passing:
    """A file as it is read: its length and checksum up to there.

    Args:
        file: the file, at its beginning.
        meter: is told of each piece.
    """

    def __init__(self, file: BinaryIO, *, meter: _Meter) -> None:
        self._file = file
        self._meter = meter
        self._ahead = b""
        self.size_bytes = 0
        self.crc = 0

    def look_ahead(self, num_bytes: int) -> bytes:
        """Returns the first bytes, which are read all the same; fewer of a shorter file."""
        self._ahead = read_fully(self._file, num_bytes)
        return self._ahead

    def read(self, num_bytes: int, /) -> bytes:
        """Returns so many bytes, or fewer; none at the end."""
        chunk, self._ahead = (self._ahead, b"") if self._ahead else (self._file.read(num_bytes), b"")
        self.size_bytes += len(chunk)
        self.crc = google_crc32c.extend(self.crc, chunk)
        if chunk:
            self._meter.add(len(chunk))
        return chunk


@final
class _Walk:
    """Goes from record to record through pieces of a file, and keeps less than a piece of it.

    Args:
        url: the file, for errors.
        num_stated: how many records it should have, where that is known.
    """

    def __init__(self, url: str, *, num_stated: int | None) -> None:
        self._url = url
        self._num_stated = num_stated
        self._rest = b""
        self._start = 0  # where the rest begins in the file
        self._is_lost = False
        self._body: _Body | None = None
        self.num_records = 0
        self.num_damaged = 0
        self.damages: list[Damage] = []

    def feed(self, data: bytes) -> None:
        """Checks the records that end in the next bytes."""
        if self._is_lost:
            return
        if self._body is not None:
            data = self._feed_body(self._body, data)
            if self._body is not None:
                return
        elif self._rest:
            data = self._rest + data
        position, length = 0, len(data)
        while length - position >= HEADER_BYTES:
            header = data[position : position + HEADER_BYTES]
            num_bytes, stated = _HEADER.unpack(header)
            if masked_crc32c(header[:8]) != stated:
                self._is_lost = True
                reason = f"the checksum of its length does not match; what follows is not read{self._rest_in_words()}"
                self._add(self._start + position, reason)
                self.num_records += 1
                return
            body = position + HEADER_BYTES
            end = body + num_bytes
            if end + FOOTER_BYTES > length:
                if num_bytes > _CHUNK_BYTES:
                    self._body = _Body(offset=self._start + position, num_bytes=num_bytes)
                    self._start += body
                    self._rest = b""
                    self._feed_body(self._body, data[body:])
                    return
                break
            if masked_crc32c(data[body:end]) != int.from_bytes(data[end : end + FOOTER_BYTES], "little"):
                self._add(self._start + position, "the checksum of its data does not match")
            self.num_records += 1
            position = end + FOOTER_BYTES
        self._rest = data[position:]
        self._start += position

    def finish(self) -> None:
        """Says where the end of a record is missing."""
        if self._is_lost:
            return
        if self._body is not None or self._rest:
            offset = self._start if self._body is None else self._body.offset
            self._add(offset, f"the file is cut off within it{self._rest_in_words()}")
            self.num_records += 1

    def _feed_body(self, body: _Body, data: bytes) -> bytes:
        """Checks a record that is longer than a piece; returns what is behind it."""
        rest = body.feed(data)
        self._start += len(data) - len(rest)
        if body.is_whole:
            if not body.is_sound:
                self._add(body.offset, "the checksum of its data does not match")
            self.num_records += 1
            self._body = None
        return rest

    def _rest_in_words(self) -> str:
        """Says how many records are stated to be behind the one that is gone through."""
        num_behind = 0 if self._num_stated is None else self._num_stated - self.num_records - 1
        return f"; {num_behind:,} more of {self._num_stated:,} stated records should follow" if num_behind > 0 else ""

    def _add(self, offset: int, reason: str) -> None:
        self.num_damaged += 1
        if self.num_damaged <= MAX_NAMED:
            number = self.num_records
            error = CorruptDataError(f"{self._url}: record {number} at byte {offset}: {reason}", action=COPY_AGAIN)
            self.damages.append(Damage(url=self._url, error=error, record=number, offset=offset))


@final
class _Body:
    """The data of a long record and its checksum, of which only the checksum is kept."""

    def __init__(self, *, offset: int, num_bytes: int) -> None:
        self.offset = offset
        self._missing = num_bytes
        self._crc = 0
        self._footer = b""

    @property
    def is_whole(self) -> bool:
        return not self._missing and len(self._footer) == FOOTER_BYTES

    @property
    def is_sound(self) -> bool:
        masked = (((self._crc >> 15) | (self._crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        return masked == int.from_bytes(self._footer, "little")

    def feed(self, data: bytes) -> bytes:
        taken = data[: self._missing]
        self._crc = google_crc32c.extend(self._crc, taken)
        self._missing -= len(taken)
        rest = data[len(taken) :]
        if self._missing:
            return rest
        needed = FOOTER_BYTES - len(self._footer)
        self._footer += rest[:needed]
        return rest[needed:]
