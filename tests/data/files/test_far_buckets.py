"""Packed files in the buckets of real servers, read by ranges while these throttle, reset and cut."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gcsfs.core
import numpy as np
import pytest
import s3fs
from tests.storage.proxy import Proxy, proxy_before
from tests.storage.servers import environment, gs_server, s3_server

from lockstep.data import Batches, ExampleParser, FixedLenFeature, RawFeature, RecordSource, pack
from lockstep.errors import MissingInputError
from lockstep.storage import open_bucket

SIDE = 64
COUNT = 96
FEATURES = {"image": RawFeature((SIDE, SIDE, 3)), "number": FixedLenFeature((), np.int64)}


@dataclass(frozen=True, kw_only=True)
class Store:
    url: str
    proxy: Proxy


def image(number: int) -> np.ndarray:
    return np.full((SIDE, SIDE, 3), number, np.uint8)


@pytest.fixture(scope="module", params=["s3", "gs"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    server, variable = (
        (s3_server, "AWS_ENDPOINT_URL") if request.param == "s3" else (gs_server, "STORAGE_EMULATOR_HOST")
    )
    with (
        server() as variables,
        proxy_before(variables[variable]) as proxy,
        environment({**variables, variable: proxy.url}),
    ):
        client: Any = s3fs.S3FileSystem if request.param == "s3" else gcsfs.core.GCSFileSystem
        client(use_listings_cache=False).mkdir("bucket-of-records")
        url = f"{request.param}://bucket-of-records/images"
        examples = [{"image": image(number), "number": number} for number in range(COUNT)]
        pack(examples, url, name="images", split="train", num_shards=3, features=FEATURES)
        yield Store(url=url, proxy=proxy)


def epoch(store: Store, **options: Any) -> list[int]:
    parse = ExampleParser(FEATURES)

    def transform(records: Any) -> tuple[np.ndarray, np.ndarray]:
        columns = parse(records)
        return columns["image"], columns["number"]

    source = RecordSource(f"{store.url}/*.tfrec", held_bytes=0, num_connections=8)
    seen: list[int] = []
    for images, numbers in Batches(source, batch_size=16, transform=transform, seed=3, **options):
        assert (images == numbers[:, None, None, None]).all()
        seen += numbers.tolist()
    return seen


def test_an_epoch_by_ranges(store: Store) -> None:
    store.proxy.forward()
    store.proxy.requests.clear()
    seen = epoch(store)
    assert sorted(seen) == list(range(COUNT))
    assert seen != sorted(seen)
    # Of batches of 16 in random order: a request for records that are near each other, at most one for each record;
    # and a few for the frames by which an index is believed.
    reads = [request for request in store.proxy.requests if request.range is not None]
    assert 6 * 3 <= len(reads) <= COUNT + 3 * 8


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"kind": "status", "status": 503}, marks=pytest.mark.heavy),
        pytest.param({"kind": "reset"}, marks=pytest.mark.heavy),
        {"kind": "cut"},
    ],
    ids=["status", "reset", "cut"],
)
def test_faults_on_the_way_leave_no_trace(store: Store, fault: dict[str, Any]) -> None:
    store.proxy.forward()
    wanted = epoch(store)
    store.proxy.inject(**fault, times=5, applies=lambda request: request.range is not None)
    assert epoch(store) == wanted
    store.proxy.forward()


def test_many_requests_are_under_way_at_once(store: Store) -> None:
    numbers = [file * 32 + row for file in range(3) for row in range(0, 32, 7)]  # each more than a small gap away
    source = RecordSource(f"{store.url}/*.tfrec", held_bytes=0, num_connections=len(numbers))
    store.proxy.forward()
    store.proxy.gate = threading.Barrier(len(numbers), timeout=10)
    try:
        assert len(source.__getitems__(numbers)) == len(numbers)
    finally:
        store.proxy.gate = None
    assert len(store.proxy.requests) == len(numbers)


def test_a_shard_that_vanishes_is_named(store: Store) -> None:
    store.proxy.forward()
    source = RecordSource(f"{store.url}/*.tfrec", held_bytes=0)
    bucket, key = open_bucket(store.url), "images-train-00001-of-00003-32.tfrec"
    contents = bucket.read(key)
    bucket.delete(key)
    try:
        with pytest.raises(MissingInputError, match=rf"{key}: record 5 at byte \d+: the file is no longer there"):
            source[37]
    finally:
        bucket.write(key, contents)
