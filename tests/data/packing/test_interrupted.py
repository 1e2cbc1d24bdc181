"""A run that is stopped anywhere is gone on with, and gives the same bytes as one that was not."""

import builtins
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from lockstep.data import FixedLenFeature, RawFeature, RecordSource, pack
from lockstep.data.packing import packer, placing
from lockstep.data.packing.journal import read_journal
from lockstep.errors import CorruptDataError, LockstepError, MissingInputError, StorageWriteError
from lockstep.storage import AbstractBucket, join_url, open_bucket
from lockstep.storage.base import StoredObject

FEATURES = {"image": RawFeature((4, 4), np.uint8), "label": FixedLenFeature((), np.int64)}
CREATED = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
COUNT = 70


class Stop(BaseException):
    """What ends a run at once, as a signal does."""


class StoppingBucket(AbstractBucket):
    """Another bucket, which stops the run at the n-th change, and refuses what follows: the process would be gone."""

    def __init__(self, inner: AbstractBucket, *, stop_at: int) -> None:
        super().__init__(inner.url)
        self._inner = inner
        self._left = stop_at

    def _change(self, act: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            raise Stop
        act()

    def _create(self) -> None:
        self._change(self._inner._create)

    def _read(self, key: str, start_byte: int, end_byte: int | None) -> bytes:
        return self._inner._read(key, start_byte, end_byte)

    def _write(self, key: str, data: bytes) -> None:
        self._change(lambda: self._inner._write(key, data))

    def _upload(self, key: str, source: Path) -> None:
        self._change(lambda: self._inner._upload(key, source))

    def _download(self, key: str, target: Path) -> None:
        self._inner._download(key, target)

    def _list(self, prefix: str, *, follows_links: bool) -> builtins.list[StoredObject]:
        return self._inner._list(prefix, follows_links=follows_links)

    def _size_bytes(self, key: str) -> int:
        return self._inner._size_bytes(key)

    def _open(self, key: str) -> BinaryIO:
        return self._inner._open(key)

    def _move(self, key: str, to: str) -> bool:
        self._change(lambda: self._inner._move(key, to))
        return False

    def _delete(self, key: str) -> None:
        self._change(lambda: self._inner._delete(key))


def examples(shift: int = 0) -> Iterator[dict[str, Any]]:
    for number in range(COUNT):
        yield {"image": np.full((4, 4), number, np.uint8), "label": number + shift}


def run(url: str, **changed: Any) -> None:
    options = {
        "name": "set",
        "split": {"train": 0.7, "test": 0.3},
        "features": FEATURES,
        "created": CREATED,
        "version": "1",
        "records_per_shard": 10,
        "num_workers": 1,
    }
    pack(examples(), url, **(options | changed))


def contents(url: str) -> dict[str, bytes]:
    bucket = open_bucket(url)
    return {item.key: bucket.read(item.key) for item in bucket.list()}


def check_nothing_looks_whole(url: str, labels: range) -> None:
    """What can be read as a data set is one: of one packing, with all of its records."""
    for split in ("train", "test"):
        try:
            source = RecordSource(join_url(url, f"set-{split}-*.tfrec"))
        except (MissingInputError, CorruptDataError):
            continue
        found = {bytes(source[number]) for number in range(len(source))}
        assert found in [WHOLE[shift][split] for shift in (0, labels.start)], "a mixture, or a part"


def whole(shift: int) -> dict[str, set[bytes]]:
    url = f"memory://{uuid.uuid4().hex}"
    run_shifted(url, shift)
    sources = {split: RecordSource(join_url(url, f"set-{split}-*.tfrec")) for split in ("train", "test")}
    return {split: {bytes(source[number]) for number in range(len(source))} for split, source in sources.items()}


def run_shifted(url: str, shift: int, **changed: Any) -> None:
    options = {"name": "set", "split": {"train": 0.7, "test": 0.3}, "features": FEATURES, "created": CREATED}
    pack(examples(shift), url, **(options | {"records_per_shard": 10, "num_workers": 1} | changed))


WHOLE: dict[int, dict[str, set[bytes]]] = {shift: whole(shift) for shift in (0, 1000)}


@pytest.mark.parametrize(
    ("replaces", "sized"), [(False, False), (False, True), (True, True)], ids=["unsized", "sized", "replacing"]
)
@pytest.mark.heavy
def test_a_run_that_is_stopped_at_any_change_goes_on(
    monkeypatch: pytest.MonkeyPatch, replaces: bool, sized: bool
) -> None:
    changed = {"num_examples": COUNT} if sized else {}
    expected_url = f"memory://{uuid.uuid4().hex}"
    run(expected_url, **changed)
    expected = contents(expected_url)
    stop_at = 0
    while True:
        stop_at += 1
        url = f"memory://{uuid.uuid4().hex}"
        if replaces:
            run_shifted(url, 1000)
        stopping = StoppingBucket(open_bucket(url), stop_at=stop_at)
        monkeypatch.setattr(packer, "open_bucket", lambda _, bucket=stopping: bucket)
        try:
            run(url, **changed)
        except Stop:
            monkeypatch.undo()
            check_nothing_looks_whole(url, range(1000, 1000 + COUNT))
            run(url, **changed)
            assert contents(url) == expected, f"stopped at change {stop_at}"
        else:
            monkeypatch.undo()
            assert contents(url) == expected
            break
    assert stop_at > 20


def test_what_is_finished_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setattr(packer, "open_bucket", lambda _: StoppingBucket(open_bucket(url), stop_at=10))
    with pytest.raises(Stop):
        run(url)
    monkeypatch.undo()
    journal = read_journal(open_bucket(url), "set")
    assert journal is not None
    num_finished = sum(shard.num_records for shard in journal.shards)
    assert num_finished == 30
    said: list[str] = []
    resumed: list[int] = []
    run(url, say=said.append, progress=lambda progress: resumed.append(progress.num_resumed))
    assert said == ["resuming after 3 finished shards with 30 records"]
    assert resumed[-1] == 30
    run(url, say=said.append)
    assert said[1:] == ["set is packed already, from the same source and with the same options: nothing to do"]


DIFFERENT = "starting from the beginning: the source or the options are not the same"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": "2"}, f"{DIFFERENT}; discarding 3 finished shards"),
        ({"records_per_shard": 11}, DIFFERENT),
        ({"split": {"train": 0.6, "test": 0.4}}, DIFFERENT),
        ({"compression": "GZIP"}, DIFFERENT),
        ({"version": None}, "starting from the beginning: it cannot be determined whether the source is the same"),
        ({"resume": False}, "starting from the beginning: as requested"),
    ],
)
def test_another_source_or_other_options_start_anew(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], message: str
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setattr(packer, "open_bucket", lambda _: StoppingBucket(open_bucket(url), stop_at=10))
    with pytest.raises(Stop):
        run(url)
    monkeypatch.undo()
    said: list[str] = []
    run(url, say=said.append, **changed)
    assert len(said) == 1
    assert said[0].startswith(message)
    fresh = f"memory://{uuid.uuid4().hex}"
    run(fresh, **changed)
    assert contents(url) == contents(fresh)


@pytest.mark.parametrize("damage", ["missing", "shorter", "journal"])
def test_what_is_no_longer_there_is_made_again(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    bucket = open_bucket(url)
    monkeypatch.setattr(packer, "open_bucket", lambda _: StoppingBucket(bucket, stop_at=10))
    with pytest.raises(Stop):
        run(url)
    monkeypatch.undo()
    key = next(item.key for item in bucket.list("set.packing/train"))
    if damage == "missing":
        bucket.delete(key)
    elif damage == "shorter":
        bucket.write(key, b"")
    else:
        bucket.write("set.packing/journal.json", b'{"format": 1}')
    said: list[str] = []
    run(url, say=said.append)
    assert said == ([] if damage == "journal" else [said[0]])
    if damage != "journal":
        assert "; no longer there: " in said[0]
    fresh = f"memory://{uuid.uuid4().hex}"
    run(fresh)
    assert contents(url) == contents(fresh)


def test_a_journal_that_somebody_made_up_is_none() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    bucket = open_bucket(url)
    shard = {"split": "../x", "skipped": [], "index": 1}
    made_up = {"format": 1, "fingerprint": "x", "created": "2030-01-01", "is_direct": True, "is_placing": True}
    for text in (b"", b"[]", b'{"format": 2}', json.dumps({**made_up, "shards": [shard]}).encode()):
        bucket.write("set.packing/journal.json", text)
        assert read_journal(bucket, "set") is None


CHILD = """
import sys
import numpy as np
from datetime import UTC, datetime
from lockstep.data import RawFeature, pack

def examples():
    for number in range(3000):
        yield {"value": np.random.default_rng(number).integers(0, 256, 500, np.uint8)}

pack(examples(), sys.argv[1], name="set", split={"train": 0.8, "test": 0.2}, version="1", bytes_per_shard=20_000,
     features={"value": RawFeature((500,))}, created=datetime(2030, 1, 1, tzinfo=UTC), num_workers=2)
"""
TIMEOUT_S = 60


@pytest.mark.heavy  # real processes; stops at each change, and a run that is interrupted by Ctrl-C, are not
def test_processes_that_are_killed_leave_what_one_run_makes(tmp_path: Path) -> None:
    env = {**os.environ, "LOCKSTEP_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    expected, found = str(tmp_path / "expected"), str(tmp_path / "found")
    command = [sys.executable, "-c", CHILD]
    subprocess.run([*command, expected], check=True, env=env, timeout=TIMEOUT_S)
    total = len(open_bucket(expected).list("set-"))
    choose = random.Random(4)
    kills = 0
    # Each life is killed when it has finished some more shards: how far it is within the next one is chance.
    for end in sorted(choose.sample(range(1, total - 2), 3)):
        process = subprocess.Popen([*command, found], env=env)
        deadline_s = time.monotonic() + TIMEOUT_S
        while process.poll() is None and len(open_bucket(found).list("set")) <= end:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        kills += process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert kills
    subprocess.run([*command, found], check=True, env=env, timeout=TIMEOUT_S)
    assert contents(found) == contents(expected)
    assert [path.name for path in tmp_path.glob("lockstep-pack-*")] == [], (
        "killed runs leave no temporary files for good"
    )


def test_an_error_of_the_source_can_be_mended_and_gone_on_with() -> None:
    url = f"memory://{uuid.uuid4().hex}"

    def breaking() -> Iterator[dict[str, Any]]:
        for number, example in enumerate(examples()):
            if number == 40:
                raise LockstepError("the network is gone")
            yield example

    options: dict[str, Any] = {"name": "set", "features": FEATURES, "version": "1", "created": CREATED}
    options |= {"records_per_shard": 10, "num_workers": 1}
    with pytest.raises(LockstepError, match="the network is gone"):
        pack(breaking(), url, **options)
    said: list[str] = []
    pack(examples(), url, say=said.append, **options)
    assert said == ["resuming after 3 finished shards with 30 records"]
    fresh = f"memory://{uuid.uuid4().hex}"
    pack(examples(), fresh, **options)
    assert contents(url) == contents(fresh)


@pytest.mark.parametrize("version", ["1", "2"])
def test_of_two_runs_at_once_the_first_gives_way(version: str) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    options: dict[str, Any] = {"name": "set", "features": FEATURES, "created": CREATED, "records_per_shard": 10}

    def overtaken() -> Iterator[dict[str, Any]]:
        for number, example in enumerate(examples()):
            if number == 35:
                pack(examples(), url, **options, num_workers=1, version=version)
            yield example

    with pytest.raises(StorageWriteError, match=f"another run is packing set into {url}; wait until it ends"):
        pack(overtaken(), url, **options, num_workers=1, version="1")
    fresh = f"memory://{uuid.uuid4().hex}"
    pack(examples(), fresh, **options, version=version)
    assert contents(url) == contents(fresh)


def test_a_run_whose_waiting_shards_were_taken_away_states_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    find_earlier_keys = placing.find_earlier_keys

    def taken_away(bucket: AbstractBucket, name: str, splits: Any) -> list[str]:
        open_bucket(url).delete(next(item.key for item in bucket.list("set.packing/train")))
        return find_earlier_keys(bucket, name, splits)

    monkeypatch.setattr(placing, "find_earlier_keys", taken_away)
    with pytest.raises(MissingInputError, match=r"there is no object .*/set.packing/train-00000.part"):
        run(url)
    assert [item.key for item in open_bucket(url).list() if item.key.endswith(".manifest.json")] == []
