"""A source of NumPy files: an ``.npy`` array whose rows are the records, or ``.npz`` arrays of equally many rows."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, final

import numpy as np

from lockstep.data.examples.features import AbstractFeature, FixedLenFeature, RawFeature
from lockstep.data.sources.base import AbstractPart, AbstractSource, Item, digest_of
from lockstep.data.sources.containers import check_entry
from lockstep.data.sources.tables import changed_time_s, file_state
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.storage import open_bucket, split_url

ONE_ARRAY: Final = "value"
"""The name of the feature for the array of an ``.npy`` file."""

_READ_BYTES: Final = 1 << 22
_MAX_ROW_BYTES: Final = 1 << 28
_MAX_DIMS: Final = 32
_MAX_HEAD_BYTES: Final = 1 << 16
_SHOWN_CHARACTERS: Final = 200
_LENGTH_BYTES: Final = {(1, 0): 2, (2, 0): 4}


@final
@dataclass(frozen=True, kw_only=True)
class ArrayHeader:
    """The header of an ``.npy`` file.

    Attributes:
        shape: the shape of the whole array.
        dtype: the dtype of its elements.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """The length of one row in bytes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def feature(self) -> AbstractFeature:
        """The feature for a row.

        Rows of several numbers are stored as their raw bytes, single numbers as int64 or float32, text as bytes.
        """
        row = self.shape[1:]
        if self.dtype.kind in "SU":
            return FixedLenFeature(row, bytes)
        if row:
            return RawFeature(row, self.dtype.newbyteorder("="))
        return FixedLenFeature((), np.float32 if self.dtype.kind == "f" else np.int64)


@final
@dataclass(frozen=True, kw_only=True)
class _Array:
    """The open file of an array, positioned at the beginning of its header, and its length."""

    file: BinaryIO
    size_bytes: int


@final
class ArrayPart(AbstractPart):
    """The rows of the arrays. They are read a few megabytes at a time, also from compressed files.

    Args:
        url: the URL of the file.

    Raises:
        CorruptDataError: the file is not a valid ``.npy`` or ``.npz`` file.
        InvalidInputError: an array has an unsupported dtype (such as Python objects), is in Fortran order, has rows
            that are empty or too long, or has another number of rows than the other arrays.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        with ExitStack() as stack:
            self._headers = {name: _read_header(array, url, name) for name, array in _open_arrays(url, stack).items()}
        counts = {header.shape[0] for header in self._headers.values()}
        if len(counts) > 1:
            raise InvalidInputError(
                f"the arrays of {url} differ in their number of rows",
                received={name: header.shape for name, header in self._headers.items()},
                allowed="one first dimension",
            )
        self._num_items = counts.pop() if counts else 0

    @property
    def features(self) -> Mapping[str, AbstractFeature]:
        """The features of the arrays, by name; for an ``.npy`` file, the name is `ONE_ARRAY`."""
        return {name: header.feature for name, header in self._headers.items()}

    @property
    def num_items(self) -> int:
        """See the base class."""
        return self._num_items

    @property
    def size_bytes(self) -> int:
        """See the base class."""
        return sum(header.row_bytes for header in self._headers.values()) * self._num_items

    @property
    def has_any_order(self) -> bool:
        """False: rows are read in order."""
        return False

    def keys(self) -> Iterator[str]:
        """Returns the numbers of the rows as keys."""
        return map(str, range(self._num_items))

    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """See the base class."""
        assert numbers is None, "rows have one order"
        with ExitStack() as stack:
            rows = []
            for name, array in _open_arrays(self._url, stack).items():
                header = _read_header(array, self._url, name)
                if header != self._headers[name]:
                    raise CorruptDataError(f"{self._url}: {name} has changed since it was opened")
                rows.append(_rows(array.file, header, f"{self._url}: {name}"))
            for number, row in enumerate(zip(*rows, strict=True)):
                yield Item(number=number, key=str(number), value=row)

    def load(self, item: Item) -> Mapping[str, Any]:
        """Returns the item's row of each array."""
        return dict(zip(self._headers, item.value, strict=True))


@final
class ArrayFile(AbstractSource):
    """The data set of a NumPy file.

    Args:
        url: the URL of the file.
        name: the name of the data set.

    Raises:
        CorruptDataError: the file is not a valid ``.npy`` or ``.npz`` file.
        InvalidInputError: an array cannot be packed.
    """

    def __init__(self, url: str, *, name: str) -> None:
        self._url = url
        self._name = name
        self._part = ArrayPart(url)

    @property
    def name(self) -> str:
        """See the base class."""
        return self._name

    @property
    def origin(self) -> str:
        """See the base class."""
        return self._url

    @property
    def classes(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def features(self) -> Mapping[str, AbstractFeature]:
        """The features of the arrays, by name."""
        return self._part.features

    @property
    def options(self) -> Mapping[str, Any]:
        """None."""
        return {}

    @property
    def is_sorted(self) -> bool:
        """False: rows stay in their order."""
        return False

    @property
    def notices(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def changed_time_s(self) -> float:
        """See the base class."""
        return changed_time_s([self._url])

    def fingerprint(self) -> str:
        """Returns a digest of the file's URL, length and modification time."""
        return digest_of(file_state(self._url))

    def splits(self) -> Mapping[str, ArrayPart]:
        """See the base class."""
        return {"train": self._part}


def _open_arrays(url: str, stack: ExitStack) -> dict[str, _Array]:
    """Opens each array of a file, positioned at the beginning of its header."""
    bucket_url, key = split_url(url)
    bucket = open_bucket(bucket_url)
    if key.lower().endswith(".npy"):
        return {ONE_ARRAY: _Array(file=stack.enter_context(bucket.open(key)), size_bytes=bucket.size_bytes(key))}
    try:
        archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(bucket.open(key))))
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        if not names or len(set(names)) != len(names) or not all(name.endswith(".npy") for name in names):
            raise CorruptDataError("not an .npz file", received=names[:8], allowed="arrays, each once")
        for entry in entries:
            check_entry(entry)
        # Each array has its own handle of the archive, so that the arrays can be read alternately.
        return {
            entry.filename.removesuffix(".npy"): _Array(
                file=_as_binary(stack.enter_context(archive.open(entry))), size_bytes=entry.file_size
            )
            for entry in entries
        }
    except CorruptDataError as error:
        raise CorruptDataError(f"{url}: {error}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise CorruptDataError(f"{url}: not an .npz file that can be read ({error})") from None


def _as_binary(file: Any) -> BinaryIO:
    return file


def _read_header(array: _Array, url: str, name: str) -> ArrayHeader:
    where = f"{url}: {name}"
    file = array.file
    try:
        version = np.lib.format.read_magic(file)
        width = _LENGTH_BYTES.get(version)
        if width is None:
            raise InvalidInputError(f"{where}: an array with named fields", action="save its fields as arrays")
        stated = file.read(width)
        num_bytes = int.from_bytes(stated, "little")
        if num_bytes > _MAX_HEAD_BYTES:
            raise ValueError(f"its head has {num_bytes:,} bytes")
        head = io.BytesIO(stated + file.read(num_bytes))
        read = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
        found: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(head)
    except InvalidInputError:
        raise
    except Exception as error:  # a header is parsed as Python syntax, which fails in many ways
        reason = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
        raise CorruptDataError(f"{where}: not an array that can be read ({reason or type(error).__name__})") from None
    shape, is_fortran, dtype = found
    if dtype.kind not in "biufSU" or dtype.itemsize == 0:
        raise InvalidInputError(
            f"{where}: an array of this type cannot be packed",
            received=str(dtype),
            allowed="numbers, truth values, text",
        )
    if not shape or len(shape) > _MAX_DIMS or min(shape) < 0:
        raise InvalidInputError(
            f"{where}: invalid shape: its first dimension must be the number of records", received=shape
        )
    if is_fortran and len(shape) > 1:
        raise InvalidInputError(
            f"{where}: saved in Fortran order", action="save numpy.ascontiguousarray(array) in its place"
        )
    header = ArrayHeader(shape=shape, dtype=dtype)
    if not 0 < header.row_bytes <= _MAX_ROW_BYTES:
        raise InvalidInputError(
            f"{where}: the length of one record", received=header.row_bytes, allowed=f"1 to {_MAX_ROW_BYTES:,} bytes"
        )
    # Checked here, because planning relies on the header's number of rows before any row is read.
    num_there = array.size_bytes - file.tell()
    if (num_needed := header.row_bytes * header.shape[0]) > num_there:
        raise CorruptDataError(f"{where}: it is cut off", received=f"{num_there} of {num_needed} bytes")
    return header


def _rows(file: BinaryIO, header: ArrayHeader, where: str) -> Iterator[Any]:
    rows_at_once = max(1, _READ_BYTES // header.row_bytes)
    for start in range(0, header.shape[0], rows_at_once):
        num_rows = min(rows_at_once, header.shape[0] - start)
        data = _read_fully(file, num_rows * header.row_bytes, where)
        rows = np.frombuffer(data, header.dtype).reshape(num_rows, *header.shape[1:])
        yield from rows.astype(header.dtype.newbyteorder("="), copy=False)


def _read_fully(file: BinaryIO, num_bytes: int, where: str) -> bytes:
    parts: list[bytes] = []
    missing = num_bytes
    try:
        while missing and (part := file.read(missing)):
            parts.append(part)
            missing -= len(part)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CorruptDataError(f"{where}: {error}") from None
    if missing:
        raise CorruptDataError(f"{where}: it is cut off", received=f"{num_bytes - missing} of {num_bytes} bytes")
    return b"".join(parts)
