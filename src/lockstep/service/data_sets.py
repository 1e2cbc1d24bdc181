"""Looks at packed data sets for their readers: what there is, and the first records of each.

Programs write the files, so nothing in them is trusted. Of each file, a bounded part is read, and images with more than
`MAX_PIXELS` are not decoded. Links in the service's own bucket are not followed to other projects.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, final

from lockstep.data.examples.example import decode_example
from lockstep.data.examples.parsing import parse_batch
from lockstep.data.examples.ragged import RaggedArray, SparseArray
from lockstep.data.files.compression import HEAD_BYTES, WINDOW_BITS, compression_of
from lockstep.data.files.framing import FOOTER_BYTES, HEADER_BYTES, checked_data, read_fully, record_length
from lockstep.data.files.shards import ShardName, check_complete
from lockstep.data.finding import PackedObjects, group_objects
from lockstep.data.images.contact_sheet import LABEL, describe_label, is_image, make_thumbnail, num_pixels
from lockstep.data.inspection import describe_value
from lockstep.data.packing.manifest import Manifest
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, MissingInputError
from lockstep.serving.model_files import open_for_another
from lockstep.storage import QUICK_POLICY, StoredObject, join_url, open_bucket, split_url

MAX_OBJECTS: Final = 20_000
"""The maximum number of packed files and manifests of a folder that are looked at, by the order of their names."""
MAX_MANIFEST_BYTES: Final = 4 * 2**20
MAX_READ_BYTES: Final = 16 * 2**20
"""The maximum number of bytes of a data set that are read, and the maximum of what they are decompressed to."""
MAX_PIXELS: Final = 2**24
"""The maximum number of pixels of an image that is shown."""
MAX_SHEET_PIXELS: Final = 2**26
"""The maximum number of pixels of all images of one data set that are shown."""
MAX_FEATURES: Final = 50
MAX_TEXT: Final = 300
"""The maximum number of characters of a value that is shown."""


@final
@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A split of a packed data set, or a single file of records.

    Attributes:
        url: its URL.
        files: the files that exist, in the order of their names.
        manifest: the manifest; None if there is none that can be read.
        problems: what is wrong, as far as names and the manifest show it.
    """

    url: str
    files: tuple[StoredObject, ...]
    manifest: Manifest | None
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name, without the folder."""
        return self.url.rpartition("/")[2]

    @property
    def num_records(self) -> int | None:
        """The number of records that the manifest states, or else the names of all files; None if they do not."""
        if self.manifest is not None:
            return self.manifest.num_records
        counts = [num_records_of(file) for file in self.files]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the files that the manifest states and that do not exist."""
        present = {_name(file.key) for file in self.files}
        stated = () if self.manifest is None else self.manifest.shards
        return tuple(shard.file for shard in stated if shard.file not in present)


@final
@dataclass(frozen=True, kw_only=True)
class ShownRecord:
    """A record of a data set, as it is shown.

    Attributes:
        values: a line of text for each feature, by name.
        label: the label, in a few characters; "" if there is none.
        jpeg: its first image as a small JPEG file; None if it has none that can be shown.
    """

    values: dict[str, str]
    label: str
    jpeg: bytes | None

    @property
    def image_url(self) -> str | None:
        """The image as a ``data:`` URL."""
        return None if self.jpeg is None else f"data:image/jpeg;base64,{base64.b64encode(self.jpeg).decode()}"


@final
@dataclass(kw_only=True)
class FirstRecords:
    """The first records of a data set.

    Attributes:
        records: the records.
        problem: why there are no more of them; None if nothing is wrong.
    """

    records: list[ShownRecord] = field(default_factory=list[ShownRecord])
    problem: str | None = None


@final
@dataclass(kw_only=True)
class _Images:
    """Draws the images of one data set.

    Attributes:
        num_pixels_left: how many more pixels may be decoded.
    """

    num_pixels_left: int = MAX_SHEET_PIXELS

    def draw(self, value: Any) -> bytes | None:
        """Returns an image as a small JPEG file; None if it is damaged or too large, or an extra is not installed."""
        try:
            size = num_pixels(value)
            if size > min(MAX_PIXELS, self.num_pixels_left):
                return None
            self.num_pixels_left -= size
            return make_thumbnail(value)
        except (CorruptDataError, InvalidInputError):
            return None


def num_records_of(file: StoredObject) -> int | None:
    """Returns the number of records that the name of a file states; None if it states none."""
    name = ShardName.parse(file.key)
    return None if name is None else name.num_records


def list_data_sets(folder: str) -> tuple[list[PackedObjects], bool]:
    """Finds the data sets in a folder by the names of its files, and says whether it has more than are looked at.

    Args:
        folder: the URL of the folder, which is searched recursively.

    Raises:
        StorageError: If the bucket could not be listed.
    """
    items = open_bucket(folder, policy=QUICK_POLICY).list(follows_links=False)
    found = group_objects(items)
    num_objects = 0
    for number, group in enumerate(found):
        num_objects += len(group.files) + 1
        if num_objects > MAX_OBJECTS:
            return found[:number], True
    return found, False


def find_data_set(url: str) -> PackedObjects:
    """Finds the files of one data set.

    Args:
        url: the URL of the data set, as `describe_data_set` returns it.

    Raises:
        MissingInputError: If there is no such data set.
        StorageError: If the bucket could not be listed.
    """
    bucket_url, key = split_url(url)
    items = open_bucket(bucket_url, policy=QUICK_POLICY).list(key, follows_links=False)
    found = next((group for group in group_objects(items) if group.key == key), None)
    if found is None:
        raise MissingInputError(f"there is no data set {url}", action="`lockstep data pack` makes one")
    return found


def describe_data_set(group: PackedObjects, *, folder: str, bucket: str) -> DataSet:
    """Reads the manifest of a data set, and compares it with the names of the files.

    Args:
        group: the files.
        folder: the URL of the folder that their keys are relative to.
        bucket: the URL of the service's default bucket.
    """
    url, problems = join_url(folder, group.key), list[str]()
    manifest: Manifest | None = None
    if group.manifest is not None:
        try:
            manifest = _read_manifest(join_url(folder, group.manifest.key), bucket=bucket)
        except LockstepError as error:
            problems.append(str(error))
    if manifest is None:
        try:
            check_complete([file.key for file in group.files], what=group.key)
        except (CorruptDataError, MissingInputError) as error:
            problems.append(str(error))
    data_set = DataSet(url=url, files=group.files, manifest=manifest, problems=tuple(problems))
    if data_set.missing:
        problems.append(f"{len(data_set.missing)} of the files that the manifest lists do not exist")
    stated = set[str]() if manifest is None else {shard.file for shard in manifest.shards}
    others = [file for file in group.files if manifest is not None and _name(file.key) not in stated]
    if others:
        problems.append(f"{len(others)} files belong to another packing run than the manifest")
    return DataSet(url=url, files=group.files, manifest=manifest, problems=tuple(problems))


def _read_manifest(url: str, *, bucket: str) -> Manifest:
    """Reads a manifest of bounded size.

    Raises:
        CorruptDataError: If it is too large, or not a manifest.
        LockstepError: If it cannot be read.
    """
    with open_for_another(url, bucket=bucket) as file:
        text = read_fully(file, MAX_MANIFEST_BYTES + 1)
    if len(text) > MAX_MANIFEST_BYTES:
        raise CorruptDataError(f"{url}: the manifest is too large to be shown", allowed=f"{MAX_MANIFEST_BYTES} bytes")
    return Manifest.from_json(text, url=url)


def read_first_records(data_set: DataSet, *, limit: int, bucket: str) -> FirstRecords:
    """Decodes the first records of a data set.

    Args:
        data_set: the data set.
        limit: the maximum number of records.
        bucket: the URL of the service's default bucket.
    """
    found = FirstRecords()
    folder = data_set.url.rpartition("/")[0]
    images = _Images()
    num_left_bytes = MAX_READ_BYTES
    names = {_name(file.key) for file in data_set.files}
    stated = [] if data_set.manifest is None else [shard.file for shard in data_set.manifest.shards]
    for name in [each for each in stated if each in names] or sorted(names):
        if len(found.records) >= limit or num_left_bytes <= 0:
            break
        try:
            for data in _records_of(join_url(folder, name), bucket=bucket, max_bytes=num_left_bytes):
                num_left_bytes -= len(data)
                values = _decode(data, manifest=data_set.manifest)
                found.records.append(_shown(values, manifest=data_set.manifest, images=images))
                if len(found.records) == limit:
                    break
        except LockstepError as error:
            found.problem = str(error)
            break
    return found


def _records_of(url: str, *, bucket: str, max_bytes: int) -> Iterator[bytes]:
    """Reads the records at the beginning of a file, and verifies their checksums.

    Raises:
        CorruptDataError: If the file is damaged.
        LockstepError: If it cannot be read.
    """
    with open_for_another(url, bucket=bucket) as file:
        head = read_fully(file, HEAD_BYTES)
        compression = compression_of(head)
        file.seek(0)
        source: BinaryIO = file
        if compression is not None:
            source = io.BytesIO(_decompress(file, bits=WINDOW_BITS[compression], max_bytes=max_bytes, url=url))
        number = offset = 0
        while offset + HEADER_BYTES <= max_bytes and (header := read_fully(source, HEADER_BYTES)):
            length = record_length(header, url=url, number=number, offset=offset)
            end = offset + HEADER_BYTES + length + FOOTER_BYTES
            if end > max_bytes:
                return
            body = read_fully(source, length + FOOTER_BYTES)
            yield checked_data(body, length=length, url=url, number=number, offset=offset)
            number, offset = number + 1, end


def _decompress(file: BinaryIO, *, bits: int, max_bytes: int, url: str) -> bytes:
    try:
        return zlib.decompressobj(bits).decompress(read_fully(file, max_bytes), max_bytes)
    except zlib.error as error:
        raise CorruptDataError(f"{url}: it cannot be decompressed: {error}") from None


def _decode(data: bytes, *, manifest: Manifest | None) -> dict[str, Any]:
    if manifest is None:
        return dict(decode_example(data))
    return {
        name: found.values if isinstance(found, SparseArray | RaggedArray) else found[0]
        for name, found in parse_batch([data], manifest.features).items()
    }


def _shown(values: dict[str, Any], *, manifest: Manifest | None, images: _Images) -> ShownRecord:
    classes: Sequence[str] = () if manifest is None else manifest.classes
    image = next((value for value in values.values() if is_image(value)), None)
    return ShownRecord(
        values={_clip(name): _clip(describe_value(value)) for name, value in list(values.items())[:MAX_FEATURES]},
        label=describe_label(values.get(LABEL), classes),
        jpeg=None if image is None else images.draw(image),
    )


def _clip(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}\N{HORIZONTAL ELLIPSIS}"


def _name(key: str) -> str:
    return key.rpartition("/")[2]
