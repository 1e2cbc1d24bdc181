"""The conformance suite over each storage; the clouds' are servers of the test run on loopback."""

import io
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import pytest
import s3fs
from fsspec.implementations.memory import MemoryFileSystem
from gcsfs.core import GCSFileSystem
from tests.storage.servers import environment, gs_server, s3_server

from lockstep.errors import ConflictError, InvalidInputError
from lockstep.storage import AbstractBucket, RetryPolicy, open_bucket
from lockstep.storage.remote import AbstractRemoteBucket
from lockstep.testing.storage import AbstractStorageConformance


@final
class TestLocal(AbstractStorageConformance):
    def make_bucket(self, *, folder: Path) -> AbstractBucket:
        return open_bucket(folder.as_uri())


@final
class TestMemory(AbstractStorageConformance):
    def make_bucket(self, *, folder: Path) -> AbstractBucket:
        return open_bucket(f"memory://{uuid.uuid4().hex}/prefix")


@final
class ObjectsBehindFsspec(MemoryFileSystem):
    """An fsspec file system with what object stores promise: whole objects, many threads, readers of their own."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self._lock = threading.RLock()

    def find(self, path: str, **options: Any) -> Any:
        with self._lock:
            return super().find(path, **options)

    def info(self, path: str, **options: Any) -> Any:
        with self._lock:
            return super().info(path, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with self._lock:
            super().pipe_file(path, value, mode, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        with self._lock:
            super().cp_file(path1, path2, **options)

    def rm_file(self, path: str) -> None:
        with self._lock:
            super().rm_file(path)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        with self._lock:
            file = super()._open(path, mode, **options)
            return io.BytesIO(file.getvalue()) if mode == "rb" else file


@final
class BucketBehindFsspec(AbstractRemoteBucket):
    """What the clouds' buckets share, without a cloud."""

    def _connect(self, policy: RetryPolicy, *, num_attempts: int) -> Any:
        return ObjectsBehindFsspec()

    def _path_of_root(self) -> str:
        return "/root"


@final
class TestRemote(AbstractStorageConformance):
    def make_bucket(self, *, folder: Path) -> AbstractBucket:
        return BucketBehindFsspec("fake://root")


@pytest.fixture(scope="module")
def s3() -> Iterator[None]:
    with s3_server() as variables, environment(variables):
        s3fs.S3FileSystem(use_listings_cache=False).mkdir("bucket-of-tests")
        yield


@pytest.fixture(scope="module")
def gs() -> Iterator[None]:
    with gs_server() as variables, environment(variables):
        GCSFileSystem(use_listings_cache=False).mkdir("bucket-of-tests")
        yield


def make_twice(url: str) -> None:
    bucket = open_bucket(url)
    bucket.create()
    bucket.write("x", b"1")
    with pytest.raises(ConflictError, match=f"the bucket {url} already exists"):
        bucket.create()
    assert bucket.read("x") == b"1"
    with pytest.raises(
        InvalidInputError, match=f"a prefix of a bucket does not have to be created; .* allowed: {url}$"
    ):
        open_bucket(f"{url}/part").create()


@final
@pytest.mark.usefixtures("s3")
class TestS3(AbstractStorageConformance):
    num_rounds = 5

    def make_bucket(self, *, folder: Path) -> AbstractBucket:
        return open_bucket(f"s3://bucket-of-tests/{uuid.uuid4().hex}")

    def test_a_bucket_is_made_once(self) -> None:
        make_twice("s3://made-by-tests")


@final
@pytest.mark.usefixtures("gs")
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # gcsfs does
class TestGs(AbstractStorageConformance):
    num_rounds = 5

    def make_bucket(self, *, folder: Path) -> AbstractBucket:
        return open_bucket(f"gs://bucket-of-tests/{uuid.uuid4().hex}")

    def test_a_bucket_is_made_once(self) -> None:
        make_twice("gs://made-by-tests")
