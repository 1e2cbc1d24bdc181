"""NumPy files: ``.npy`` of one array, whose rows are the records; ``.npz`` of arrays with one first dimension."""

from __future__ import annotations

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
from lockstep.data.sources.tables import file_state
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.storage import open_bucket, split_url

ONE_ARRAY: Final = "value"
"""The feature that the array of an ``.npy`` file is."""

_READ_BYTES: Final = 1 << 22
_MAX_ROW_BYTES: Final = 1 << 28
_MAX_DIMS: Final = 32


@final
@dataclass(frozen=True, kw_only=True)
class ArrayHeader:
    """What an ``.npy`` file's head says.

    Attributes:
        shape: of the whole array.
        dtype: of its elements.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """How long one row is."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def feature(self) -> AbstractFeature:
        """How a row is kept: rows of several numbers as their own bytes, single numbers as int64 or float32."""
        row = self.shape[1:]
        if self.dtype.kind in "SU":
            return FixedLenFeature(row, bytes)
        if row:
            return RawFeature(row, self.dtype.newbyteorder("="))
        return FixedLenFeature((), np.float32 if self.dtype.kind == "f" else np.int64)


@final
class ArrayPart(AbstractPart):
    """The rows of the arrays, read a few megabytes at a time, from compressed files too.

    Args:
        url: the file.

    Raises:
        CorruptDataError: it is no such file.
        InvalidInputError: an array is of Python objects, in Fortran's order, or has another number of rows.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        with ExitStack() as stack:
            self._headers = {name: _read_header(file, url, name) for name, file in _open_arrays(url, stack).items()}
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
        """The arrays by name; of an ``.npy`` file `ONE_ARRAY`."""
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
        """False: rows are read one after the other."""
        return False

    def keys(self) -> Iterator[str]:
        """The rows' numbers."""
        return map(str, range(self._num_items))

    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """See the base class."""
        assert numbers is None, "rows have one order"
        with ExitStack() as stack:
            rows = []
            for name, file in _open_arrays(self._url, stack).items():
                header = _read_header(file, self._url, name)
                if header != self._headers[name]:
                    raise CorruptDataError(f"{self._url}: {name} is another array than when it was opened")
                rows.append(_rows(file, header, f"{self._url}: {name}"))
            for number, row in enumerate(zip(*rows, strict=True)):
                yield Item(number=number, key=str(number), value=row)

    def load(self, item: Item) -> Mapping[str, Any]:
        """Returns a row of each array."""
        return dict(zip(self._headers, item.value, strict=True))


@final
class ArrayFile(AbstractSource):
    """A NumPy file.

    Args:
        url: the file.
        name: what the data set is called.

    Raises:
        CorruptDataError: it is no such file.
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
        """The arrays by name."""
        return self._part.features

    @property
    def options(self) -> Mapping[str, Any]:
        """None."""
        return {}

    @property
    def is_sorted(self) -> bool:
        """False: rows stay in their order."""
        return False

    def fingerprint(self) -> str:
        """A digest of the file's name, length and time."""
        return digest_of(file_state(self._url))

    def splits(self) -> Mapping[str, ArrayPart]:
        """See the base class."""
        return {"train": self._part}


def _open_arrays(url: str, stack: ExitStack) -> dict[str, BinaryIO]:
    """Opens each array of a file, at the beginning of its head."""
    bucket_url, key = split_url(url)
    bucket = open_bucket(bucket_url)
    if key.lower().endswith(".npy"):
        return {ONE_ARRAY: stack.enter_context(bucket.open(key))}
    try:
        archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(bucket.open(key))))
        names = [entry.filename for entry in archive.infolist()]
        if not names or len(set(names)) != len(names) or not all(name.endswith(".npy") for name in names):
            raise CorruptDataError(f"{url}: not an .npz file", received=names[:8], allowed="arrays, each once")
        # Each has a handle of its own on the archive, so that they can be read side by side.
        return {name.removesuffix(".npy"): _as_binary(stack.enter_context(archive.open(name))) for name in names}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise CorruptDataError(f"{url}: not an .npz file that can be read ({error})") from None


def _as_binary(file: Any) -> BinaryIO:
    return file


def _read_header(file: BinaryIO, url: str, name: str) -> ArrayHeader:
    where = f"{url}: {name}"
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, is_fortran, dtype = read(file)
    except KeyError:
        raise InvalidInputError(f"{where}: an array with named fields", action="save its fields as arrays") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CorruptDataError(f"{where}: not an array that can be read ({error})") from None
    if dtype.kind not in "biufSU" or dtype.itemsize == 0:
        raise InvalidInputError(
            f"{where}: an array of this type cannot be packed",
            received=str(dtype),
            allowed="numbers, truth values, text",
        )
    if not shape or len(shape) > _MAX_DIMS or min(shape) < 0:
        raise InvalidInputError(f"{where}: its first dimension counts the records", received=shape)
    if is_fortran and len(shape) > 1:
        raise InvalidInputError(
            f"{where}: saved column by column", action="save numpy.ascontiguousarray(array) in its place"
        )
    header = ArrayHeader(shape=shape, dtype=dtype)
    if not 0 < header.row_bytes <= _MAX_ROW_BYTES:
        raise InvalidInputError(
            f"{where}: the length of one record", received=header.row_bytes, allowed=f"1 to {_MAX_ROW_BYTES:,} bytes"
        )
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
