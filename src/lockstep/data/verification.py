"""Verifies packed files: every checksum of every record, and what the manifests state; several files in parallel."""

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
from lockstep.data.finding import COPY_AGAIN, Damage, PackedFile, find_packed, raise_damages
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, StorageError
from lockstep.storage import open_bucket, split_url

DEFAULT_NUM_THREADS: Final = 8
"""The default number of files read in parallel: google_crc32c releases the GIL, and buckets have high latency."""

MAX_NAMED: Final = 20
"""The number of damaged records that are reported one by one for each file; all of them are counted."""

_CHUNK_BYTES: Final = 1 << 22
_HEADER: Final = struct.Struct("<QI")

Progress = Callable[[int, int], None]
"""Receives the bytes checked since the last call and the total bytes to check; called by one thread at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class FileReport:
    """The result for one file.

    Attributes:
        url: the file's URL.
        num_records: the number of records found in the file, including damaged ones.
        size_bytes: the number of bytes read: the file's length, unless an error ended the reading.
        num_damaged: the number of damaged records.
        num_stated: the number of records that the manifest or the file's name states; None if neither does.
        damages: the first `MAX_NAMED` damaged records, and what is wrong with the file as a whole.
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
    """The result of `verify`.

    Attributes:
        files: the results for the files, in the order of their URLs.
        damages: everything that is wrong, in files and with files that are missing.
        num_with_manifest: the number of files whose checksum a manifest states.
        num_missing_files: the number of files that manifests state but that do not exist.
        num_missing_records: the number of records of the missing files, as their manifests state it.
        notes: remarks of one line each that are not damage: unfinished packing runs, and splits of earlier runs.
        elapsed_s: the duration of the verification, in seconds.
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
        """The number of records that were checked."""
        return sum(file.num_records for file in self.files)

    @property
    def num_stated(self) -> int:
        """The number of records there should be by manifests and names; files without either count as found."""
        return self.num_missing_records + sum(max(file.num_records, file.num_stated or 0) for file in self.files)

    @property
    def num_damaged(self) -> int:
        """The number of damaged records."""
        return sum(file.num_damaged for file in self.files)

    @property
    def size_bytes(self) -> int:
        """The total length of all files, in bytes."""
        return sum(file.size_bytes for file in self.files)

    def raise_damage(self) -> None:
        """Raises an error if anything is wrong: the error itself if there is only one, else one that counts them.

        Raises:
            CorruptDataError: If data is damaged.
            MissingInputError: If no data is damaged, but a file is missing.
            StorageError: If no data is damaged and no file is missing, but a file could not be read.
        """
        raise_damages(self.damages, num_files=len(self.files), num_damaged=self.num_damaged)


def verify(target: str, *, num_threads: int = DEFAULT_NUM_THREADS, progress: Progress | None = None) -> Report:
    """Checks both checksums of every record, and the counts, lengths and checksums that manifests state.

    Checking continues after a damaged file, and after a damaged record within a file. But if a record's length is
    damaged, the rest of that file is skipped, because nothing tells where the next record begins. Files are read in
    chunks of 4 MiB, so that memory does not limit their length.

    Args:
        target: the URL of a file; a pattern; a bucket or folder, which is searched recursively; or the name of a data
            set's split, ``BUCKET/NAME-train``.
        num_threads: the number of files read in parallel.
        progress: called after each chunk.

    Returns:
        The report; `Report.raise_damage` raises an error for it if anything is wrong.

    Raises:
        InvalidInputError: If the target is not usable, or ``num_threads`` is below 1.
        MissingInputError: If nothing was found.
        StorageError: If the bucket could not be listed.
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
            meter.stop()  # so that an interrupt need not wait for whole files
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
    """Reports the progress of several threads, and stops them."""

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
    checker = _RecordChecker(file.url, num_stated=file.num_stated)
    reader: _ChecksummedReader | None = None
    try:
        bucket_url, key = split_url(file.url)
        with open_bucket(bucket_url).open(key) as opened:
            reader = _ChecksummedReader(opened, meter=meter)
            compression = compression_of(reader.peek(HEAD_BYTES))
            unpacking = None if compression is None else Unpacking(reader, compression=compression)
            while part := reader.read(_CHUNK_BYTES) if unpacking is None else unpacking.read(_CHUNK_BYTES):
                checker.feed(part)
            if unpacking is not None and unpacking.failure is not None:
                while reader.read(_CHUNK_BYTES):  # so that the length and checksum are of the whole file
                    pass
                raise CorruptDataError(f"{file.url}: {unpacking.failure}", action=COPY_AGAIN)
            checker.finish()
    except LockstepError as error:
        checker.damages.append(Damage(url=file.url, error=error))
    except OSError as error:  # such as a read error of the disk
        num_read = 0 if reader is None else reader.size_bytes
        failure = StorageError(f"cannot read {file.url} after byte {num_read}: {error.strerror or error}")
        checker.damages.append(Damage(url=file.url, error=failure))
    size_bytes, crc = (0, 0) if reader is None else (reader.size_bytes, reader.crc)
    if not checker.damages:
        wrong = _find_difference(file, num_records=checker.num_records, size_bytes=size_bytes, crc=crc)
        if wrong is not None:
            checker.damages.append(Damage(url=file.url, error=wrong))
    return FileReport(
        url=file.url,
        num_records=checker.num_records,
        size_bytes=size_bytes,
        num_damaged=checker.num_damaged,
        num_stated=file.num_stated,
        damages=tuple(checker.damages),
    )


def _find_difference(file: PackedFile, *, num_records: int, size_bytes: int, crc: int) -> CorruptDataError | None:
    """Compares a file without damaged records with what its name and its manifest state."""
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
                f"{file.url}: the file differs from what {where}",
                received=f"{what}: {found}",
                allowed=f"{wanted}",
                action=COPY_AGAIN,
            )
    return None


@final
class _ChecksummedReader:
    """A file that is read once, with the length and the CRC-32C of what has been read so far.

    Args:
        file: the file, positioned at its beginning.
        meter: the meter that receives the length of each chunk.
    """

    def __init__(self, file: BinaryIO, *, meter: _Meter) -> None:
        self._file = file
        self._meter = meter
        self._peeked = b""
        self.size_bytes = 0
        self.crc = 0

    def peek(self, num_bytes: int) -> bytes:
        """Returns the first bytes without consuming them; fewer if the file is shorter."""
        self._peeked = read_fully(self._file, num_bytes)
        return self._peeked

    def read(self, num_bytes: int, /) -> bytes:
        """Returns up to this many bytes; none at the end. The first call after `peek` returns what that saw."""
        chunk, self._peeked = (self._peeked, b"") if self._peeked else (self._file.read(num_bytes), b"")
        self.size_bytes += len(chunk)
        self.crc = google_crc32c.extend(self.crc, chunk)
        if chunk:
            self._meter.add(len(chunk))
        return chunk


@final
class _RecordChecker:
    """Checks the records of a file that arrives in chunks, and keeps less than a chunk of it in memory.

    Args:
        url: the file's URL, for errors.
        num_stated: the number of records that the file should have; None if that is not known.
    """

    def __init__(self, url: str, *, num_stated: int | None) -> None:
        self._url = url
        self._num_stated = num_stated
        self._rest = b""
        self._start = 0  # the offset of `_rest` in the file
        self._has_lost_framing = False
        self._long_record: _LongRecord | None = None
        self.num_records = 0
        self.num_damaged = 0
        self.damages: list[Damage] = []

    def feed(self, data: bytes) -> None:
        """Checks the records that end within the next bytes of the file."""
        if self._has_lost_framing:
            return
        if self._long_record is not None:
            data = self._feed_long_record(self._long_record, data)
            if self._long_record is not None:
                return
        elif self._rest:
            data = self._rest + data
        position, length = 0, len(data)
        while length - position >= HEADER_BYTES:
            header = data[position : position + HEADER_BYTES]
            num_bytes, stated = _HEADER.unpack(header)
            if masked_crc32c(header[:8]) != stated:
                self._has_lost_framing = True
                reason = "the checksum of its length does not match; the rest of the file is skipped"
                self._add(self._start + position, f"{reason}{self._rest_in_words()}")
                self.num_records += 1
                return
            body = position + HEADER_BYTES
            end = body + num_bytes
            if end + FOOTER_BYTES > length:
                if num_bytes > _CHUNK_BYTES:
                    self._long_record = _LongRecord(offset=self._start + position, num_bytes=num_bytes)
                    self._start += body
                    self._rest = b""
                    self._feed_long_record(self._long_record, data[body:])
                    return
                break
            if masked_crc32c(data[body:end]) != int.from_bytes(data[end : end + FOOTER_BYTES], "little"):
                self._add(self._start + position, "the checksum of its data does not match")
            self.num_records += 1
            position = end + FOOTER_BYTES
        self._rest = data[position:]
        self._start += position

    def finish(self) -> None:
        """Reports a record whose end is missing; to be called at the end of the file."""
        if self._has_lost_framing:
            return
        if self._long_record is not None or self._rest:
            offset = self._start if self._long_record is None else self._long_record.offset
            self._add(offset, f"the file ends within this record{self._rest_in_words()}")
            self.num_records += 1

    def _feed_long_record(self, record: _LongRecord, data: bytes) -> bytes:
        """Checks the next bytes of a record that is longer than a chunk; returns the bytes after the record."""
        rest = record.feed(data)
        self._start += len(data) - len(rest)
        if record.is_whole:
            if not record.is_sound:
                self._add(record.offset, "the checksum of its data does not match")
            self.num_records += 1
            self._long_record = None
        return rest

    def _rest_in_words(self) -> str:
        """Describes how many more records should follow the current one; "" if none, or if that is not known."""
        num_behind = 0 if self._num_stated is None else self._num_stated - self.num_records - 1
        return f"; {num_behind:,} more of {self._num_stated:,} stated records should follow" if num_behind > 0 else ""

    def _add(self, offset: int, reason: str) -> None:
        self.num_damaged += 1
        if self.num_damaged <= MAX_NAMED:
            number = self.num_records
            error = CorruptDataError(f"{self._url}: record {number} at byte {offset}: {reason}", action=COPY_AGAIN)
            self.damages.append(Damage(url=self._url, error=error, record=number, offset=offset))


@final
class _LongRecord:
    """The data and the footer of a record longer than a chunk; only the checksum is kept in memory."""

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
