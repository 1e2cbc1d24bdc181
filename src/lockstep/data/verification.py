"""Checking packed files: every checksum of every record, and what the manifests state, of all files at once."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import BinaryIO, Final, final

import google_crc32c

from lockstep.data.files.compression import HEAD_BYTES, Unpacking, compression_of
from lockstep.data.files.framing import FOOTER_BYTES, HEADER_BYTES, masked_crc32c, read_fully
from lockstep.data.files.record_index import SUFFIX as INDEX_SUFFIX
from lockstep.data.files.shards import ShardName, check_complete
from lockstep.data.inspection import PACKED, is_pattern
from lockstep.data.packing.manifest import SUFFIX as MANIFEST_SUFFIX
from lockstep.data.packing.manifest import Manifest, Shard
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, MissingInputError, StorageError
from lockstep.storage import glob_urls, join_url, open_bucket, read_url, split_url

DEFAULT_NUM_THREADS: Final = 8
"""How many files are read at once: google_crc32c lets other threads run, and buckets answer slowly, many at a time."""

MAX_NAMED: Final = 20
"""How many damaged records of one file are named; all are counted."""

_CHUNK_BYTES: Final = 1 << 22
_HEADER: Final = struct.Struct("<QI")
_COPY_AGAIN: Final = "copy the file again from its source, or pack it again"

Progress = Callable[[int, int], None]
"""Takes how many bytes were checked since the last call, and how many there are; called by one thread at a time."""


@final
@dataclass(frozen=True, kw_only=True)
class Damage:
    """One thing that is wrong.

    Attributes:
        url: the file.
        error: what is wrong with it, in a line that names the file.
        record: the number of the damaged record in its file, from 0; None where it is no single one.
        offset: where it begins in the file, or in what the file unpacks to, in bytes.
    """

    url: str
    error: LockstepError
    record: int | None = None
    offset: int | None = None


@final
@dataclass(frozen=True, kw_only=True)
class FileReport:
    """What one file has.

    Attributes:
        url: where it is.
        num_records: how many records were found in it, damaged ones included.
        size_bytes: how long it is.
        num_damaged: how many of its records are damaged.
        damages: what is wrong with it: the first `MAX_NAMED` damaged records, and what is wrong with the whole.
    """

    url: str
    num_records: int
    size_bytes: int
    num_damaged: int
    damages: tuple[Damage, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """What was checked, and what was found.

    Attributes:
        files: in the order of their URLs.
        damages: all that is wrong: of each file, and of what should be there and is not.
        num_with_manifest: how many of the files a manifest states the checksum of.
        elapsed_s: how long it took.
    """

    files: tuple[FileReport, ...]
    damages: tuple[Damage, ...]
    num_with_manifest: int
    elapsed_s: float

    @property
    def num_records(self) -> int:
        """How many records were checked."""
        return sum(file.num_records for file in self.files)

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
        if not self.damages:
            return
        errors = [damage.error for damage in self.damages]
        for kind in (CorruptDataError, MissingInputError):
            worst = [error for error in errors if isinstance(error, kind)]
            if worst:
                break
        else:
            worst = errors
        if len(errors) == 1 and self.num_damaged <= 1:
            raise errors[0]
        num_urls = len({damage.url for damage in self.damages})
        files = "1 file is not as it should be" if num_urls == 1 else f"{num_urls} files are not as they should be"
        damaged = f"; {self.num_damaged:,} records are damaged" if self.num_damaged > 1 else ""
        raise type(worst[0])(f"{files}, {len(self.files)} were checked{damaged}")


def verify(target: str, *, num_threads: int = DEFAULT_NUM_THREADS, progress: Progress | None = None) -> Report:
    """Checks packed files: both checksums of every record, and counts, lengths and checksums that manifests state.

    It goes on after a damaged file, and after a damaged record within one; behind a damaged length nobody knows where
    the next record begins. Files are read in pieces of a few MiB, so that their length does not matter.

    Args:
        target: a file's URL, a pattern, or a bucket, in which files are looked for at every depth.
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
    found = _find(target)
    meter = _Meter(total_bytes=sum(file.size_bytes for file in found.files), report=progress)
    with ThreadPoolExecutor(min(num_threads, max(1, len(found.files))), "lockstep-verify") as executor:
        try:
            reports = tuple(executor.map(lambda file: _check_file(file, meter=meter), found.files))
        except BaseException:
            meter.stop()  # an interrupt need not wait for whole files
            raise
    damages = [damage for report in reports for damage in report.damages]
    return Report(
        files=reports,
        damages=tuple(sorted([*found.damages, *damages], key=lambda damage: damage.url)),
        num_with_manifest=sum(file.stated is not None for file in found.files),
        elapsed_s=time.monotonic() - start_s,
    )


@final
@dataclass(frozen=True, kw_only=True)
class _File:
    """A file to check, and what its manifest states of it."""

    url: str
    size_bytes: int
    stated: Shard | None = None


@final
@dataclass(kw_only=True)
class _Found:
    files: list[_File] = field(default_factory=list[_File])
    damages: list[Damage] = field(default_factory=list[Damage])

    def add_damage(self, url: str, error: LockstepError) -> None:
        self.damages.append(Damage(url=url, error=error))


def _find(target: str) -> _Found:
    """Finds the files, and what should be there and is not."""
    sizes, manifest_urls, is_one_file = _find_urls(target)
    found = _Found()
    members: dict[str, list[str]] = {}
    for url in sizes:
        folder, separator, file = url.rpartition("/")
        name = ShardName.parse(file)
        members.setdefault(folder + separator + (file if name is None else name.data_set), []).append(url)
    for url in manifest_urls:
        members.setdefault(url.removesuffix(MANIFEST_SUFFIX), [])
    for name, urls in sorted(members.items()):
        manifest = _read_manifest(name + MANIFEST_SUFFIX, found)
        stated = {} if manifest is None else {shard.file: shard for shard in manifest.shards}
        for url in urls:
            file = url.rsplit("/", 1)[-1]
            if stated and file not in stated:
                found.add_damage(url, CorruptDataError(f"{url}: no file that its manifest states", action=_COPY_AGAIN))
            found.files.append(_File(url=url, size_bytes=sizes[url], stated=stated.get(file)))
        if is_one_file:  # its neighbours were not asked for
            continue
        folder = name.rpartition("/")[0]
        present = {url.rsplit("/", 1)[-1] for url in urls}
        for file in stated.keys() - present:
            url = join_url(folder, file) if folder else file
            found.add_damage(url, MissingInputError(f"{url}: the manifest states it, and it is not there"))
        if not stated:
            try:
                check_complete(urls, what=name)
            except (MissingInputError, CorruptDataError) as error:
                found.add_damage(name, error)
    return found


def _find_urls(target: str) -> tuple[dict[str, int], list[str], bool]:
    """Returns the files' lengths by URL, the manifests of a bucket, and whether the target is a single file."""
    is_one_file = not is_pattern(target) and PACKED.fullmatch(target) is not None and bool(glob_urls(target))
    manifests: list[str] = []
    sizes: dict[str, int] = {}
    if is_one_file or is_pattern(target):
        for url in glob_urls(target):
            if not url.endswith((MANIFEST_SUFFIX, INDEX_SUFFIX)):
                bucket_url, key = split_url(url)
                sizes[url] = open_bucket(bucket_url).size_bytes(key)
    else:
        items = open_bucket(target).list()
        sizes = {join_url(target, item.key): item.size_bytes for item in items if PACKED.fullmatch(item.key)}
        manifests = [join_url(target, item.key) for item in items if item.key.endswith(MANIFEST_SUFFIX)]
    if not sizes and not manifests:
        raise MissingInputError(f"no packed file is at {target}", allowed="a file's URL, a pattern, or a bucket")
    return sizes, manifests, is_one_file


def _read_manifest(url: str, found: _Found) -> Manifest | None:
    try:
        return Manifest.from_json(read_url(url), url=url)
    except MissingInputError:
        return None
    except LockstepError as error:
        found.add_damage(url, error)
        return None


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


def _check_file(file: _File, *, meter: _Meter) -> FileReport:
    walk = _Walk(file.url)
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
                raise CorruptDataError(f"{file.url}: {unpacking.failure}", action=_COPY_AGAIN)
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
        damages=tuple(walk.damages),
    )


def _find_difference(file: _File, *, num_records: int, size_bytes: int, crc: int) -> CorruptDataError | None:
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
                action=_COPY_AGAIN,
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
    """

    def __init__(self, url: str) -> None:
        self._url = url
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
                self._add(self._start + position, "the checksum of its length does not match; what follows is not read")
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
            self._add(offset, "the file is cut off within it")
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

    def _add(self, offset: int, reason: str) -> None:
        self.num_damaged += 1
        if self.num_damaged <= MAX_NAMED:
            number = self.num_records
            error = CorruptDataError(f"{self._url}: record {number} at byte {offset}: {reason}", action=_COPY_AGAIN)
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
