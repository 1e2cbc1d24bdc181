"""The conformance suite of buckets: subclass `AbstractStorageConformance` in a test module."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import pytest

from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.storage import AbstractBucket


class AbstractStorageConformance(ABC):
    """The tests of a storage. Name the subclass ``Test…``, so that pytest collects it."""

    num_rounds: ClassVar[int] = 20
    """The number of times that each of several threads writes, reads and lists. Reduce it for slow servers."""

    @abstractmethod
    def make_bucket(self, *, folder: Path) -> AbstractBucket:
        """Returns an empty bucket that no other test uses.

        Args:
            folder: an empty folder that the bucket may use.
        """

    @pytest.fixture
    def bucket(self, tmp_path: Path) -> AbstractBucket:
        """An empty bucket."""
        return self.make_bucket(folder=tmp_path / "bucket")

    def test_reads_what_was_written(self, bucket: AbstractBucket) -> None:
        """A read returns the bytes of the last write, also for an empty object."""
        for data in (b"first", b"", bytes(range(256)) * 1000):
            bucket.write("a/b.bin", data)
            assert bucket.read("a/b.bin") == data
            assert bucket.size_bytes("a/b.bin") == len(data)

    def test_reads_ranges(self, bucket: AbstractBucket) -> None:
        """A range is half open, and ends at the end of the object."""
        bucket.write("x", b"0123456789")
        assert bucket.read("x", start_byte=3) == b"3456789"
        assert bucket.read("x", start_byte=3, end_byte=5) == b"34"
        assert bucket.read("x", end_byte=4) == b"0123"
        assert bucket.read("x", start_byte=8, end_byte=100) == b"89"
        assert bucket.read("x", start_byte=10) == b""
        assert bucket.read("x", start_byte=50, end_byte=60) == b""
        with pytest.raises(InvalidInputError):
            bucket.read("x", start_byte=-1)
        with pytest.raises(InvalidInputError):
            bucket.read("x", start_byte=5, end_byte=4)

    def test_a_range_of_what_is_absent_is_named(self, bucket: AbstractBucket) -> None:
        """Reading a range of a missing object raises an error that names it, even if the range is empty."""
        for start_byte, end_byte in ((0, 3), (5, None), (5, 9), (2, 2)):
            with pytest.raises(MissingInputError) as caught:
                bucket.read("gone", start_byte=start_byte, end_byte=end_byte)
            assert bucket.url_of("gone") in str(caught.value)
        bucket.write("empty", b"")
        assert bucket.read("empty", start_byte=0, end_byte=5) == b""
        assert bucket.read("empty", start_byte=0, end_byte=0) == b""

    def test_what_vanishes_after_it_was_listed_is_named(self, bucket: AbstractBucket, tmp_path: Path) -> None:
        """If an object is deleted between a listing and a read, the error names the missing object by its URL."""
        bucket.write("d/x", b"1")
        bucket.write("d/y", b"22")
        listed = bucket.list("d/")
        bucket.delete("d/y")
        assert bucket.read(listed[0].key) == b"1"
        for use in (
            lambda: bucket.read(listed[1].key),
            lambda: bucket.read(listed[1].key, start_byte=0, end_byte=1),
            lambda: bucket.download(listed[1].key, path=tmp_path / "y"),
            lambda: bucket.open(listed[1].key),
        ):
            with pytest.raises(MissingInputError, match=f"there is no object {bucket.url}/d/y"):
                use()
        assert [item.key for item in bucket.list()] == ["d/x"]

    def test_what_is_absent_is_named(self, bucket: AbstractBucket) -> None:
        """Reading a missing object raises an error with the full URL. A prefix of keys is not an object."""
        bucket.write("there/x", b"1")
        for key in ("gone", "there", "there/y", "there/x/deeper"):
            assert not bucket.exists(key)
            for read in (bucket.read, bucket.size_bytes, bucket.open):
                with pytest.raises(MissingInputError) as caught:
                    read(key)
                assert bucket.url_of(key) in str(caught.value)
        assert bucket.exists("there/x")

    def test_lists_by_prefix_sorted(self, bucket: AbstractBucket) -> None:
        """A listing is recursive and sorted. Its prefix is the beginning of keys, not a folder."""
        assert bucket.list() == []
        for key in ("b/2", "a", "b/10", "b/c/d", "bc"):
            bucket.write(key, key.encode())
        assert [item.key for item in bucket.list()] == ["a", "b/10", "b/2", "b/c/d", "bc"]
        assert [item.key for item in bucket.list("b")] == ["b/10", "b/2", "b/c/d", "bc"]
        assert [item.key for item in bucket.list("b/")] == ["b/10", "b/2", "b/c/d"]
        assert [item.key for item in bucket.list("b/1")] == ["b/10"]
        assert [item.key for item in bucket.list("b/c/")] == ["b/c/d"]
        assert bucket.list("none/") == []
        assert {item.key: item.size_bytes for item in bucket.list()}["b/c/d"] == 5
        assert all(item.modified_time_s > 1_500_000_000 for item in bucket.list())
        assert [bucket.folder_size_bytes(folder) for folder in ("b", "b/c", "none", "a")] == [12, 5, 0, 0]

    def test_delete_is_idempotent(self, bucket: AbstractBucket) -> None:
        """Deleting an object twice, or a prefix of keys as if it were an object, is not an error."""
        bucket.write("d/x", b"1")
        bucket.delete("d")
        bucket.delete("d/x/deeper")
        assert bucket.exists("d/x")
        bucket.delete("d/x")
        bucket.delete("d/x")
        assert bucket.list() == []
        bucket.write("d", b"a key that was a folder")
        assert bucket.read("d") == b"a key that was a folder"

    def test_moves(self, bucket: AbstractBucket) -> None:
        """A move replaces the object under the new key. Moving a missing object raises an error and changes nothing."""
        bucket.write("from/x", b"moved")
        bucket.write("y", b"in its way")
        bucket.move("from/x", to="y")
        assert [item.key for item in bucket.list()] == ["y"]
        assert bucket.read("y") == b"moved"
        bucket.move("y", to="new/folder/y")
        bucket.move("new/folder/y", to="new/folder/y")
        assert [item.key for item in bucket.list()] == ["new/folder/y"]
        for key in ("y", "new", "new/folder/y/deeper"):
            with pytest.raises(MissingInputError, match=f"there is no object {bucket.url}/{key}"):
                bucket.move(key, to="z")
        with pytest.raises(MissingInputError):
            bucket.move("z", to="z")
        with pytest.raises(InvalidInputError):
            bucket.move("new/folder/y", to="../y")
        assert [item.key for item in bucket.list()] == ["new/folder/y"]

    def test_readers_always_find_what_is_moved(self, bucket: AbstractBucket) -> None:
        """While objects are moved to one key in turn, a reader always finds a whole object there."""
        size_bytes = 50_000
        bucket.write("shared", b"0" * size_bytes)
        done = threading.Event()

        def work() -> None:
            try:
                for mark in b"123456":
                    bucket.write("next", bytes([mark]) * size_bytes)
                    bucket.move("next", to="shared")
            finally:
                done.set()

        thread = threading.Thread(target=work)
        thread.start()
        seen: list[bytes] = []
        while not done.is_set():
            seen.append(bucket.read("shared"))
        thread.join()
        assert all(len(data) == size_bytes and len(set(data)) == 1 for data in seen)
        assert bucket.read("shared") == b"6" * size_bytes
        assert [item.key for item in bucket.list()] == ["shared"]

    def test_delete_prefix(self, bucket: AbstractBucket) -> None:
        """Deletes the objects whose keys begin with the prefix, and nothing else."""
        for key in ("job1/a", "job1/b/c", "job10/a"):
            bucket.write(key, b"1")
        bucket.delete_prefix("job1/")
        assert [item.key for item in bucket.list()] == ["job10/a"]
        bucket.delete_prefix("")
        assert bucket.list() == []

    def test_opens_seekable(self, bucket: AbstractBucket) -> None:
        """An opened object is a seekable binary file."""
        bucket.write("x", b"0123456789")
        with bucket.open("x") as file:
            assert file.read(2) == b"01"
            assert file.seek(-3, 2) == 7
            assert file.read() == b"789"
            assert file.seek(4) == 4
            assert file.read(1) == b"4"
            assert file.tell() == 5
            assert file.seek(-2, 1) == 3
            assert file.read(100) == b"3456789"
            assert file.read(1) == b""
            assert file.seek(50) == 50
            assert file.read() == b""
            with pytest.raises((OSError, ValueError)):
                file.seek(-1)

    def test_opens_what_is_longer_than_a_buffer(self, bucket: AbstractBucket) -> None:
        """Reads across the boundaries of the read buffer, small and large, return what was written."""
        data = bytes(range(251)) * 40_000  # 10 MB
        bucket.write("x", data)
        with bucket.open("x") as file:
            assert b"".join(iter(lambda: file.read(1_000_003), b"")) == data
            for position in (8 << 20, 0, (8 << 20) - 3, len(data) - 2):
                file.seek(position)
                assert file.read(5) == data[position : position + 5]
            file.seek(1)
            assert file.read() == data[1:]

    def test_uploads_and_downloads(self, bucket: AbstractBucket, tmp_path: Path) -> None:
        """Files are uploaded and downloaded whole. A failed download leaves no file behind."""
        source = tmp_path / "source"
        source.write_bytes(b"abc" * 1000)
        bucket.upload("up/x", path=source)
        assert bucket.read("up/x") == b"abc" * 1000
        bucket.download("up/x", path=tmp_path / "down" / "x")
        assert (tmp_path / "down" / "x").read_bytes() == b"abc" * 1000
        with pytest.raises(MissingInputError):
            bucket.upload("up/y", path=tmp_path / "gone")
        with pytest.raises(MissingInputError):
            bucket.download("up/y", path=tmp_path / "down" / "y")
        assert [path.name for path in (tmp_path / "down").iterdir()] == ["x"]

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "..", "a/../b", ".", "a\0b", "a/.lockstep-tmp-1"])
    def test_refuses_bad_keys(self, bucket: AbstractBucket, key: str) -> None:
        """Every method rejects keys that could point outside the bucket, or that could not be listed."""
        for use in (bucket.read, bucket.exists, bucket.delete, bucket.open, bucket.url_of):
            with pytest.raises(InvalidInputError):
                use(key)
        with pytest.raises(InvalidInputError):
            bucket.write(key, b"")
        assert bucket.list() == []

    def test_check_writable_leaves_nothing(self, bucket: AbstractBucket) -> None:
        """The check deletes its probe object."""
        bucket.check_writable()
        assert bucket.list() == []

    def test_threads_see_whole_objects(self, bucket: AbstractBucket) -> None:
        """With several writers, a reader sees the bytes of one write, never a mixture. A listing never fails."""
        size_bytes = 50_000
        seen: list[bytes] = []
        failures: list[BaseException] = []
        bucket.write("shared", b"0" * size_bytes)

        def work(mark: bytes) -> None:
            try:
                for _ in range(self.num_rounds):
                    bucket.write("shared", mark * size_bytes)
                    bucket.write(f"own/{mark.decode()}", mark)
                    seen.append(bucket.read("shared"))
                    bucket.list()
                    bucket.delete(f"own/{mark.decode()}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(mark,)) for mark in (b"1", b"2", b"3")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == [], failures
        assert len(seen) == 3 * self.num_rounds
        assert all(len(data) == size_bytes and len(set(data)) == 1 for data in seen)
        assert [item.key for item in bucket.list()] == ["shared"]
