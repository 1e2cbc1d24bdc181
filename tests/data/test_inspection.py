import gzip
import uuid
import zlib
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import pytest

from lockstep.data import FixedLenFeature, Manifest, Shard, ShardName, encode_example, frame
from lockstep.data.images.codec import encode_image
from lockstep.data.inspection import describe_value, inspect
from lockstep.errors import CorruptDataError
from lockstep.storage import open_bucket


def write(url: str, *, num_shards: int = 3, count: int = 30, pack: Callable[[bytes], bytes] = bytes) -> list[str]:
    """Writes the files of a data set whose records are numbered, and its manifest."""
    bucket = open_bucket(url)
    shards: list[Shard] = []
    for index in range(num_shards):
        numbers = range(count * index // num_shards, count * (index + 1) // num_shards)
        data = pack(b"".join(frame(encode_example({"number": number})) for number in numbers))
        name = str(ShardName(data_set="set-train", index=index, num_shards=num_shards, num_records=len(numbers)))
        bucket.write(name, data)
        shards.append(Shard(file=name, num_records=len(numbers), size_bytes=len(data), crc32c="00000000"))
    manifest = Manifest(
        name="set",
        split="train",
        shards=tuple(shards),
        features={"number": FixedLenFeature((), np.int64)},
        source="a test",
        created=datetime(2030, 1, 2, tzinfo=UTC),
    )
    bucket.write(manifest.key, manifest.to_json().encode())
    return [shard.file for shard in shards]


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def test_records_are_the_first_or_from_all_over(url: str) -> None:
    write(url)
    (found,) = inspect(url).sets
    assert [values["number"].item() for values in found.first_records(13)] == list(range(13))
    assert [values["number"].item() for values in found.spread_records(5)] == [0, 6, 12, 18, 24]
    assert [values["number"].item() for values in found.spread_records(100)] == list(range(30))
    assert list(found.spread_records(0)) == []


@pytest.mark.parametrize(("pack", "word"), [(gzip.compress, "GZIP"), (zlib.compress, "ZLIB")])
def test_compressed_files_are_counted_and_shown(pack: Callable[[bytes], bytes], word: str, url: str) -> None:
    files = write(url, pack=pack)
    (found,) = inspect(url).sets
    assert [(file.num_records, file.compression) for file in found.files] == [(10, word)] * 3
    assert [values["number"].item() for values in found.first_records(13)] == list(range(13))
    assert [values["number"].item() for values in found.spread_records(2)] == [0, 1]
    data = open_bucket(url).read(files[1])
    open_bucket(url).write(files[1], data[:-9])
    (damage,) = inspect(url).damages
    assert isinstance(damage.error, CorruptDataError)
    assert damage.url == f"{url}/{files[1]}"


def test_a_compressed_file_by_its_own_name(url: str) -> None:
    open_bucket(url).write("notes.tfrecord.gz", gzip.compress(frame(encode_example({"a": 1}))))
    (found,) = inspect(url).sets
    assert (found.name, found.files[0].num_records, found.manifest) == ("notes.tfrecord.gz", 1, None)


def test_values_are_described_in_a_line() -> None:
    assert describe_value(np.arange(3)) == "[0, 1, 2]"
    assert describe_value(np.zeros((4, 5), np.uint8)) == "uint8, 4 x 5, 0 to 0, mean 0"
    assert describe_value(b"text") == "'text'"
    assert describe_value(b"\xff" * 20).startswith("20 bytes: ff ff")
    assert describe_value([b"a", b"b"]) == "'a', 'b'"
    assert describe_value([b"a"] * 9) == "'a', " * 8 + "... (9 in all)"
    assert describe_value(np.array(b"a", dtype=object)) == "'a'"


def test_text_is_shown_as_such_and_what_is_none_by_its_bytes() -> None:
    assert describe_value("Grüße, 世界\n".encode()) == "'Grüße, 世界\\n'"
    assert describe_value(("ü" * 81).encode()) == f"162 bytes of text: '{'ü' * 80}' ..."
    assert describe_value("Grüße".encode("latin-1")) == "5 bytes: 47 72 fc df 65"
    assert describe_value(b"\x1b[31m") == "5 bytes: 1b 5b 33 31 6d"
    assert describe_value(b"\x00") == "1 byte: 00"


def test_an_image_is_described_by_its_header() -> None:
    pytest.importorskip("PIL.Image", reason="images are an extra")
    png = encode_image(np.zeros((4, 5, 3), np.uint8), codec="png")
    assert describe_value(png) == f"PNG, 4 x 5, {len(png)} bytes"
    assert describe_value(png[:12]).startswith("12 bytes: 89 50 4e 47")


def test_what_is_sound_is_shown_where_something_is_not(url: str) -> None:
    files = write(url)
    bucket = open_bucket(url)
    bucket.write(files[0], bucket.read(files[0])[:-1])
    bucket.delete(files[2])
    other = str(ShardName(data_set="set-train", index=0, num_shards=8, num_records=1))
    bucket.write(other, frame(encode_example({"number": 77})))
    inspection = inspect(url)
    (found,) = inspection.sets
    assert [damage.url.removeprefix(f"{url}/") for damage in inspection.damages] == ["set-train", files[0], files[2]]
    assert [values["number"].item() for values in found.first_records(30)] == list(range(10, 20))
    assert [values["number"].item() for values in found.spread_records(2)] == [10, 15]
    assert [(file.num_records, file.is_other) for file in found.files] == [(10, False), (1, True), (10, False)]
    assert [shard.file for shard in found.missing] == [files[2]]
    bucket.delete(files[1])
    assert inspect(url).sets[0].sound_files == ()
    assert [values["number"].item() for values in inspect(f"{url}/{other}").sets[0].first_records(3)] == [77]
