"""``lockstep data pack``, as somebody types it."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import PIL.Image
import pytest
from rich.console import Console
from typer.testing import CliRunner

from lockstep.cli import main
from lockstep.cli.commands import make_app
from lockstep.cli.data import app
from lockstep.cli.data.progress import LINE_EVERY_S, Lines, show_progress
from lockstep.cli.examples import EXAMPLES
from lockstep.data import RecordSource, parse_batch
from lockstep.data.packing.options import Compression, OnError
from lockstep.data.packing.run import Progress
from lockstep.data.sources import base, fashion_mnist, transcoding
from lockstep.errors import InvalidInputError, LockstepError, MissingInputError, StorageWriteError, UnavailableError
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


def test_pack_says_what_it_did(bucket: str) -> None:
    lines = run("pack", "digits", bucket, "--shards", "2").splitlines()
    assert lines == [
        "digits: from the handwritten digits that come with Lockstep",
        "features  image: uint8, 28 x 28, kept as its bytes",
        "          label: int64, one value",
        f"train: 1,438 records in 2 shards, {lines[3].split(', ')[-2]}, in {bucket}",
        f"test: 359 records in 2 shards, {lines[4].split(', ')[-2]}, in {bucket}",
        lines[5],
    ]
    assert lines[5].startswith("1,797 records in ")
    source = RecordSource(f"{bucket}/digits-train-*.tfrec")
    arrays = parse_batch(source.__getitems__(range(len(source))), base.IMAGE_FEATURES)
    assert arrays["image"].shape == (1438, 28, 28)
    assert np.unique(arrays["label"]).tolist() == list(range(10))


def test_pack_under_another_name(bucket: str) -> None:
    run("pack", "digits", bucket, "--name", "small", "--shards", "1")
    assert [item.key for item in open_bucket(bucket).list()] == [
        "small-test-00000-of-00001-359.tfrec",
        "small-test.manifest.json",
        "small-train-00000-of-00001-1438.tfrec",
        "small-train-00000-of-00001-1438.tfrec.index",
        "small-train.manifest.json",
    ]


def test_digits_stand_in_only_when_they_may(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = dict(fashion_mnist.find_fashion_mnist.__kwdefaults__)
    nowhere = {"cache": tmp_path / "cache", "debian_folder": tmp_path / "debian", "mirrors": ()}
    monkeypatch.setattr(fashion_mnist.find_fashion_mnist, "__kwdefaults__", defaults | nowhere)
    with pytest.raises(UnavailableError, match="Fashion-MNIST is not on this machine and could not be downloaded"):
        run("pack", "fashion-mnist", bucket)
    assert open_bucket(bucket).list() == []
    lines = run("pack", "fashion-mnist", bucket, "--or-digits").splitlines()
    assert lines[0].startswith("Fashion-MNIST is not on this machine and could not be downloaded")
    assert lines[0].endswith("using the handwritten digits that come with Lockstep")
    assert lines[1] == "digits: from the handwritten digits that come with Lockstep"
    assert open_bucket(bucket).exists("digits-train.manifest.json")


def test_a_folder_that_lacks_files_is_no_reason_for_digits(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"lacks train-images-idx3-ubyte\.gz"):
        run("pack", "fashion-mnist", bucket, "--folder", str(tmp_path), "--or-digits")


def test_a_bucket_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageWriteError, match=f"cannot write to the bucket {tmp_path}/file") as caught:
        run("pack", "digits", str(tmp_path / "file"))
    assert caught.value.exit_code == 73


def picture(value: int, mode: str = "RGB", kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", (40, 30), (value, 0, 0)).convert(mode).save(file, kind)
    return file.getvalue()


@pytest.fixture
def pets(tmp_path: Path) -> str:
    folder = tmp_path / "PetImages"
    for name in ("Cat", "Dog"):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            (folder / name / f"{number}.jpg").write_bytes(picture(10 * number))
        (folder / name / "Thumbs.db").write_bytes(b"\xd0\xcf")
    (folder / "Cat" / "666.jpg").write_bytes(b"")
    (folder / "Cat" / "cmyk.jpg").write_bytes(picture(9, "CMYK"))
    (folder / "Dog" / "alpha.jpg").write_bytes(picture(9, "RGBA", "PNG"))
    return str(folder)


def test_images_by_class(pets: str, bucket: str) -> None:
    options = ["--image-size", "16x24", "--codec", "png", "--split", "train=0.5,val=0.5", "--records-per-shard", "8"]
    lines = run("pack", pets, bucket, "--name", "pets", "--workers", "2", *options).splitlines()
    assert lines[0] == f"pets: from 43 images of 2 classes in {pets} (other files left out: 2 .db)"
    assert lines[3] == "skipped: Cat/666.jpg: it is empty"
    assert lines[-2] == "damaged items left out: 1; the manifests name them"
    documents = [json.loads(open_bucket(bucket).read(f"pets-{split}.manifest.json")) for split in ("train", "val")]
    assert sum(document["num_records"] for document in documents) == 42
    assert [document["classes"] for document in documents] == [["Cat", "Dog"]] * 2
    assert documents[0]["options"] == {
        "records_per_shard": 8,
        "shuffle_seed": 0,
        "image_size": [16, 24],
        "resize": "crop",
        "codec": "png",
        "split": {"train": 0.5, "val": 0.5},
    }


def test_a_table(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "a.csv").write_text("code,x\n007,1\n008,2\n")
    options = [
        "--column",
        "code=text",
        "--key",
        "code",
        "--compression",
        "gzip",
        "--shard-size",
        "1.5KiB",
        "--no-shuffle",
    ]
    run("pack", str(tmp_path / "a.csv"), bucket, "--split", "all", *options)
    document = json.loads(open_bucket(bucket).read("a-all.manifest.json"))
    assert document["features"]["code"]["dtype"] == "bytes"
    assert (document["compression"], document["options"]["bytes_per_shard"]) == ("GZIP", 1536)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--image-size", "224"], "--image-size; received '224'; allowed: HEIGHTxWIDTH"),
        (["--image-size", "0x5"], r"the size of images \(--image-size\); received \(0, 5\)"),
        (["--resize", "fit"], "--resize needs --image-size; give --image-size"),
        (
            ["--quality", "80"],
            r"a quality \(--quality\) applies only to images encoded as JPEG; .*--image-size.*--codec",
        ),
        (["--shard-size", "many"], "--shard-size; received 'many'"),
        (["--shard-size", "0KB"], "--shard-size; received '0KB'"),
        (["--shard-size", "64"], "--shard-size; received '64'; allowed: a number with its unit: .* such as 64MiB"),
        (["--shard-size", "64M"], "--shard-size; received '64M'; allowed: a number with its unit"),
        (["--shards", "2", "--shard-size", "1MB"], "given more than once; received '--shards, --shard-size'"),
        (["--shards", "99"], r"more shards \(--shards\) than records; received 99; allowed: 1 to 43"),
        (["--column", "x"], "--column; received 'x'; allowed: NAME=TYPE"),
        (["--column", "x=int", "--column", "x=text"], "--column names a column twice; received 'x'"),
        (["--column", "x=int"], r"types of columns \(--column\) are for CSV files"),
        (["--delimiter", ";"], r"what separates columns \(--delimiter\) is for CSV files"),
        (["--split", "a=0.5"], r"the fractions of the splits \(--split\)"),
        (["--split", "a b"], r"the split of a data set \(--split\); received 'a b'"),
        (["--name", "a b"], r"the name of a data set \(--name\); received 'a b'"),
        (["--key", "x"], r"a column for keys \(--key\) is for tables"),
        (["--folder", "x"], r"a folder \(--folder\) applies only to data sets by name"),
        (["--or-digits"], "--or-digits is only for fashion-mnist"),
        (["--no-shuffle", "--seed", "1"], "--seed has no effect without shuffling; received 1; give"),
        (["--on-error", "raise", "--max-skipped", "1"], "--max-skipped has no effect with --on-error raise"),
    ],
    ids=" ".join,
)
def test_options_that_are_not_usable_are_named(pets: str, bucket: str, options: list[str] | str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        run("pack", pets, bucket, *options)
    assert not open_bucket(bucket).list()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "1"], "--seed has no effect without shuffling"),
        (["--on-error", "skip"], "--on-error skip is only for images"),
        (["--max-skipped", "1"], "--max-skipped is only for images"),
        (["--codec", "png"], r"\(--image-size, --resize, --codec, --quality\) are for image files"),
        (
            ["--shards", "2"],
            r"--shards needs the number of records, .*; give --records-per-shard or --shard-size in its",
        ),
        (["--column", "y=int"], r"a\.csv has no such column \(--column\); received 'y'; allowed: x"),
        (
            ["--column", "x=int32"],
            r"the type of column 'x' \(--column\); received 'int32'; allowed: int, float, text, bool",
        ),
        (["--delimiter", "ab"], r"what separates the columns \(--delimiter\); received 'ab'"),
        (["--key", "y"], r"a\.csv has no column for keys \(--key\); received 'y'"),
        (["--restart", "--or-digits"], "--or-digits is only for fashion-mnist"),
    ],
    ids=" ".join,
)
def test_options_that_do_not_fit_a_table_are_named(
    tmp_path: Path, bucket: str, options: list[str], message: str
) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(InvalidInputError, match=message):
        run("pack", str(tmp_path / "a.csv"), bucket, *options)
    assert not open_bucket(bucket).list()


def test_no_error_speaks_of_parameters(tmp_path: Path, bucket: str) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    for options in (["--shards", "9"], ["--codec", "png"], ["--key", "x"], ["--delimiter", ","], ["--column", "x=int"]):
        with pytest.raises(InvalidInputError) as caught:
            run("pack", str(tmp_path / "x.npy"), bucket, *options)
        assert options[0] in str(caught.value)
        assert "_" not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("--codec", transcoding.Codec),
        ("--resize", transcoding.Resizing),
        ("--compression", Compression),
        ("--on-error", OnError),
    ],
    ids=["codec", "resize", "compression", "on-error"],
)
def test_choices_are_those_that_packing_has(pets: str, bucket: str, option: str, choices: Any) -> None:
    words = [word.lower() for word in get_args(choices)]
    with pytest.raises(main.USAGE_ERROR, match="'brotli' is not one of " + ", ".join(f"'{word}'" for word in words)):
        CliRunner().invoke(
            make_app("data"),
            ["data", "pack", pets, bucket, option, "brotli"],
            standalone_mode=False,
            catch_exceptions=False,
        )
    shown = CliRunner().invoke(make_app("data"), ["data", "pack", "--help"]).output
    assert f"{option} <{'|'.join(words)}>" in shown


@pytest.mark.parametrize(
    "places", [("digits", "memory://x"), ("memory://x/a.csv", "{bucket}")], ids=["bucket", "source"]
)
def test_the_memory_of_the_command_is_no_place(bucket: str, places: tuple[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="memory:// is lost when this command ends; received 'mem"):
        run("pack", *(place.format(bucket=bucket) for place in places))
    assert not os.path.exists(bucket)


def test_what_a_table_is_taken_for_is_said_first(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "people.csv").write_text("zip;age\n00042;3\n")
    lines = run("pack", str(tmp_path / "people.csv"), bucket, "--column", "age=float").splitlines()
    assert lines[1:-2] == [
        'columns are separated by ";"',
        (
            "column 'zip' is packed as text: '00042' begins with 0, which a number would drop (as numbers: "
            "--column zip=int)"
        ),
        "features  zip: bytes, one value",
        "          age: float32, one value",
    ]
    assert lines[-2].startswith("train: 1 record in 1 shard, ")
    assert lines[-1].startswith("1 record in ")


def test_packing_the_same_again_says_that_nothing_is_to_do(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    os.utime(tmp_path / "a.csv", (1_600_000_000, 1_600_000_000))
    command = ("pack", str(tmp_path / "a.csv"), bucket)
    first = run(*command).splitlines()
    assert run(*command).splitlines() == [
        *first[:3],
        "a is packed already, from the same source and with the same options: nothing to do",
        first[3],
        "to pack again, use --restart",
    ]
    assert run(*command, "--restart").splitlines()[:4] == first[:4]


def test_another_format_under_an_image_s_name_is_named(pets: str, bucket: str) -> None:
    Path(pets, "Cat", "1.jpg").write_bytes(picture(3, kind="GIF"))
    Path(pets, "Cat", "2.webp").write_bytes(picture(3, kind="WEBP"))
    lines = run("pack", pets, bucket).splitlines()
    assert lines[0].endswith("(other files left out: 2 .db, 1 .webp)")
    assert any(re.match(r"skipped: Cat/1\.jpg: not an image .*; received 'GIF, ", line) for line in lines)


def test_the_help_ends_with_commands_that_can_be_read(tmp_path: Path) -> None:
    for line in EXAMPLES["data pack"]:
        words = shlex.split(line)
        assert words[:3] == ["lockstep", "data", "pack"]
        result = CliRunner().invoke(app, ["pack", str(tmp_path / "none.csv"), *words[4:]])
        assert isinstance(result.exception, LockstepError), (line, result.output)


def test_damage_can_be_the_end(pets: str, bucket: str) -> None:
    with pytest.raises(LockstepError, match=r"Cat/666\.jpg: it is empty"):
        run("pack", pets, bucket, "--on-error", "raise")
    with pytest.raises(LockstepError, match=r"more than 0 damaged items; the last one: Cat/666\.jpg"):
        run("pack", pets, bucket, "--max-skipped", "0")


TIMEOUT_S = 60


@pytest.mark.heavy
def test_an_interrupted_run_goes_on(tmp_path: Path, bucket: str) -> None:
    np.save(tmp_path / "x.npy", np.arange(60_000).reshape(20_000, 3))
    command = [sys.executable, "-m", "lockstep.cli.main", "data", "pack", str(tmp_path / "x.npy"), bucket]
    command += ["--records-per-shard", "80"]
    env = {**os.environ, "LOCKSTEP_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not open_bucket(bucket).list("x-train-00002"):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "interrupted; run the same command again to resume"
    lines = run("pack", str(tmp_path / "x.npy"), bucket, "--records-per-shard", "80").splitlines()
    assert lines[2].startswith("resuming after ")
    assert lines[3].startswith("train: 20,000 records in 250 shards")
    assert len(RecordSource(f"{bucket}/x-train-*.tfrec")) == 20_000
    assert not list(tmp_path.glob("lockstep-pack-*"))


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal() -> None:
    now_s = 100.0
    said: list[str] = []
    lines = Lines(said.append, clock=lambda: now_s)
    for seconds, progress in (
        (1, Progress(num_items=10, total_items=1000)),
        (LINE_EVERY_S, Progress(num_items=600, total_items=1000, num_resumed=100)),
        (LINE_EVERY_S + 1, Progress(num_items=700, total_items=1000, num_resumed=100)),
        (2 * LINE_EVERY_S, Progress(num_items=1100, num_skipped=3)),
        (3 * LINE_EVERY_S, Progress(num_items=10, total_items=20, num_resumed=10)),
    ):
        now_s = 100.0 + seconds
        lines.report(progress)
    assert said == [
        "packing: 600 of 1,000 records, 50 records/s, 8.0 s left",
        "packing: 1,100 records, 55 records/s, 3 left out",
        "packing: 10 of 20 records",
    ]


@pytest.mark.parametrize("total", [None, 5000])
@pytest.mark.heavy
def test_progress_is_a_bar_on_a_terminal(total: int | None) -> None:
    screen = io.StringIO()
    console: Any = Console(file=screen, force_terminal=True, width=100)
    with show_progress(console) as report:
        report(Progress(num_items=1234, total_items=total))
    assert ("1,234 of 5,000 records" if total else "1,234 records") in screen.getvalue()
    assert "records/s" in screen.getvalue()
