"""Packing into object stores: a server of S3's protocol, and an emulator of Google Cloud Storage, on loopback."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gcsfs.core
import numpy as np
import pytest
import s3fs
from tests.storage.servers import environment, gs_server, s3_server

from lockstep.data import FixedLenFeature, RawFeature, RecordSource, pack, verify
from lockstep.errors import LockstepError
from lockstep.storage import join_url, open_bucket

FEATURES = {"image": RawFeature((4, 4), np.uint8), "label": FixedLenFeature((), np.int64)}
COUNT = 70


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.heavy), "gs"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with (s3_server if request.param == "s3" else gs_server)() as variables, environment(variables):
        client: Any = s3fs.S3FileSystem if request.param == "s3" else gcsfs.core.GCSFileSystem
        client(use_listings_cache=False).mkdir("bucket-of-packing")
        yield f"{request.param}://bucket-of-packing/some/folder"


def examples(*, until: int = COUNT, shift: int = 0) -> Iterator[dict[str, Any]]:
    for number in range(until):
        yield {"image": np.full((4, 4), number, np.uint8), "label": number + shift}
    if until < COUNT:
        raise LockstepError("the network is gone")


def contents(url: str) -> dict[str, bytes]:
    bucket = open_bucket(url)
    return {item.key: bucket.read(item.key) for item in bucket.list()}


def labels(url: str) -> set[bytes]:
    return set(RecordSource(join_url(url, "set-train-*.tfrec")).__getitems__(range(COUNT)))


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # gcsfs does
def test_an_interrupted_run_replaces_an_earlier_packing(url: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "name": "set",
        "features": FEATURES,
        "records_per_shard": 10,
        "num_workers": 1,
        "version": "1",
        "created": datetime(2030, 1, 1, tzinfo=UTC),
    }
    pack(examples(shift=1000), url, **options | {"version": "0", "num_examples": COUNT})
    earlier = labels(url)
    with pytest.raises(LockstepError, match="the network is gone"):
        pack(examples(until=40), url, **options)
    assert labels(url) == earlier, "it stays until all is packed"
    said: list[str] = []
    pack(examples(), url, **options, say=said.append)
    assert said == ["resuming after 3 finished shards with 30 records"]
    fresh = f"memory://{uuid.uuid4().hex}"
    pack(examples(), fresh, **options)
    assert contents(url) == contents(fresh)
    report = verify(url)
    assert (report.damages, report.num_records, report.num_with_manifest) == ((), COUNT, 7)
