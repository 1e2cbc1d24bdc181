"""Environments on a node: built once, believed only when whole, the least recently used ones removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lockstep.runner.python_environment.cache import EnvironmentCache, Lease

SIZE = 1000


def _fill(target: Path) -> None:
    target.mkdir()
    (target / "content").write_bytes(bytes(SIZE))


def _lease(cache: EnvironmentCache, key: str) -> Lease:
    return cache.lease(key, build=_fill, on_wait=lambda: None)


def _kept(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def test_it_is_built_once(tmp_path: Path) -> None:
    cache = EnvironmentCache(tmp_path)
    builds: list[Path] = []

    def build(target: Path) -> None:
        builds.append(target)
        _fill(target)

    for _ in range(2):
        lease = cache.lease("a", build=build, on_wait=lambda: None)
        assert (lease.folder / "content").stat().st_size == SIZE
        lease.close()
    assert len(builds) == 1


def test_two_at_once_build_it_once_and_the_other_is_told_to_wait(tmp_path: Path) -> None:
    started, go_on, waits = threading.Event(), threading.Event(), threading.Event()
    builds: list[int] = []
    leases: list[Lease] = []

    def build(target: Path) -> None:
        builds.append(1)
        started.set()
        assert go_on.wait(10)
        _fill(target)

    def use() -> None:
        leases.append(EnvironmentCache(tmp_path).lease("a", build=build, on_wait=waits.set))

    threads = [threading.Thread(target=use) for _ in range(2)]
    threads[0].start()
    assert started.wait(10)
    threads[1].start()
    assert waits.wait(10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert builds == [1]
    assert len({lease.folder for lease in leases}) == 1
    for lease in leases:
        lease.close()


KILLED = """
import os, pathlib, signal, sys
from lockstep.runner.python_environment.cache import EnvironmentCache
def build(target):
    target.mkdir()
    (target / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
EnvironmentCache(pathlib.Path(sys.argv[1])).lease("a", build=build, on_wait=lambda: None)
"""


def test_what_a_killed_builder_left_is_not_believed(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.rglob("half"))
    lease = _lease(EnvironmentCache(tmp_path), "a")
    assert not list(tmp_path.rglob("half"))
    assert (lease.folder / "content").exists()
    lease.close()


def test_a_build_that_fails_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    cache = EnvironmentCache(tmp_path)

    def fail(target: Path) -> None:
        _fill(target)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.lease("a", build=fail, on_wait=lambda: None)
    assert _kept(tmp_path) == set()
    _lease(cache, "a").close()
    assert _kept(tmp_path) == {"a"}


def test_the_least_recently_used_one_goes_and_one_in_use_stays(tmp_path: Path) -> None:
    cache = EnvironmentCache(tmp_path, max_bytes=3 * SIZE + 500)
    in_use = _lease(cache, "a")
    for number, key in enumerate(("b", "c", "b")):
        _lease(cache, key).close()
        os.utime(tmp_path / f"{key}.lock", (1e9 + number, 1e9 + number))
    os.utime(tmp_path / "a.lock", (1e9 - 1, 1e9 - 1))
    _lease(cache, "d").close()
    assert _kept(tmp_path) == {"a", "b", "d"}
    in_use.close()
    _lease(cache, "e").close()
    assert _kept(tmp_path) == {"b", "d", "e"}


def test_downloads_go_where_environments_in_use_take_all_room(tmp_path: Path) -> None:
    cache = EnvironmentCache(tmp_path, max_bytes=SIZE)
    cache.downloads.mkdir()
    (cache.downloads / "wheel").write_bytes(bytes(SIZE))
    lease = _lease(cache, "a")
    assert not cache.downloads.exists()
    assert lease.folder.exists()
    lease.close()


def test_another_process_that_fetches_meanwhile_keeps_nobody_from_an_environment(tmp_path: Path) -> None:
    cache = EnvironmentCache(tmp_path, max_bytes=10**9)
    over = threading.Event()
    cache.downloads.mkdir()

    def fetch() -> None:
        while not over.is_set():
            for number in range(100):
                (cache.downloads / f"{number}").touch()
            for number in range(100):
                (cache.downloads / f"{number}").unlink()

    fetching = threading.Thread(target=fetch)
    fetching.start()
    try:
        for number in range(30):
            _lease(cache, f"key-{number}").close()
    finally:
        over.set()
        fetching.join()
