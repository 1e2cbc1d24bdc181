"""What packings leave: splits of an earlier one beside those of a later one, and one that was interrupted."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.data import FixedLenFeature, pack, read_manifest, verify
from lockstep.data.finding import find_packed
from lockstep.data.packing.leftovers import describe_earlier
from lockstep.errors import MissingInputError
from lockstep.storage import open_bucket

FEATURES = {"number": FixedLenFeature((), np.int64)}
EXAMPLES = [{"number": number} for number in range(60)]
NOTE = "was packed at 2030-01-0{} 00:00:00 UTC {}: its records may be {} too; delete its files if they are out of date"


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def pack_on(day: int, url: str, **options: Any) -> None:
    options = {"name": "set", "features": FEATURES, "origin": "numbers", **options}
    pack(EXAMPLES, url, created=datetime(2030, 1, day, tzinfo=UTC), **options)


def test_a_split_of_an_earlier_packing_of_the_same_source_is_told(url: str) -> None:
    pack_on(1, url, split={"train": 0.8, "test": 0.2})
    assert find_packed(url).notes == ()
    pack_on(2, url, split={"train": 0.9, "val": 0.1})
    source = "from the same source as set-train and set-val at 2030-01-02 00:00:00 UTC"
    for notes in (find_packed(url).notes, verify(url).notes, find_packed(f"{url}/*.tfrec").notes):
        assert notes == (f"{url}/set-test " + NOTE.format(1, source, "there"),)
    assert find_packed(f"{url}/set-train").notes == ()
    verify(url).raise_damage()


def test_packings_within_one_moment_are_told_apart_by_their_options(url: str) -> None:
    pack_on(1, url, split={"train": 0.8, "test": 0.2})
    pack_on(1, url, split={"train": 0.9, "val": 0.1})
    (note,) = find_packed(url).notes
    assert "from the same source as" in note


def test_a_split_whose_partner_was_replaced_is_told_though_the_source_has_changed(url: str) -> None:
    pack_on(1, url, split={"train": 0.8, "test": 0.2}, origin="60 numbers")
    pack_on(2, url, split={"train": 0.9, "val": 0.1}, origin="61 numbers")
    partner = "together with another set-train than is here now, of 2030-01-02 00:00:00 UTC"
    assert find_packed(url).notes == (f"{url}/set-test " + NOTE.format(1, partner, "in that"),)


@pytest.mark.parametrize("origins", [("one", "two"), ("", "")])
def test_parts_that_were_packed_one_by_one_are_not_told(url: str, origins: tuple[str, str]) -> None:
    pack_on(1, url, split="train", origin=origins[0])
    pack_on(2, url, split="test", origin=origins[1])
    assert find_packed(url).notes == ()


def test_data_sets_of_other_names_and_in_other_folders_are_their_own(url: str) -> None:
    pack_on(1, f"{url}/a", split="train")
    pack_on(2, f"{url}/b", split="test")
    pack_on(3, f"{url}/a", split="test", name="other")
    assert find_packed(url).notes == ()
    manifests = {
        f"b/set-{name}": read_manifest(f"{url}/{folder}", name="set", split=name)
        for folder, name in (("a", "train"), ("b", "test"))
    }
    assert len(describe_earlier(manifests)) == 1


class Stop(BaseException):
    """Ends a packing as Ctrl-C does."""


def stopped(num_examples: int) -> Iterator[dict[str, int]]:
    yield from EXAMPLES[:num_examples]
    raise Stop


def interrupt(url: str, *, at: int, **options: Any) -> None:
    options = {"num_examples": 60, "num_shards": 6, "split": "train", "version": "1", "num_workers": 1, **options}
    with pytest.raises(Stop):
        pack(stopped(at), url, name="my-set", features=FEATURES, created=datetime(2030, 1, 1, tzinfo=UTC), **options)


BEGUN = "my-set: its packing, begun 2030-01-01 00:00:00 UTC, was interrupted or still runs"


@pytest.mark.parametrize("target", ["", "/my-set-train", "/my-set-train-*.tfrec", "/**/*"])
def test_an_interrupted_packing_is_told_with_how_far_it_came(tmp_path: Path, target: str) -> None:
    url = f"{tmp_path}/b"
    interrupt(url, at=45)
    num_shards = len(open_bucket(url).list("my-set-train-"))
    assert 0 < num_shards < 6
    report = verify(url + target)
    (note,) = report.notes
    assert note.startswith(f"{url}/{BEGUN} (last sign of it: ")
    assert note.endswith(
        f"; finished shards: train {num_shards} of 6 ({10 * num_shards} records); the same command resumes it"
    )
    with pytest.raises(MissingInputError) as caught:
        report.raise_damage()
    assert str(caught.value).startswith(f"{url}/my-set-train: {num_shards} of 6 shards found, missing 0000")
    assert str(caught.value).endswith("; its packing run is unfinished; run the same command again to resume it")


def test_a_packing_of_which_nothing_is_in_its_place_is_told(url: str) -> None:
    interrupt(url, at=45, num_examples=None, num_shards=None, records_per_shard=10)
    num_shards = len(open_bucket(url).list("my-set.packing/train-"))
    with pytest.raises(MissingInputError) as caught:
        find_packed(url)
    assert str(caught.value).startswith(f"no packed file is at {url} yet; {url}/{BEGUN}")
    assert f"; finished shards: train {num_shards} ({10 * num_shards} records); the same" in str(caught.value)
    with pytest.raises(MissingInputError, match=r"BUCKET/NAME-train"):
        find_packed(f"{url}/my-set-val")


def test_an_earlier_packing_stays_whole_while_another_one_waits(url: str) -> None:
    pack(EXAMPLES, url, name="my-set", split="train", features=FEATURES, num_shards=6)
    interrupt(url, at=5, version=None)
    report = verify(url)
    report.raise_damage()
    (note,) = report.notes
    assert note.endswith(
        "; finished shards: none; packing it again starts from the beginning: it cannot be determined whether the "
        "source is the same"
    )
    assert find_packed(f"{url}/my-set-train").notes == ()  # nothing of it is finished


def test_a_journal_that_cannot_be_used_is_told(url: str) -> None:
    interrupt(url, at=45)
    open_bucket(url).write("my-set.packing/journal.json", b"{")
    (note,) = find_packed(url).notes
    assert note == (
        f"{url}/my-set: its packing was interrupted, and what it left in {url}/my-set.packing/ cannot be resumed: "
        "the same command starts from the beginning"
    )


def test_another_data_set_with_the_same_beginning_is_not_meant(url: str) -> None:
    interrupt(url, at=45)  # my-set.packing
    pack(EXAMPLES, url, name="my", split="set-val", features=FEATURES, num_shards=2)
    assert find_packed(f"{url}/my-set-val").notes == ()
