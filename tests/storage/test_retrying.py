"""How often and how long it is tried again, on a clock of the test."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import pytest

from lockstep.errors import InvalidInputError, MissingInputError, StorageError, StorageWriteError
from lockstep.storage import RetryPolicy, StoredObject
from lockstep.storage.local import LocalBucket
from lockstep.storage.retrying import Attempts


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses: list[float] = []

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s

    def policy(self, **options: Any) -> RetryPolicy:
        given = {"monotonic_s": lambda: self.now_s, "sleep": self.sleep, "chance": lambda: 1.0}
        return RetryPolicy(**(given | options))


def test_pauses_double_up_to_the_longest_and_end_in_time() -> None:
    clock = Clock()
    attempts = Attempts(clock.policy(deadline_s=30, first_pause_s=0.5, longest_pause_s=4))
    while attempts.count_failure_and_wait():
        pass
    assert clock.pauses == [0.5, 1, 2, 4, 4, 4, 4, 4, 4]
    assert sum(clock.pauses) <= 30
    assert str(attempts) == "10 attempts over 28 s"


def test_pauses_are_cut_by_chance_to_between_a_half_and_the_whole() -> None:
    for chance, pause_s in ((0.0, 1.0), (0.5, 1.5), (1.0, 2.0)):
        clock = Clock()
        Attempts(clock.policy(first_pause_s=2, chance=lambda chance=chance: chance)).count_failure_and_wait()
        assert clock.pauses == [pause_s]


def test_the_deadline_counts_from_the_first_failure() -> None:
    clock = Clock()
    attempts = Attempts(clock.policy(deadline_s=10, first_pause_s=1))
    clock.now_s += 300  # a long upload, broken off at its end
    assert attempts.count_failure_and_wait()


def test_no_time_is_one_attempt() -> None:
    clock = Clock()
    attempts = Attempts(clock.policy(deadline_s=0, first_pause_s=0))
    assert not attempts.count_failure_and_wait()
    assert clock.pauses == []
    assert str(attempts) == "1 attempt over 0.0 s"


@pytest.mark.parametrize("name", ["deadline_s", "first_pause_s", "longest_pause_s", "read_timeout_s"])
def test_bad_numbers_are_named(name: str) -> None:
    options: dict[str, Any] = {name: -1}
    with pytest.raises(InvalidInputError, match=f"{name}; received -1"):
        RetryPolicy(**options)
    with pytest.raises(InvalidInputError, match="connect_timeout_s; received 0; allowed: above 0"):
        RetryPolicy(connect_timeout_s=0)


@final
class Stumbling(LocalBucket):  # type: ignore[misc] - a test's own, of a final class
    """A folder that fails for the first few calls."""

    error: OSError
    num_failures = 0
    num_calls = 0

    def _stumble(self, call: Callable[[], Any]) -> Any:
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            raise self.error
        return call()

    def _read(self, key: str, start_byte: int, end_byte: int | None) -> bytes:
        return self._stumble(lambda: super(Stumbling, self)._read(key, start_byte, end_byte))

    def _write(self, key: str, data: bytes) -> None:
        self._stumble(lambda: super(Stumbling, self)._write(key, data))

    def _upload(self, key: str, source: Path) -> None:
        self._stumble(lambda: super(Stumbling, self)._upload(key, source))

    def _download(self, key: str, target: Path) -> None:
        self._stumble(lambda: super(Stumbling, self)._download(key, target))

    def _list(self, prefix: str, *, follows_links: bool) -> list[StoredObject]:
        return self._stumble(lambda: super(Stumbling, self)._list(prefix, follows_links=follows_links))

    def _size_bytes(self, key: str) -> int:
        return self._stumble(lambda: super(Stumbling, self)._size_bytes(key))

    def _open(self, key: str) -> Any:
        return self._stumble(lambda: super(Stumbling, self)._open(key))

    def _move(self, key: str, to: str) -> bool:
        return self._stumble(lambda: super(Stumbling, self)._move(key, to))

    def _delete(self, key: str) -> None:
        self._stumble(lambda: super(Stumbling, self)._delete(key))


CALLS: dict[str, Callable[[Stumbling, Path], object]] = {
    "read": lambda bucket, folder: bucket.read("x"),
    "write": lambda bucket, folder: bucket.write("y", b"new"),
    "upload": lambda bucket, folder: bucket.upload("y", path=folder / "x"),
    "download": lambda bucket, folder: bucket.download("x", path=folder / "copy"),
    "list": lambda bucket, folder: bucket.list(),
    "size": lambda bucket, folder: bucket.size_bytes("x"),
    "exists": lambda bucket, folder: bucket.exists("x"),
    "open": lambda bucket, folder: bucket.open("x").close(),
    "move": lambda bucket, folder: bucket.move("x", to="y"),
    "delete": lambda bucket, folder: bucket.delete("x"),
    "check_writable": lambda bucket, folder: bucket.check_writable(),
}


def stumbling(folder: Path, clock: Clock, error: OSError, num_failures: int) -> Stumbling:
    (folder / "x").write_bytes(b"there")
    bucket = Stumbling(str(folder), policy=clock.policy(deadline_s=20, first_pause_s=1))
    bucket.error, bucket.num_failures = error, num_failures
    return bucket


@pytest.mark.parametrize("call", CALLS)
def test_every_call_goes_on_where_the_failure_passes(call: str, tmp_path: Path) -> None:
    clock = Clock()
    bucket = stumbling(tmp_path, clock, OSError(errno.ESTALE, "Stale file handle"), 3)
    CALLS[call](bucket, tmp_path)
    assert clock.pauses == [1, 2, 4]


def test_waiting_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stumbling(tmp_path, Clock(), OSError(errno.ESTALE, "Stale file handle"), 3).read("x")
    assert caplog.messages == []
    with pytest.raises(StorageError):
        stumbling(tmp_path, Clock(), OSError(errno.ESTALE, "Stale file handle"), 1000).read("x")
    assert caplog.messages == [f"cannot read {tmp_path}/x: Stale file handle; retrying"]


@pytest.mark.parametrize("call", CALLS)
def test_every_call_ends_named_where_it_does_not(call: str, tmp_path: Path) -> None:
    clock = Clock()
    bucket = stumbling(tmp_path, clock, OSError(errno.ETIMEDOUT, "Connection timed out"), 1000)
    with pytest.raises(StorageError) as caught:
        CALLS[call](bucket, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert str(caught.value).endswith("gave up after 5 attempts over 15 s; last error: Connection timed out")
    writes = ("write", "upload", "move", "delete", "check_writable")
    assert isinstance(caught.value, StorageWriteError) == (call in writes)
    assert not (tmp_path / "copy").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("call", CALLS)
def test_what_stays_so_is_not_tried_again(call: str, tmp_path: Path) -> None:
    clock = Clock()
    for error in (OSError(errno.ENOSPC, "No space left on device"), PermissionError(errno.EACCES, "Permission denied")):
        bucket = stumbling(tmp_path, clock, error, 1000)
        with pytest.raises(StorageError, match=error.strerror):
            CALLS[call](bucket, tmp_path)
        assert bucket.num_calls == 1
    bucket = stumbling(tmp_path, clock, FileNotFoundError(), 1000)
    with pytest.raises(MissingInputError, match=f"there is no object {tmp_path}/x"):
        bucket.read("x")
    assert bucket.num_calls == 1
    assert clock.pauses == []
