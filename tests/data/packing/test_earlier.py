"""Packing the same again does nothing, and nothing but the same is taken for it."""

import io
import os
import shutil
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from lockstep.data import FixedLenFeature, Packed, RecordSource, pack
from lockstep.data.packing.journal import JournalState, claim_journal
from lockstep.data.sources import AbstractSource, open_source
from lockstep.errors import CorruptDataError
from lockstep.storage import AbstractBucket, open_bucket

LONG_AGO_S = 1_600_000_000
CREATED = datetime(2030, 1, 1, tzinfo=UTC)
OPTIONS: dict[str, Any] = {"name": "set", "records_per_shard": 4}


def write(path: Path, text: str, *, time_s: float = LONG_AGO_S) -> str:
    path.write_text(text)
    os.utime(path, (time_s, time_s))
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    return write(tmp_path / "a.csv", "x\n" + "".join(f"{number}\n" for number in range(10, 20)))


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def again(source: str | AbstractSource, url: str, **changed: Any) -> tuple[bool, list[str]]:
    """Packs, and returns whether all was there, and what was said."""
    said: list[str] = []
    opened = open_source(source) if isinstance(source, str) else source
    packed = pack(opened, url, say=said.append, **(OPTIONS | changed))
    return packed.was_there, said


def test_the_same_again_does_nothing(table: str, url: str) -> None:
    first = pack(open_source(table), url, **OPTIONS)
    assert not first.was_there
    before = {item.key: item for item in open_bucket(url).list()}
    second = pack(open_source(table), url, **OPTIONS, num_workers=1)
    assert second == Packed(manifests=first.manifests, was_there=True)
    assert {item.key: item for item in open_bucket(url).list()} == before
    assert again(table, url) == (
        True,
        ["set is packed already, from the same source and with the same options: nothing to do"],
    )
    assert again(table, url, resume=False) == (False, [])


CHANGES: dict[str, Callable[[AbstractBucket, str], object]] = {
    "content": lambda _, table: write(Path(table), Path(table).read_text()[:-3] + "99\n", time_s=LONG_AGO_S + 1),
    "longer": lambda _, table: write(Path(table), Path(table).read_text() + "99\n"),
    "shard-missing": lambda bucket, _: bucket.delete("set-train-00001-of-00003-4.tfrec"),
    "shard-shorter": lambda bucket, _: bucket.write("set-train-00001-of-00003-4.tfrec", b"x"),
    "shard-too-many": lambda bucket, _: bucket.write("set-train-00000-of-00001-1.tfrec", b"x"),
    "manifest-missing": lambda bucket, _: bucket.delete("set-train.manifest.json"),
    "manifest-damaged": lambda bucket, _: bucket.write("set-train.manifest.json", b"{"),
    "interrupted-since": lambda bucket, _: claim_journal(
        bucket, "set", JournalState(fingerprint="x", created=CREATED, is_direct=False)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_all_there_or_has_changed_is_packed(table: str, url: str, change: str) -> None:
    again(table, url)
    CHANGES[change](open_bucket(url), table)
    was_there, said = again(table, url)
    assert not was_there
    reasons = {"content": "source or the options are", "longer": "source or the options are"}
    reasons |= dict.fromkeys(
        ["shard-missing", "shard-shorter", "shard-too-many"], "its files do not match its manifests"
    )
    assert len(said) == (change in reasons)
    assert all(reasons[change] in line and line.startswith("packing set again: ") for line in said)
    rows = [int(line) for line in Path(table).read_text().split()[1:]]
    assert len(RecordSource(f"{url}/set-train-*.tfrec")) == len(rows)
    assert again(table, url)[0], "which is there now"


@pytest.mark.parametrize(
    "changed",
    [
        {"records_per_shard": 5},
        {"compression": "GZIP"},
        {"shuffle": True},
        {"split": {"train": 0.5, "test": 0.5}},
        {"split": "all"},
        {"name": "other"},
        {"on_error": "skip"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_other_options_are_packed(table: str, url: str, changed: dict[str, Any]) -> None:
    again(table, url)
    assert not again(table, url, **changed)[0]
    assert again(table, url, **changed)[0]


def test_a_file_that_was_new_when_it_was_packed_is_packed_again(tmp_path: Path, url: str) -> None:
    now_s = time.time()
    path = write(tmp_path / "a.csv", "x\n1\n", time_s=now_s)
    again(path, url)
    write(tmp_path / "a.csv", "x\n2\n", time_s=now_s)  # of the same length, within the clock's step
    was_there, said = again(path, url)
    assert (was_there, said) == (
        False,
        ["packing set again: it cannot be determined whether its source has changed"],
    )
    records = RecordSource(f"{url}/set-train-*.tfrec")
    assert b"\x02" in bytes(records[0])


@pytest.mark.parametrize("time_s", [0, 4e9], ids=["unknown", "to-come"])
def test_times_that_tell_nothing_are_not_trusted(tmp_path: Path, url: str, time_s: float) -> None:
    path = write(tmp_path / "a.csv", "x\n1\n", time_s=time_s)
    assert [again(path, url)[0] for _ in range(3)] == [False] * 3


def test_a_file_elsewhere_is_another_source(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, text in (("one", "x\n1\n"), ("two", "x\n2\n")):
        (tmp_path / place).mkdir()
        write(tmp_path / place / "a.csv", text)
    monkeypatch.chdir(tmp_path / "one")
    again("a.csv", url)
    monkeypatch.chdir(tmp_path / "two")
    assert not again("a.csv", url)[0]


def image(value: int) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("L", (8, 8), value).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    folder = tmp_path / "Pets"
    for name in ("Cat", "Dog"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            (folder / name / f"{number}.png").write_bytes(image(number))
            os.utime(folder / name / f"{number}.png", (LONG_AGO_S, LONG_AGO_S))
    return folder


def test_a_folder_is_the_same_where_all_its_files_are(pets: Path, url: str) -> None:
    assert [again(str(pets), url)[0] for _ in range(2)] == [False, True]
    (pets / "Cat" / "1.png").write_bytes(image(9))
    os.utime(pets / "Cat" / "1.png", (LONG_AGO_S + 5, LONG_AGO_S + 5))
    assert [again(str(pets), url)[0] for _ in range(2)] == [False, True]
    (pets / "Dog" / "2.png").rename(pets / "Dog" / "3.png")
    assert [again(str(pets), url)[0] for _ in range(2)] == [False, True]


def test_what_was_left_out_has_to_be_allowed_now(pets: Path, url: str) -> None:
    (pets / "Cat" / "1.png").write_bytes(b"")
    os.utime(pets / "Cat" / "1.png", (LONG_AGO_S, LONG_AGO_S))
    assert [again(str(pets), url, on_error="skip")[0] for _ in range(2)] == [False, True]
    with pytest.raises(CorruptDataError, match="more than 0 damaged items"):
        again(str(pets), url, on_error="skip", max_skipped=0)


def test_arrays_and_archives(pets: Path, tmp_path: Path, url: str) -> None:
    np.save(tmp_path / "x.npy", np.arange(20))
    os.utime(tmp_path / "x.npy", (LONG_AGO_S, LONG_AGO_S))
    assert [again(str(tmp_path / "x.npy"), url)[0] for _ in range(2)] == [False, True]
    archive = shutil.make_archive(str(tmp_path / "pets"), "zip", pets)
    assert [again(archive, url)[0] for _ in range(2)] == [False, True], "checksums tell, new as it is"


def test_examples_are_the_same_where_their_version_is(url: str) -> None:
    def packed(version: str | None) -> bool:
        examples = [{"x": number} for number in range(10)]
        features = {"x": FixedLenFeature((), np.int64)}
        return pack(examples, url, **OPTIONS, features=features, version=version).was_there

    assert [packed(version) for version in ("1", "1", "2", "2", None, None)] == [False, True, False, True, False, False]
