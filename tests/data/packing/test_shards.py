"""How records are laid into shards: sizes, order, workers, compression."""

import gzip
import json
import uuid
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, final

import numpy as np
import pytest

from lockstep.data import FixedLenFeature, Manifest, RawFeature, RecordSource, decode_example, pack
from lockstep.data.packing.packer import Packed
from lockstep.data.packing.plan import MAX_WINDOW_ITEMS
from lockstep.data.sources.base import AbstractPart, AbstractSource, Item
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.storage import join_url, open_bucket

FEATURES = {"label": FixedLenFeature((), np.int64)}
CREATED = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def labels(count: int) -> Iterator[dict[str, Any]]:
    return ({"label": number} for number in range(count))


def new_url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def packed(url: str, examples: Any, **options: Any) -> Packed:
    return pack(examples, url, **({"name": "set", "features": FEATURES, "created": CREATED} | options))


def sizes(manifest: Manifest) -> list[int]:
    return [shard.num_records for shard in manifest.shards]


def read_labels(url: str, split: str = "train") -> list[int]:
    source = RecordSource(join_url(url, f"set-{split}-*.tfrec"))
    return [int(decode_example(bytes(source[number]))["label"][0]) for number in range(len(source))]


def contents(url: str) -> dict[str, bytes]:
    return {item.key: open_bucket(url).read(item.key) for item in open_bucket(url).list()}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"records_per_shard": 4}, [4, 4, 2]),
        ({"records_per_shard": 5}, [5, 5]),
        ({"num_shards": 4, "num_examples": 10}, [3, 3, 2, 2]),
        ({"bytes_per_shard": 10**6}, [10]),
        ({"bytes_per_shard": 1}, [1] * 10),
        ({}, [10]),
        ({"num_examples": 10}, [10]),
    ],
)
def test_shards_of_what_has_no_length(options: dict[str, Any], expected: list[int]) -> None:
    url = new_url()
    assert sizes(packed(url, labels(10), **options).manifest) == expected
    assert read_labels(url) == list(range(10))
    assert not open_bucket(url).list("set.packing")


def test_a_list_is_packed_into_eight_shards_where_nothing_is_said() -> None:
    assert sizes(packed(new_url(), list(labels(20))).manifest) == [3, 3, 3, 3, 2, 2, 2, 2]
    assert sizes(packed(new_url(), list(labels(3))).manifest) == [1, 1, 1]


def test_bytes_of_a_shard_are_a_bound() -> None:
    features = {"value": RawFeature((100,))}
    examples = [{"value": np.zeros(100, np.uint8)}] * 9
    one = packed(new_url(), examples, features=features, num_shards=1).manifest.size_bytes // 9
    for limit, expected in ((3 * one, [3, 3, 3]), (3 * one - 1, [2, 2, 2, 2, 1]), (one - 1, [1] * 9)):
        manifest = packed(new_url(), examples, features=features, bytes_per_shard=limit).manifest
        assert sizes(manifest) == expected


def test_splits_are_dealt_by_key_in_any_order() -> None:
    shares = {"train": 0.6, "val": 0.4}
    url, other = new_url(), new_url()
    options: dict[str, Any] = {"split": shares, "key": lambda example: example["label"], "records_per_shard": 7}
    both = packed(url, labels(100), **options)
    assert sum(sizes(both.manifests["train"])) + sum(sizes(both.manifests["val"])) == 100 == both.num_records
    packed(other, reversed(list(labels(120))), **options)
    for split in shares:
        assert read_labels(url, split) == [label for label in reversed(read_labels(other, split)) if label < 100]
    assert both.manifests["val"].options["split"] == shares
    with pytest.raises(InvalidInputError, match="there are several splits"):
        _ = both.manifest


@pytest.mark.parametrize("examples", [list(labels(6)), labels(6)], ids=["a list", "a generator"])
def test_a_split_without_records_is_refused(examples: Any) -> None:
    url = new_url()
    with pytest.raises(InvalidInputError, match="set has no record for the split 'test'"):
        packed(url, examples, split={"train": 0.999, "test": 0.001})
    assert not [key for key in contents(url) if "manifest" in key]


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_the_number_of_workers_changes_no_byte(compression: Any) -> None:
    def examples() -> Iterator[dict[str, Any]]:
        return ({"label": number**3} for number in range(500))

    found = []
    for num_workers in (1, 2, 5):
        url = new_url()
        packed(url, examples(), records_per_shard=120, num_workers=num_workers, compression=compression, shuffle=True)
        found.append(contents(url))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("compression", "expand"), [("GZIP", gzip.decompress), ("ZLIB", zlib.decompress)])
def test_compressed_shards_are_the_others_compressed(compression: Any, expand: Any) -> None:
    plain, small = new_url(), new_url()
    packed(plain, labels(1000), records_per_shard=600)
    manifest = packed(small, labels(1000), records_per_shard=600, compression=compression).manifest
    assert manifest.compression == compression
    for shard in manifest.shards:
        data = open_bucket(small).read(shard.file)
        assert len(data) == shard.size_bytes < 10_000
        assert expand(data) == open_bucket(plain).read(shard.file)


def test_a_list_is_shuffled_as_a_whole_by_its_seed() -> None:
    orders = []
    for seed in (0, 0, 1):
        url = new_url()
        packed(url, list(labels(200)), shuffle=True, seed=seed)
        orders.append(read_labels(url))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(200))
    assert json.loads(open_bucket(url).read("set-train.manifest.json"))["options"]["shuffle_seed"] == 1


def test_a_generator_is_shuffled_within_a_window() -> None:
    count = 2 * MAX_WINDOW_ITEMS
    url = new_url()
    packed(url, labels(count), shuffle=True)
    order = read_labels(url)
    assert sorted(order) == list(range(count))
    assert all(label - place <= MAX_WINDOW_ITEMS for place, label in enumerate(order))
    moved = np.abs(np.array(order) - np.arange(count))
    assert moved.mean() > MAX_WINDOW_ITEMS / 4


def test_records_wait_while_the_bucket_is_slow() -> None:
    """A source is not read ahead of what can be written: memory and disk are bounded."""
    url = new_url()
    read = 0
    ahead: list[int] = []

    def examples() -> Iterator[dict[str, Any]]:
        nonlocal read
        for number in range(4000):
            read += 1
            yield {"label": number}

    def report(progress: Any) -> None:
        ahead.append(read - progress.num_items)

    packed(url, examples(), records_per_shard=100, num_workers=2, progress=report)
    assert max(ahead) <= 5 * 32


@final
class Damaged(AbstractSource, AbstractPart):
    """Twelve numbers under one strange key, some of which cannot be read."""

    name = "set"
    origin = "a test"
    classes = ()
    features = FEATURES
    options: Mapping[str, Any] = {}
    is_sorted = False
    notices = ()
    changed_time_s = None
    num_items = 12
    size_bytes = None
    has_any_order = False

    def __init__(self, *, damaged: set[int]) -> None:
        self._damaged = damaged

    def fingerprint(self) -> None:
        return

    def splits(self) -> Mapping[str, AbstractPart]:
        return {"train": self}

    def keys(self) -> Iterator[str]:
        return iter(["a\nb"] * 12)

    def items(self, numbers: Any = None) -> Iterator[Item]:
        return (Item(number=number, key="a\nb") for number in range(12))

    def load(self, item: Item) -> Mapping[str, Any]:
        if item.number in self._damaged:
            raise CorruptDataError("it is empty")
        return {"label": item.number}


def test_items_that_are_damaged_are_left_out_named_and_counted() -> None:
    url = new_url()
    said: list[str] = []
    source = Damaged(damaged={3, 4, 11})
    options: dict[str, Any] = {"num_shards": 4, "features": None}
    with pytest.raises(CorruptDataError, match=r"^'a\\nb': it is empty; repair or remove it"):
        packed(url, source, **options)
    found = packed(url, source, on_error="skip", say=said.append, **options)
    assert sizes(found.manifest) == [3, 1, 3, 2]
    assert read_labels(url) == [0, 1, 2, 5, 6, 7, 8, 9, 10]
    assert said[1:] == [r"skipped: 'a\nb': it is empty"] * 3
    assert [item.reason for item in found.skipped] == ["it is empty"] * 3
    document = json.loads(open_bucket(url).read("set-train.manifest.json"))
    assert document["num_skipped"] == 3
    with pytest.raises(CorruptDataError, match=r"more than 2 damaged items; the last one: 'a\\nb': it is empty"):
        packed(url, source, on_error="skip", max_skipped=2, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_shards": 2, "bytes_per_shard": 9}, "the size of shards is given more than once"),
        ({"records_per_shard": 0}, r"the size of shards \(records_per_shard\); received 0; allowed: 1 or more"),
        ({"compression": "LZ4"}, r"the compression of shards \(compression\); received 'LZ4'; allowed: GZIP, ZLIB"),
        ({"on_error": "log"}, r"how to handle damaged items \(on_error\); received 'log'"),
        ({"num_workers": 0}, r"the number of workers \(num_workers\); received 0"),
        ({"seed": -1}, r"the seed \(seed\) and the number of items to skip"),
        ({"split": {"a": 0.5}}, "the fractions of the splits"),
        ({"split": "a b"}, r"the split of a data set \(split\); received 'a b'"),
        ({"features": None}, "examples need a name and features"),
    ],
)
def test_options_that_are_not_usable_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        packed(new_url(), labels(3), **options)
