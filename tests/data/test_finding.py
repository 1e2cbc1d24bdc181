import uuid
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from lockstep.data import (
    FixedLenFeature,
    RecordSource,
    ShardName,
    encode_example,
    find_shards,
    frame,
    pack,
    records,
)
from lockstep.data.finding import find_packed
from lockstep.data.inspection import inspect
from lockstep.data.verification import verify
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.storage import open_bucket

FEATURES = {"number": FixedLenFeature((), np.int64)}
EXAMPLES = [{"number": number} for number in range(60)]


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def pack_numbers(url: str, *, day: int = 1, **options: Any) -> None:
    options = {"name": "my-set", "features": FEATURES, "origin": "numbers", "num_shards": 2, **options}
    pack(EXAMPLES, url, created=datetime(2030, 1, day, tzinfo=UTC), **options)


def test_a_split_is_found_by_its_name(url: str) -> None:
    pack_numbers(f"{url}/a", split={"train": 0.8, "train-2": 0.2})
    for target in ("a/my-set-train", "a/my-set-train/", "a/my-set-train.manifest.json"):
        (found,) = find_packed(f"{url}/{target}").sets
        assert found.url == f"{url}/a/my-set-train"
        assert [ShardName.parse(file.url).data_set for file in found.files] == ["my-set-train"] * 2  # type: ignore[union-attr]
        assert found.damages == ()
    assert verify(f"{url}/a/my-set-train").num_records == len(RecordSource(f"{url}/a/my-set-train")) < 60
    assert find_shards(f"{url}/a/my-set-train") == find_shards(f"{url}/a/my-set-train-0*")
    assert len(records(f"{url}/a/my-set-train")) == verify(f"{url}/a/my-set-train").num_records  # type: ignore[arg-type]
    assert [found.name for found in inspect(f"{url}/a/my-set-train").sets] == ["my-set-train"]
    assert [found.name for found in inspect(f"{url}/a").sets] == ["my-set-train", "my-set-train-2"]
    for target in ("my-set", "a/my", "a/my-set-tr"):
        with pytest.raises(
            MissingInputError, match=f"no packed file is at {url}/{target}; allowed: a bucket or folder"
        ):
            find_packed(f"{url}/{target}")
        with pytest.raises(MissingInputError, match=f"no file matches {url}/{target}; name a data set's split"):
            find_shards(f"{url}/{target}")


def test_a_split_of_which_the_manifest_alone_is_left_is_found_by_its_name(url: str) -> None:
    pack_numbers(url, split="train")
    for shard in find_shards(f"{url}/my-set-train"):
        open_bucket(url).delete(shard.removeprefix(f"{url}/"))
    (found,) = find_packed(f"{url}/my-set-train").sets
    assert [len(found.files), len(found.missing)] == [0, 2]


@pytest.mark.parametrize("target", ["memory://", "gs://", "tape://b/x", ""])
def test_a_target_that_is_none_is_named(target: str) -> None:
    with pytest.raises(InvalidInputError):
        find_packed(target)


def test_shards_as_others_name_them_are_one_data_set(url: str) -> None:
    bucket = open_bucket(url)
    for index in range(3):
        bucket.write(f"x/mnist-train.tfrecord-{index:05d}-of-00003", frame(encode_example({"a": index})))
    for target in (url, f"{url}/x/mnist-*"):
        (found,) = find_packed(target).sets
        assert (found.url, len(found.files), found.damages) == (f"{url}/x/mnist-train.tfrecord", 3, ())
    bucket.delete("x/mnist-train.tfrecord-00001-of-00003")
    (damage,) = find_packed(url).sets[0].damages
    assert "2 of 3 shards found, missing 00001" in str(damage.error)
    (found,) = find_packed(f"{url}/x/mnist-train.tfrecord-00000-of-00003").sets
    assert (len(found.files), found.damages) == (1, ())


def test_two_packings_of_one_split_are_told_apart_by_the_manifest(url: str) -> None:
    pack_numbers(url, split="train", num_shards=3)
    before = {item.key: open_bucket(url).read(item.key) for item in open_bucket(url).list("my-set-train-")}
    pack_numbers(url, split="train", day=2)
    for key, data in before.items():
        open_bucket(url).write(key, data)
    (found,) = find_packed(url).sets
    (damage,) = found.damages
    assert isinstance(damage.error, CorruptDataError)
    assert str(damage.error) == (
        f"{url}/my-set-train: 3 files, my-set-train-00000-of-00003-20.tfrec and others, belong to another packing run: "
        "my-set-train.manifest.json lists 2 other shards; delete the outdated files: readers reject a mix of both"
    )
    assert [file.stated is not None for file in found.files] == [True, False, True, False, False]
    report = verify(url)
    with pytest.raises(CorruptDataError, match=r"3 files, my-set-train-00000-of-00003-20\.tfrec and others, belong"):
        report.raise_damage()
    (damage,) = find_packed(f"{url}/my-set-train-00000-of-00003-20.tfrec").sets[0].damages
    assert "tfrec: it belongs to another packing run: my-set-train.manifest.json lists 2" in str(damage.error)
    open_bucket(url).delete("my-set-train.manifest.json")
    (damage,) = find_packed(url).sets[0].damages
    assert "my-set-train exists with 2 and 3 shards; delete the older ones" in str(damage.error)
