import io
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

import lockstep
from lockstep.data import (
    FixedLenFeature,
    Manifest,
    RaggedFeature,
    RawFeature,
    RecordSource,
    VarLenFeature,
    decode_example,
    pack,
    parse_batch,
    read_manifest,
)
from lockstep.data.inspection import inspect
from lockstep.data.packing import writer
from lockstep.data.packing.run import Progress
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError, StorageWriteError
from lockstep.storage import join_url, open_bucket

FEATURES = {"image": RawFeature((2, 2), np.uint8), "label": FixedLenFeature((), np.int64)}
CREATED = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def examples(count: int) -> list[dict[str, Any]]:
    return [{"image": np.full((2, 2), number % 256, np.uint8), "label": number} for number in range(count)]


@pytest.fixture(params=["local", "memory"])
def url(request: Any, tmp_path: Path) -> str:
    return str(tmp_path / "bucket") if request.param == "local" else f"memory://{uuid.uuid4().hex}"


def packed(url: str, count: int = 10, **changed: Any) -> Manifest:
    options = {"name": "set", "split": "train", "num_shards": 3, "features": FEATURES, "created": CREATED}
    return pack(examples(count), url, **(options | changed)).manifest  # type: ignore[arg-type]


def test_records_are_the_examples_in_order(url: str) -> None:
    packed(url)
    assert [item.key for item in open_bucket(url).list()] == [
        "set-train-00000-of-00003-4.tfrec",
        "set-train-00001-of-00003-3.tfrec",
        "set-train-00002-of-00003-3.tfrec",
        "set-train.manifest.json",
    ]
    source = RecordSource(join_url(url, "set-train-*.tfrec"))
    arrays = parse_batch(source.__getitems__(range(10)), FEATURES)
    assert arrays["label"].tolist() == list(range(10))
    assert (arrays["image"] == np.arange(10)[:, None, None]).all()
    assert decode_example(source[3])["image"] == [bytes([3] * 4)]


def test_the_manifest_states_what_is_there(url: str) -> None:
    manifest = packed(url, origin="a test")
    assert read_manifest(url, name="set", split="train") == manifest
    document = json.loads(open_bucket(url).read("set-train.manifest.json"))
    assert document["num_records"] == 10
    assert document["source"] == "a test"
    assert document["created"] == "2030-01-02T03:04:05+00:00"
    assert document["features"]["image"] == {"type": "raw", "shape": [2, 2], "dtype": "uint8"}
    for shard in manifest.shards:
        contents = open_bucket(url).read(shard.file)
        assert (len(contents), f"{google_crc32c.value(contents):08x}") == (shard.size_bytes, shard.crc32c)
    assert manifest.size_bytes == sum(item.size_bytes for item in open_bucket(url).list("set-train-"))


def test_packing_again_gives_the_same_bytes() -> None:
    first, second = f"memory://{uuid.uuid4().hex}", f"memory://{uuid.uuid4().hex}"
    assert packed(first) == packed(second)


def test_an_earlier_packing_is_replaced_and_others_are_left(url: str) -> None:
    packed(url, num_shards=5)
    packed(url, name="set-train", split="more")
    open_bucket(url).write("set-train-notes.txt", b"")
    open_bucket(url).write("old/set-train-00000-of-00001-1.tfrec", b"")
    packed(url, num_shards=1)
    assert {item.key for item in open_bucket(url).list()} == {
        "old/set-train-00000-of-00001-1.tfrec",
        "set-train-more-00000-of-00003-4.tfrec",
        "set-train-more-00001-of-00003-3.tfrec",
        "set-train-more-00002-of-00003-3.tfrec",
        "set-train-more.manifest.json",
        "set-train-notes.txt",
        "set-train-00000-of-00001-10.tfrec",
        "set-train.manifest.json",
    }
    assert len(RecordSource(join_url(url, "set-train-[0-9]*.tfrec"))) == 10


@pytest.mark.parametrize("num_workers", [1, 3])
def test_progress_counts_each_record_once(num_workers: int) -> None:
    seen: list[Progress] = []
    pack(
        ({"label": number} for number in range(1203)),
        "memory://packing-progress",
        name="set",
        split="train",
        num_shards=2,
        features={"label": FEATURES["label"]},
        num_examples=1203,
        num_workers=num_workers,
        progress=seen.append,
    )
    counts = [progress.num_items for progress in seen]
    assert counts == sorted(counts)
    assert len(counts) > 3
    assert seen[-1] == Progress(num_items=1203, total_items=1203)


def test_what_breaks_off_leaves_whole_shards_and_no_manifest(url: str) -> None:
    def breaking() -> Iterator[dict[str, Any]]:
        yield from examples(70)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        pack(breaking(), url, name="set", num_shards=3, features=FEATURES, num_examples=90, num_workers=1)
    keys = [item.key for item in open_bucket(url).list()]
    assert keys == [*(f"set-train-0000{index}-of-00003-30.tfrec" for index in (0, 1)), "set.packing/journal.json"]
    assert len(RecordSource([join_url(url, keys[0])])) == 30
    with pytest.raises(MissingInputError, match="2 of 3 shards found"):
        RecordSource(join_url(url, "set-train-*.tfrec"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "a/b"}, r"the name of a data set \(name\); received 'a/b'"),
        ({"split": ""}, r"the split of a data set \(split\); received ''"),
        ({"num_shards": 0}, r"the size of shards \(num_shards\); received 0; allowed: 1 or more"),
        ({"num_shards": 11}, r"more shards \(num_shards\) than records; received 11; allowed: 1 to 10, the records"),
        ({"num_examples": 11}, "there are fewer examples than stated; received 10; allowed: 11"),
        ({"num_examples": 9}, "there are more examples than stated; allowed: 9"),
        ({"features": {"label": FEATURES["label"]}}, "example 0 does not have the declared features"),
        (
            {"features": FEATURES | {"label": FixedLenFeature((2,), np.int64)}},
            r"feature 'label' of example 0: a value does not fit its feature; received \(\)",
        ),
    ],
)
def test_bad_input_is_named(changed: dict[str, Any], message: str) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    with pytest.raises(InvalidInputError, match=message):
        packed(url, **changed)
    assert not open_bucket(url).exists("set-train.manifest.json")


def test_a_number_of_shards_needs_the_number_of_examples() -> None:
    with pytest.raises(InvalidInputError, match=r"known only after reading them; .*, or num_examples"):
        pack(iter(examples(3)), "memory://x", name="set", split="train", num_shards=1, features=FEATURES)


def test_a_bucket_that_cannot_be_written_is_named_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageWriteError, match=f"cannot write to the bucket {tmp_path}/file"):
        packed(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"not a manifest \(JSONDecodeError"),
        ("[]", r"not a manifest \(TypeError"),
        ('{"format": 1}', r"not a manifest \(KeyError: 'name'\)"),
        ('{"format": 2}', "a manifest of another format; received 2; allowed: 1"),
    ],
)
def test_a_manifest_that_is_not_usable_is_named(text: str, message: str) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    open_bucket(url).write("set-train.manifest.json", text.encode())
    with pytest.raises(CorruptDataError, match=f"{url}/set-train.manifest.json: {message}"):
        read_manifest(url, name="set", split="train")


def test_a_missing_manifest_is_named(url: str) -> None:
    with pytest.raises(MissingInputError, match=r"there is no object .*/set-train\.manifest\.json"):
        read_manifest(url, name="set", split="train")


def test_values_of_any_number_come_back(url: str) -> None:
    features = {"words": VarLenFeature(bytes), "numbers": RaggedFeature(np.int64), "weights": VarLenFeature(np.float32)}
    rows = [
        {"words": [b"a", b"bc"], "numbers": [1, -2, 300], "weights": []},
        {"words": [], "numbers": [], "weights": [0.5]},
        {"words": b"single", "numbers": 7, "weights": np.array([1.5, 2.5])},
    ]
    manifest = pack(rows, url, name="set", split="train", num_shards=1, features=features).manifest
    assert read_manifest(url, name="set", split="train").features == features == manifest.features
    source = RecordSource(join_url(url, "set-train-*.tfrec"))
    found = parse_batch(source.__getitems__(range(3)), manifest.features)
    assert found["words"].to_dense().tolist() == [[b"a", b"bc"], [b"", b""], [b"single", b""]]
    assert found["numbers"].to_list() == [[1, -2, 300], [], [7]]
    assert found["weights"].to_dense().tolist() == [[0, 0], [0.5, 0], [1.5, 2.5]]
    (shown,) = inspect(join_url(url, "set-train-*.tfrec")).sets
    assert [values["numbers"].tolist() for values in shown.first_records(2)] == [[1, -2, 300], []]
    with pytest.raises(InvalidInputError, match="feature 'numbers' of example 0: a value does not fit its feature"):
        pack([{**rows[0], "numbers": [[1]]}], url, name="x", split="y", num_shards=1, features=features)


@pytest.mark.parametrize(
    "change",
    [
        {"file": ["x"]},
        {"file": 3},
        {"file": "../x"},
        {"file": "x\ny"},
        {"num_records": "5"},
        {"num_records": -1},
        {"size_bytes": True},
        {"crc32c": 3},
        {"crc32c": "x"},
    ],
)
def test_a_shard_that_no_manifest_can_state_is_refused(change: dict[str, Any]) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    manifest = packed(url)
    document = json.loads(open_bucket(url).read(manifest.key))
    document["shards"][0] |= change
    open_bucket(url).write(manifest.key, json.dumps(document).encode())
    (damage,) = inspect(url).damages
    assert isinstance(damage.error, CorruptDataError)
    assert "not a manifest" in str(damage.error)


@pytest.mark.parametrize(
    "change", [{"name": 3}, {"source": []}, {"classes": [1]}, {"compression": ["GZIP"]}, {"skipped": [{"key": 1}]}]
)
def test_a_manifest_of_other_types_is_refused(change: dict[str, Any]) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    text = json.dumps(json.loads(packed(url).to_json()) | change)
    with pytest.raises(CorruptDataError, match="not a manifest"):
        Manifest.from_json(text, url="x")
    with pytest.raises(CorruptDataError, match="not a manifest"):
        Manifest.from_json("[" * 100_000, url="x")
    open_bucket(url).write("set.packing/journal.json", b"[" * 100_000)
    packed(url)  # which has nothing to go on from


def test_a_full_disk_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = partial(io.FileIO, "/dev/full")
    monkeypatch.setattr(writer, "open", lambda path, mode: full(mode), raising=False)
    with pytest.raises(StorageWriteError, match=r"cannot write the temporary file .*: No space left on device; free "):
        packed(url)


def test_a_manifest_says_which_version_packed_it(url: str) -> None:
    manifest = pack(
        [{"number": 1}], url, name="set", split="all", features={"number": FixedLenFeature((), np.int64)}
    ).manifest
    assert manifest.lockstep_version == lockstep.__version__
    assert read_manifest(url, name="set", split="all") == manifest
    document = json.loads(manifest.to_json())
    del document["lockstep_version"]  # as those that did not say it
    assert Manifest.from_json(json.dumps(document), url="").lockstep_version == ""
