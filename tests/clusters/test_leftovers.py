"""Segments that a bucket refused go from one node's disk to another's: each is there once, none is lost in between."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import pytest
from typing_extensions import override

from lockstep.clusters.ray import driver as drivers
from lockstep.clusters.ray.driver import Driver
from lockstep.clusters.ray.leftovers import AbstractLocalLeftovers, copy_leftovers, has_leftovers
from lockstep.errors import CorruptDataError
from lockstep.jobs.running.orders import GANG_ORDER, GangOrder, ReplicaOrder
from lockstep.spools import segments_of

SEGMENTS = {
    "log/000000000000.jsonl": b"first\n",
    "log/000000000001.jsonl": b"second\n",
    "metrics/001732270000123.jsonl": b"sample\n",
}


@final
class OtherDisk(AbstractLocalLeftovers):
    """A node whose disk is another folder: the paths that it is asked for are below it.

    Attributes:
        gone: a segment that somebody else has carried since it was asked for its segments.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.gone: str | None = None

    def path(self, spool: str) -> Path:
        return self._folder / spool.lstrip("/")

    @override
    def list_segments(self, spool: str) -> list[str]:
        return [*([] if self.gone is None else [self.gone]), *super().list_segments(str(self.path(spool)))]

    @override
    def has_file(self, path: str) -> bool:
        return super().has_file(str(self.path(path)))

    @override
    def read_segment(self, spool: str, name: str) -> bytes:
        return super().read_segment(str(self.path(spool)), name)

    @override
    def remove_segment(self, spool: str, name: str) -> None:
        super().remove_segment(str(self.path(spool)), name)


@final
class OwnDisk(AbstractLocalLeftovers):
    """The node that asks."""


@pytest.fixture
def order(tmp_path: Path) -> ReplicaOrder:
    return ReplicaOrder(
        name="worker-replica-0",
        role="worker",
        index=0,
        job="j",
        command=("true",),
        spool=str(tmp_path / "here" / "gang" / "worker-replica-0"),
        log_url=str(tmp_path / "bucket" / "log"),
        metrics_url=str(tmp_path / "bucket" / "metrics"),
    )


@pytest.fixture
def there(tmp_path: Path, order: ReplicaOrder) -> OtherDisk:
    disk = OtherDisk(tmp_path / "there")
    fill(disk.path(order.spool))
    (disk.path(order.spool) / "runner.log").write_text("said")
    return disk


def fill(spool: Path) -> None:
    for name, data in SEGMENTS.items():
        (spool / name).parent.mkdir(parents=True, exist_ok=True)
        (spool / name).write_bytes(data)


def content(spool: str) -> dict[str, bytes]:
    return {name: Path(spool, name).read_bytes() for name in segments_of(Path(spool))}


def test_all_of_it_comes_with_the_orders_own_urls(order: ReplicaOrder, there: OtherDisk) -> None:
    (there.path(order.spool) / "log" / "url").write_text("somebody://else")
    assert copy_leftovers(there, order=order) == sum(map(len, SEGMENTS.values()))
    assert content(order.spool) == SEGMENTS
    assert Path(order.spool, "log", "url").read_text() == order.log_url
    assert Path(order.spool, "metrics", "url").read_text() == order.metrics_url
    assert has_leftovers([order])
    assert not there.path(order.spool).exists(), "nothing is left behind"
    assert copy_leftovers(there, order=order) == 0, "asked again, it has nothing to do"
    assert content(order.spool) == SEGMENTS


def test_it_comes_in_parts(order: ReplicaOrder, there: OtherDisk) -> None:
    num_calls = 0
    while num_bytes := copy_leftovers(there, order=order, at_most_bytes=1):
        assert num_bytes == len(list(SEGMENTS.values())[num_calls])
        num_calls += 1
        assert len(segments_of(Path(order.spool))) == num_calls
    assert num_calls == len(SEGMENTS)
    assert content(order.spool) == SEGMENTS


def test_what_is_on_the_same_disk_stays_as_it_is(order: ReplicaOrder) -> None:
    fill(Path(order.spool))
    before = sorted(str(path) for path in Path(order.spool).rglob("*"))
    assert copy_leftovers(OwnDisk(), order=order) == 0
    assert content(order.spool) == SEGMENTS
    assert sorted(str(path) for path in Path(order.spool).rglob("*")) == before


def test_without_anything_left_no_folder_is_made(order: ReplicaOrder, tmp_path: Path) -> None:
    assert copy_leftovers(OtherDisk(tmp_path / "there"), order=order) == 0
    assert not (tmp_path / "here").exists()
    assert not has_leftovers([order])


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda spool: (spool / "log").write_text("a file where the folder should be"), id="no folder"),
        pytest.param(lambda spool: (spool / "log" / "url").mkdir(parents=True), id="no file"),
    ],
)
def test_a_disk_that_refuses_leaves_it_where_it_is(
    order: ReplicaOrder, there: OtherDisk, break_it: Callable[[Path], object]
) -> None:
    Path(order.spool).mkdir(parents=True)
    break_it(Path(order.spool))
    with pytest.raises(OSError, match="log"):
        copy_leftovers(there, order=order)
    assert content(str(there.path(order.spool))) == SEGMENTS
    shutil.rmtree(Path(order.spool).parent)
    assert copy_leftovers(there, order=order) == sum(map(len, SEGMENTS.values()))
    assert content(order.spool) == SEGMENTS


def test_what_its_runner_or_another_carried_meanwhile_is_passed_over(order: ReplicaOrder, there: OtherDisk) -> None:
    there.gone = "log/000000000009.jsonl"
    assert copy_leftovers(there, order=order) == sum(map(len, SEGMENTS.values()))
    assert content(order.spool) == SEGMENTS


def test_a_disk_that_cannot_be_looked_at_keeps_no_gang_from_its_end(
    order: ReplicaOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(Path(order.spool))
    assert has_leftovers([order])

    def refuse(path: Any) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", refuse)
        assert not has_leftovers([order])


@pytest.mark.parametrize("name", ["../../x.jsonl", "log/../../x.jsonl", "work/0.jsonl", "log/url", "log/.jsonl"])
def test_a_name_that_is_no_segments_is_refused(order: ReplicaOrder, tmp_path: Path, name: str) -> None:
    @final
    class Lying(AbstractLocalLeftovers):
        @override
        def list_segments(self, spool: str) -> list[str]:
            return [name]

        @override
        def has_file(self, path: str) -> bool:
            return False

        @override
        def read_segment(self, spool: str, name: str) -> bytes:
            return b"x"

    with pytest.raises(CorruptDataError, match="worker-replica-0 left a file that is not a segment"):
        copy_leftovers(Lying(), order=order)
    assert not any((tmp_path / "here").rglob("*"))


@pytest.fixture
def gang(order: ReplicaOrder) -> GangOrder:
    other = replace(order, name="worker-replica-1", spool=order.spool.removesuffix("0") + "1")
    return GangOrder(gang_id="gang", replicas=(order, other))


@pytest.fixture
def driver(there: OtherDisk, gang: GangOrder, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver of an engine whose only gang's supervisor is on the other node."""
    fill(there.path(gang.replicas[1].spool))
    made = Driver()

    def find(gang_id: str) -> Any:
        return there

    monkeypatch.setattr(made, "_find", find)
    monkeypatch.setattr(drivers, "RemoteLeftovers", lambda supervisor: supervisor)
    return made


def bring(driver: Driver, gang: GangOrder) -> bool:
    return driver.collect_leftovers(order=GANG_ORDER.dump_json(gang).decode())


def test_what_one_replica_has_left_waits_for_no_other(
    driver: Driver, there: OtherDisk, gang: GangOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = gang.replicas
    list_before = there.list_segments

    def list_segments(spool: str) -> list[str]:
        return ["log/no-segment"] if spool == first.spool else list_before(spool)

    monkeypatch.setattr(there, "list_segments", list_segments)
    assert bring(driver, gang)
    assert content(first.spool) == {}
    assert content(second.spool) == SEGMENTS


def test_what_a_gang_has_left_comes_in_parts_however_many_replicas_it_has(
    driver: Driver, gang: GangOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "COLLECT_BYTES", 1)
    num_calls = 0
    while not bring(driver, gang):
        num_calls += 1
        assert sum(len(content(replica.spool)) for replica in gang.replicas) == num_calls
    assert num_calls == 2 * len(SEGMENTS)


def test_a_disk_that_refuses_for_too_long_holds_no_gang_for_ever(
    driver: Driver, there: OtherDisk, gang: GangOrder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here").write_text("a file where the folder should be")
    assert not bring(driver, gang)
    monkeypatch.setattr(drivers, "COLLECT_TIMEOUT_S", 0.0)
    assert bring(driver, gang)
    assert content(str(there.path(gang.replicas[0].spool))) == SEGMENTS, "nothing of it was dropped"


def test_how_long_a_disk_refuses_is_counted_from_when_it_last_took_something(
    driver: Driver, gang: GangOrder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here").write_text("a file where the folder should be")
    assert not bring(driver, gang)
    (tmp_path / "here").unlink()
    monkeypatch.setattr(drivers, "COLLECT_BYTES", 1)
    assert not bring(driver, gang)
    assert driver._refused_since_s == {}
