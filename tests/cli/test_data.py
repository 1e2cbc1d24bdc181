import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from rich.console import Console
from typer.testing import CliRunner

import lockstep
from lockstep.cli.data import app
from lockstep.cli.data.shown import show_fields
from lockstep.data import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    Manifest,
    RaggedFeature,
    Shard,
    Skipped,
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
        "classes   10: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9",
        "features  image: uint8, 28 x 28, kept as its bytes",
        "          label: int64, one value",
        "source    the handwritten digits that come with Lockstep",
        "options   num_shards=2",
        "  label: 0",
    ):
        assert line in shown.splitlines()
    assert f"{bucket}/digits-train: 1,438 records in 2 files" in shown
    assert re.search(rf"^packed    20.* UTC by Lockstep {lockstep.__version__}$", shown, re.MULTILINE)
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
    assert shown[0].startswith(f"{bucket}/notes.tfrecord: 2 records in 1 file, ")
    assert shown[1] == "no manifest"
    assert shown[2:-2] == [
        "record 0",
        "  blob: 20 bytes: 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f ...",
        "  floats: [0.5, 1.0]",
        "  many: int64, 100, 0 to 99, mean 49.5",
        "  text: 'a line'",
        "record 1",
        "  none: no value",
        "  text: 'a', 'b'",
        "file            records       size",
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
    assert run("verify", bucket).splitlines()[1] == "2 files without a checksum in a manifest"


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
    assert lines[3].startswith("357 of 1,797 records in 2 files are sound; ")
    assert str(result.exception) == "2 files are damaged or missing, 2 were checked; 3 records are damaged"
    assert isinstance(result.exception, CorruptDataError)


def test_inspect_compares_with_the_manifest(bucket: str) -> None:
    run("pack", "digits", bucket, "--shards", "1")
    records = [frame(b"other") for _ in range(359)]
    open_bucket(bucket).write(SHARD, b"".join(records))
    with pytest.raises(CorruptDataError, match=r"not the file that digits-test\.manifest\.json states"):
        run("inspect", bucket)
    shown = CliRunner().invoke(app, ["inspect", bucket, "--limit", "0"]).output
    assert f"{bucket}/digits-test: 0 of 359 records in 0 of 1 file, 0 bytes" in shown
    assert re.search(rf"^{SHARD} +359 +.* +damaged$", shown, re.MULTILINE)


def test_verify_finds_another_file_of_the_same_length(bucket: str) -> None:
    run("pack", "digits", bucket, "--shards", "1")
    data = open_bucket(bucket).read(SHARD)
    half = len(data) // 359 * 100
    open_bucket(bucket).write(SHARD, data[half:] + data[:half])
    run("inspect", bucket)
    with pytest.raises(CorruptDataError, match="the file differs from what the manifest states"):
        run("verify", bucket)


def test_inspect_names_what_is_missing(bucket: str) -> None:
    with pytest.raises(MissingInputError, match=f"no packed file is at {bucket}"):
        run("inspect", bucket)
    run("pack", "digits", bucket, "--shards", "3")
    open_bucket(bucket).delete("digits-test-00001-of-00003-120.tfrec")
    missing = "digits-test-00001-of-00003-120.tfrec: the manifest lists it, but it does not exist"
    for target in (bucket, f"{bucket}/*.tfrec", f"{bucket}/digits-test"):
        result = CliRunner().invoke(app, ["inspect", target, "--limit", "1"])
        assert isinstance(result.exception, MissingInputError)
        assert missing in str(result.exception)
        assert f"{bucket}/digits-test: 239 of 359 records in 2 of 3 files" in result.output
        assert "record 0 of the sound files" in result.output.splitlines()
        assert re.search(r"^digits-test-00001-of-00003-120\.tfrec +120 .* missing$", result.output, re.MULTILINE)
        with pytest.raises(MissingInputError, match=missing):
            run("verify", target)
    result = CliRunner().invoke(app, ["verify", f"{bucket}/digits-test"])
    assert result.output.startswith("239 of 359 records in 2 of 3 files are sound; ")
    open_bucket(bucket).delete("digits-test.manifest.json")
    with pytest.raises(MissingInputError, match="2 of 3 shards found, missing 00001"):
        run("inspect", bucket)


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
    assert shown[1:9] == [
        "features  list: int64, any number of values",
        "          steps: float32, any number of steps, each 2 x 3",
        "          words: bytes, any number of steps, each one value",
        "          places: float32, sparse, 10 x 20: weight at row, column",
        "          ragged: int64, any number of values of all, parted by row_lengths lengths",
        f"          {unknown}[31mred: int64, any number of values",
        f"source    {unknown}]0;a title{unknown} {unknown}",
        "packed    2030-01-01 00:00:00 UTC",
    ]


def test_inspect_says_how_images_were_packed(bucket: str) -> None:
    manifest = Manifest(
        name="set",
        split="val",
        shards=tuple(
            Shard(file=f"set-val-{index:05d}-of-00030-0.tfrec", num_records=0, size_bytes=0, crc32c="00000000")
            for index in range(30)
        ),
        features={"label": FixedLenFeature((), np.int64)},
        source="",
        created=datetime(2030, 1, 1, tzinfo=UTC),
        classes=tuple(f"kind {number}" for number in range(40)),
        options={
            "image_size": [32, 64],
            "resize": "fit",
            "codec": "jpeg",
            "quality": 80,
            "split": {"train": 0.9, "val": 0.1},
            "key": "name",
        },
        skipped=(Skipped(key="a.jpg", reason="it is empty"),),
    )
    open_bucket(bucket).write(manifest.key, manifest.to_json().encode())
    for shard in manifest.shards:
        open_bucket(bucket).write(shard.file, b"")
    shown = [line.rstrip() for line in run("inspect", bucket).splitlines()]
    shorter = [f"set-val-{index:05d}-of-00030-0.tfrec        0  0 bytes" for index in (*range(10), 29)]
    assert shown[1:] == [
        f"classes   40: {', '.join(f'kind {number}' for number in range(15))}, ... (25 more)",
        "images    within 32 x 64 (fit), JPEG of quality 80",
        "left out  1 damaged item: a.jpg",
        "features  label: int64, one value",
        "split     val, of train=0.9, val=0.1",
        "options   key=name",
        "packed    2030-01-01 00:00:00 UTC",
        "file                            records     size",
        *shorter,
        "and 19 more",
        "",
    ]


def test_what_is_known_is_broken_at_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"classes": ["one two three four"], "features": ["a: b", "a/long/name/without/any/space"]}
    show_fields(Console(width=22, soft_wrap=True), fields)
    assert capsys.readouterr().out.splitlines() == [
        "classes   one two",
        "          three four",
        "features  a: b",
        "          a/long/name/without/any/space",
    ]


def test_labels_are_shown_with_the_names_of_their_classes(bucket: str, tmp_path: Path) -> None:
    for name in ("Cat", "Dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        PIL.Image.new("RGB", (8, 6)).save(tmp_path / "pets" / name / "0.png")
    run("pack", f"{tmp_path}/pets", bucket, "--shards", "1", "--no-shuffle")
    shown = run("inspect", f"{bucket}/pets-train").splitlines()
    assert [line for line in shown if "label: " in line][1:] == ["  label: 0 (Cat)", "  label: 1 (Dog)"]
    assert re.fullmatch(r"  image: PNG, 6 x 8, \d+ bytes", shown[shown.index("record 0") + 1])


def test_what_earlier_and_interrupted_packings_left_is_a_note(bucket: str) -> None:
    table = Path(bucket).with_name("t.csv")
    table.write_text("number\n" + "".join(f"{number}\n" for number in range(100)))
    run("pack", f"{table}", bucket, "--split", "train=0.8,test=0.2")
    run("pack", f"{table}", bucket, "--split", "train=0.8,val=0.2")
    open_bucket(bucket).write("u.packing/journal.json", b"{")
    for verb in ("inspect", "verify"):
        notes = [line for line in run(verb, bucket).splitlines() if line.startswith("note: ")]
        assert notes[0].startswith(f"note: {bucket}/u: its packing was interrupted")
        assert notes[1].startswith(f"note: {bucket}/t-test was packed at ")
        assert len(notes) == 2


def test_a_damaged_record_among_the_first_is_named_and_the_rest_is_shown(bucket: str) -> None:
    run("pack", "digits", bucket, "--shards", "1")
    damage(bucket, SHARD, 850)
    result = CliRunner().invoke(app, ["inspect", bucket, "--limit", "2"])
    assert isinstance(result.exception, CorruptDataError)
    assert "record 1 at byte 838: the checksum of its data does not match" in str(result.exception)
    assert [line for line in result.output.splitlines() if line.startswith("record ")] == [
        "record 0",
        "record 0",
        "record 1",
    ]
    damage(bucket, "digits-train-00000-of-00001-1438.tfrec", 3)
    result = CliRunner().invoke(app, ["inspect", bucket])
    assert "2 files are damaged or missing, 2 were checked" in str(result.exception)
    assert f"{bucket}/{SHARD}: record 1 at byte 838" in result.output
