import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from typer.testing import CliRunner

from lockstep.cli.data import app
from lockstep.data import (
    FixedLenSequenceFeature,
    Manifest,
    RaggedFeature,
    Shard,
    SparseFeature,
    VarLenFeature,
    encode_example,
    frame,
)
from lockstep.errors import (
    CorruptDataError,
    InvalidInputError,
    LockstepError,
    MissingInputError,
)
from lockstep.storage import open_bucket


def run(*arguments: str) -> str:
    """Runs ``lockstep data`` and returns what it printed; Lockstep's errors are raised, for `main` to print."""
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, LockstepError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return str(tmp_path / "bucket")


def test_inspect_shows_what_is_packed(bucket: str) -> None:
    run("pack", "digits", bucket, "--shards", "2")
    shown = run("inspect", bucket, "--limit", "1")
    for line in (
        "feature image: uint8, 28 x 28, kept as its bytes",
        "feature label: int64, one value",
        "  label: 0",
    ):
        assert line in shown.splitlines()
    assert "digits-train: 1,438 records in 2 files" in shown
    assert "from the handwritten digits of scikit-learn" in shown
    assert "digits-test-00001-of-00002-179.tfrec" in shown
    assert "  image: uint8, 28 x 28, 0 to 255, mean" in shown
    only_test = run("inspect", f"{bucket}/digits-test-*", "--limit", "0")
    assert "digits-test: 359 records" in only_test
    assert "digits-train" not in only_test
    assert "record 0" not in only_test


def test_inspect_shows_records_of_which_nothing_is_known(bucket: str) -> None:
    records: list[dict[str, Any]] = [
        {"text": "a line", "floats": [0.5, 1.0], "blob": bytes(range(20)), "many": list(range(100))},
        {"text": ["a", "b"], "none": []},
    ]
    open_bucket(bucket).write("notes.tfrecord", b"".join(frame(encode_example(record)) for record in records))
    shown = run("inspect", f"{bucket}/notes.tfrecord").splitlines()
    assert shown[0].startswith("notes.tfrecord: 2 records in 1 files, ")
    assert shown[1] == "no manifest"
    assert shown[shown.index("record 0") :] == [
        "record 0",
        "  blob: 20 bytes: 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f ...",
        "  floats: [0.5, 1.0]",
        "  many: int64, 100, 0 to 99, mean 49.5",
        "  text: 'a line'",
        "record 1",
        "  none: []",
        "  text: 'a', 'b'",
        "",
    ]


def test_inspect_draws_a_contact_sheet(bucket: str, tmp_path: Path) -> None:
    run("pack", "digits", bucket, "--shards", "1")
    shown = run("inspect", bucket, "--contact-sheet", str(tmp_path / "sheet.png"), "--limit", "12")
    assert shown.splitlines()[-1] == f"images are in {tmp_path}/sheet.png"
    assert "record 0" not in shown
    with PIL.Image.open(tmp_path / "sheet.png") as sheet:
        # Two data sets of twelve, five a row: a heading, and three rows of images with captions.
        assert sheet.size == (6 + 5 * 102, 6 + 2 * (26 + 3 * 118))
        assert sheet.format == "PNG"
    with pytest.raises(InvalidInputError, match=r"--contact-sheet draws a PNG; received 'x\.jpg'"):
        run("inspect", bucket, "--contact-sheet", "x.jpg")


def damage(bucket: str, key: str, position: int) -> None:
    data = bytearray(open_bucket(bucket).read(key))
    data[position] ^= 1
    open_bucket(bucket).write(key, bytes(data))


SHARD = "digits-test-00000-of-00001-359.tfrec"


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (3, "record 0 at byte 0: the checksum of its length does not match"),
        (30, "record 0 at byte 0: the checksum of its data does not match"),
    ],
)
def test_inspect_reports_damage_in_a_line(bucket: str, position: int, message: str) -> None:
    run("pack", "digits", bucket, "--shards", "1")
    damage(bucket, SHARD, position)
    with pytest.raises(CorruptDataError) as caught:
        run("inspect", f"{bucket}/{SHARD}")
    assert str(caught.value).startswith(f"{bucket}/{SHARD}: {message}")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 65


def test_verify_says_that_all_is_sound(bucket: str) -> None:
    run("pack", "digits", bucket, "--shards", "2")
    (line,) = run("verify", bucket).splitlines()
    assert re.fullmatch(r"1,797 of 1,797 records in 4 files are sound; 1\.\d MB in \S+ s, .*B/s", line)
    open_bucket(bucket).delete("digits-test.manifest.json")
    assert run("verify", bucket).splitlines()[1] == "of 2 files no manifest states a checksum"


def test_verify_names_every_damaged_record_and_ends_with_the_error(bucket: str) -> None:
    run("pack", "digits", bucket, "--shards", "1")
    size_bytes = open_bucket(bucket).size_bytes(SHARD)
    record_bytes = size_bytes // 359
    damage(bucket, SHARD, size_bytes - 30)
    with pytest.raises(CorruptDataError) as caught:
        run("verify", bucket)
    assert str(caught.value).startswith(
        f"{bucket}/{SHARD}: record 358 at byte {record_bytes * 358}: the checksum of its"
    )
    damage(bucket, SHARD, 30)
    damage(bucket, "digits-train-00000-of-00001-1438.tfrec", 3)
    result = CliRunner().invoke(app, ["verify", bucket])
    lines = result.output.splitlines()
    assert [line.split(": the checksum of its ")[0] for line in lines[:3]] == [
        f"{bucket}/{SHARD}: record 0 at byte 0",
        f"{bucket}/{SHARD}: record 358 at byte {record_bytes * 358}",
        f"{bucket}/digits-train-00000-of-00001-1438.tfrec: record 0 at byte 0",
    ]
    assert lines[3].startswith("357 of 360 records in 2 files are sound; ")
    assert str(result.exception) == "2 files are not as they should be, 2 were checked; 3 records are damaged"
    assert isinstance(result.exception, CorruptDataError)


def test_inspect_compares_with_the_manifest(bucket: str) -> None:
    run("pack", "digits", bucket, "--shards", "1")
    records = [frame(b"other") for _ in range(359)]
    open_bucket(bucket).write(SHARD, b"".join(records))
    with pytest.raises(CorruptDataError, match=r"not the file that digits-test\.manifest\.json states"):
        run("inspect", bucket)


def test_verify_finds_another_file_of_the_same_length(bucket: str) -> None:
    run("pack", "digits", bucket, "--shards", "1")
    data = open_bucket(bucket).read(SHARD)
    half = len(data) // 359 * 100
    open_bucket(bucket).write(SHARD, data[half:] + data[:half])
    run("inspect", bucket)
    with pytest.raises(CorruptDataError, match="another file than the manifest states"):
        run("verify", bucket)


def test_inspect_names_what_is_missing(bucket: str) -> None:
    with pytest.raises(MissingInputError, match=f"no packed file is at {bucket}"):
        run("inspect", bucket)
    run("pack", "digits", bucket, "--shards", "3")
    open_bucket(bucket).delete("digits-test-00001-of-00003-120.tfrec")
    for target in (bucket, f"{bucket}/*.tfrec"):
        with pytest.raises(MissingInputError, match="2 of 3 shards found, missing 00001"):
            run("inspect", target)


def test_the_verbs_have_help() -> None:
    shown = run("--help")
    for verb in ("pack", "inspect", "verify"):
        assert verb in shown


def test_inspect_says_how_many_values_a_feature_has(bucket: str) -> None:
    manifest = Manifest(
        name="set",
        split="train",
        shards=(Shard(file="set-train-00000-of-00001-0.tfrec", num_records=0, size_bytes=0, crc32c="00000000"),),
        features={
            "list": VarLenFeature(np.int64),
            "steps": FixedLenSequenceFeature((2, 3), np.float32, allow_missing=True),
            "words": FixedLenSequenceFeature((), bytes, allow_missing=True),
            "places": SparseFeature(["row", "column"], "weight", np.float32, [10, 20]),
            "ragged": RaggedFeature(np.int64, "all", [RaggedFeature.RowLengths("lengths")]),
            "\x1b[31mred": RaggedFeature(np.int64),
        },
        source="\x1b]0;a title\x07 \udcff",
        created=datetime(2030, 1, 1, tzinfo=UTC),
    )
    open_bucket(bucket).write(manifest.key, manifest.to_json().encode())
    open_bucket(bucket).write(manifest.shards[0].file, b"")
    shown = run("inspect", bucket, "--limit", "0").splitlines()
    unknown = "\N{REPLACEMENT CHARACTER}"
    assert shown[1].endswith(f" from {unknown}]0;a title{unknown} {unknown}")
    assert shown[2:8] == [
        "feature list: int64, any number of values",
        "feature steps: float32, any number of steps, each 2 x 3",
        "feature words: bytes, any number of steps, each one value",
        "feature places: float32, sparse, 10 x 20: weight at row, column",
        "feature ragged: int64, any number of values of all, parted by row_lengths lengths",
        f"feature {unknown}[31mred: int64, any number of values",
    ]
