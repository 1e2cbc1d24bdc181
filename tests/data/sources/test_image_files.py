"""A folder of images by class, as Cats vs Dogs is distributed, and its archive."""

import io
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from lockstep.data import RecordSource, pack, parse_batch, read_manifest
from lockstep.data.images.codec import decode_image
from lockstep.data.sources import open_source
from lockstep.data.sources.containers import MAX_FILE_BYTES
from lockstep.data.sources.image_files import FEATURES
from lockstep.data.sources.transcoding import Transcoding
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError


def encoded(mode: str = "RGB", kind: str = "JPEG", *, size: tuple[int, int] = (40, 30), value: int = 90) -> bytes:
    channels = len(PIL.Image.new(mode, (1, 1)).getbands())
    pixels = np.full((size[1], size[0], channels), value, np.uint8)
    file = io.BytesIO()
    PIL.Image.fromarray(pixels.squeeze(), mode=None).save(file, kind) if channels == 1 else PIL.Image.frombytes(
        mode, size, pixels.tobytes()
    ).save(file, kind)
    return file.getvalue()


WHOLE = encoded()
PET_IMAGES = {
    "readme[1].txt": b"read me",
    "MSR-LA - 3467.docx": b"a licence",
    "PetImages/Cat/0.jpg": WHOLE,
    "PetImages/Cat/1.JPG": encoded("CMYK"),
    "PetImages/Cat/2.jpg": encoded("RGBA", "PNG"),
    "PetImages/Cat/666.jpg": b"",
    "PetImages/Cat/Thumbs.db": b"\xd0\xcf\x11\xe0",
    "PetImages/Dog/0.jpg": encoded("L"),
    "PetImages/Dog/11702.jpg": WHOLE[:300],
    "PetImages/Dog/12.jpg": b"GIF89a and so on",
    "PetImages/Dog/Thumbs.db": b"\xd0\xcf\x11\xe0",
    "__MACOSX/PetImages/Cat/._0.jpg": b"\x00\x05\x16\x07",
}
DAMAGED = ["Cat/666.jpg", "Dog/11702.jpg", "Dog/12.jpg"]


def make_folder(path: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return str(path)


def make_zip(path: Path, files: dict[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return str(path)


@pytest.fixture(params=["folder", "zip"])
def pets(request: Any, tmp_path: Path) -> str:
    if request.param == "folder":
        return make_folder(tmp_path / "Pets", PET_IMAGES)
    return make_zip(tmp_path / "Pets.zip", PET_IMAGES)


def test_a_folder_is_gone_through_example_by_example(tmp_path: Path) -> None:
    pets = make_folder(tmp_path / "pets", {"Cat/0.jpg": WHOLE, "Cat/1.jpg": WHOLE, "Dog/0.jpg": WHOLE})
    examples = list(open_source(pets))
    assert [example["label"] for example in examples] == [0, 0, 1]
    assert examples[0]["image"] == WHOLE
    parts = make_folder(tmp_path / "parts", {f"{part}/Cat/0.jpg": WHOLE for part in ("train", "val")})
    with pytest.raises(InvalidInputError, match=r'several parts; received .train, val.; .*source.splits..."train".'):
        list(open_source(parts))
    assert len(list(open_source(parts).splits()["val"])) == 1


def read(bucket: str, split: str = "train", name: str = "pets") -> tuple[list[bytes], list[int]]:
    source = RecordSource(f"{bucket}/{name}-{split}-*.tfrec")
    arrays = parse_batch(source.__getitems__(range(len(source))), FEATURES)
    return arrays["image"].tolist(), arrays["label"].tolist()


def test_cats_and_dogs_are_found_as_they_are_distributed(pets: str, tmp_path: Path) -> None:
    source = open_source(pets)
    assert (source.name, source.classes) == ("pets", ("Cat", "Dog"))
    assert source.origin == f"7 images of 2 classes in {pets} (other files left out: 2 .db, 1 .docx, 1 .txt)"
    bucket = str(tmp_path / "bucket")
    packed = pack(source, bucket, shuffle=False, num_shards=2, on_error="skip")
    images, labels = read(bucket)
    kept = ["PetImages/Cat/0.jpg", "PetImages/Cat/1.JPG", "PetImages/Cat/2.jpg", "PetImages/Dog/0.jpg"]
    assert images == [PET_IMAGES[name] for name in kept], "the files are kept byte for byte"
    assert labels == [0, 0, 0, 1]
    assert [item.key for item in packed.skipped] == DAMAGED
    assert packed.skipped[0].reason == "it is empty"
    manifest = read_manifest(bucket, name="pets", split="train")
    assert manifest == packed.manifest
    assert (manifest.classes, manifest.num_records) == (("Cat", "Dog"), 4)


def test_a_folder_and_its_archive_give_the_same_records(tmp_path: Path) -> None:
    for kind, source in (
        ("folder", make_folder(tmp_path / "one" / "Pets", PET_IMAGES)),
        ("zip", make_zip(tmp_path / "two" / "Pets.zip", PET_IMAGES, method=zipfile.ZIP_STORED)),
        ("inner", str(tmp_path / "one" / "Pets" / "PetImages")),
    ):
        bucket = str(tmp_path / kind)
        pack(open_source(source), bucket, name="pets", split={"train": 0.5, "val": 0.5}, on_error="skip", num_workers=1)
    for split in ("train", "val"):
        assert read(str(tmp_path / "folder"), split) == read(str(tmp_path / "zip"), split)
        assert read(str(tmp_path / "folder"), split) == read(str(tmp_path / "inner"), split)


def test_classes_are_mixed_where_nothing_is_said(tmp_path: Path) -> None:
    files = {f"{name}/{number}.png": encoded(kind="PNG", size=(2, 2)) for name in "ab" for number in range(40)}
    pack(open_source(make_folder(tmp_path / "pets", files)), str(tmp_path / "bucket"))
    _, labels = read(str(tmp_path / "bucket"))
    assert labels.count(0) == labels.count(1) == 40
    assert 5 < sum(labels[:40]) < 35


def test_what_is_encoded_anew_is_rgb_of_one_size(pets: str, tmp_path: Path) -> None:
    bucket = str(tmp_path / "bucket")
    source = open_source(pets, transcoding=Transcoding(size=(24, 24), quality=80))
    manifest = pack(source, bucket, on_error="skip").manifest
    images, _ = read(bucket)
    assert len(images) == 4
    for image in images:
        assert image[:2] == b"\xff\xd8"
        assert PIL.Image.open(io.BytesIO(image)).mode == "RGB"
        assert decode_image(image).shape == (24, 24, 3)
    wanted = {"image_size": [24, 24], "resize": "crop", "codec": "jpeg", "quality": 80, "shuffle_seed": 0}
    assert manifest.options == wanted


def test_folders_of_parts_are_splits(tmp_path: Path) -> None:
    files = {f"set/{part}/{name}/0.jpg": WHOLE for part in ("train", "validation") for name in ("Cat", "Dog")}
    source = open_source(make_zip(tmp_path / "pets.zip", files))
    assert {name: part.num_items for name, part in source.splits().items()} == {"train": 2, "val": 2}
    packed = pack(source, str(tmp_path / "bucket"))
    assert list(packed.manifests) == ["train", "val"]
    assert packed.manifests["val"].classes == ("Cat", "Dog")
    with pytest.raises(
        InvalidInputError, match=r"the data set already has splits .*; allowed: its own splits: train, val"
    ):
        pack(source, str(tmp_path / "bucket"), split={"a": 0.5, "b": 0.5})


def test_one_class_is_a_class(tmp_path: Path) -> None:
    assert open_source(make_folder(tmp_path / "x", {"Cat/0.jpg": WHOLE, "Cat/1.jpg": WHOLE})).classes == ("Cat",)
    deeper = open_source(
        make_folder(tmp_path / "y", {"Cat/old/0.jpg": WHOLE, "Cat/new/1.jpg": WHOLE, "Dog/0.jpg": WHOLE})
    )
    assert deeper.classes == ("Cat", "Dog")


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        (
            {"0.jpg": WHOLE, "1.jpg": WHOLE},
            InvalidInputError,
            "an image in .* is not in a class folder; received '0.jpg'",
        ),
        (
            {"0.jpg": WHOLE, "Cat/1.jpg": WHOLE},
            InvalidInputError,
            "received '0.jpg'; allowed: one subfolder for each class",
        ),
        (
            {"Cat/0.gif": WHOLE},
            MissingInputError,
            r"no image is in .*; allowed: files that end with \.jpg, \.jpeg, \.png",
        ),
        ({}, MissingInputError, "no file is in"),
    ],
)
def test_a_folder_of_something_else_is_named(
    tmp_path: Path, files: dict[str, bytes], error: type[Exception], message: str
) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(error, match=message):
        open_source(make_folder(tmp_path / "set", files))
    with pytest.raises(error, match=message):
        open_source(make_zip(tmp_path / "set.zip", files))


def test_names_in_archives_lead_nowhere(tmp_path: Path) -> None:
    escape = {"../../outside/Cat/9.jpg": WHOLE, "in/../../Cat/8.jpg": WHOLE, "Cat/0.jpg": WHOLE, "Dog/1.jpg": WHOLE}
    source = open_source(make_zip(tmp_path / "in" / "pets.zip", escape))
    bucket = tmp_path / "bucket"
    manifest = pack(source, str(bucket)).manifest
    assert (manifest.classes, manifest.num_records) == (("Cat", "Dog"), 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bucket", "in"]
    absolute = open_source(make_zip(tmp_path / "in" / "a.zip", {"/etc/Cat/\n.jpg": WHOLE, "/etc/Dog/1.jpg": b""}))
    said: list[str] = []
    assert pack(absolute, str(bucket), on_error="skip", say=said.append).num_records == 1
    assert said == ["skipped: Dog/1.jpg: it is empty"]


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = Path(make_zip(tmp_path / "pets.zip", {"Cat/0.jpg": WHOLE, "Dog/0.jpg": WHOLE}, method=zipfile.ZIP_STORED))
    data = bytearray(path.read_bytes())
    data[data.index(WHOLE) + 200] ^= 255
    path.write_bytes(data)
    packed = pack(open_source(str(path)), str(tmp_path / "bucket"), on_error="skip")
    (item,) = packed.skipped
    assert (item.key, item.reason[:24]) == ("Cat/0.jpg", "it cannot be unpacked: B")
    path.write_bytes(data[:100])
    with pytest.raises(CorruptDataError, match=r"pets\.zip: not a zip archive that can be read"):
        open_source(str(path))


def test_a_file_that_states_too_great_a_length_is_left_out(tmp_path: Path) -> None:
    path = Path(make_zip(tmp_path / "pets.zip", {"Cat/0.jpg": WHOLE, "Dog/0.jpg": b"\0" * 300}))
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02", 0, data.index(b"Dog/0.jpg", data.index(b"PK\x01\x02")))
    data[entry + 24 : entry + 28] = (MAX_FILE_BYTES + 1).to_bytes(4, "little")
    path.write_bytes(data)
    packed = pack(open_source(str(path)), str(tmp_path / "bucket"), on_error="skip")
    assert [item.reason.split(";")[0] for item in packed.skipped] == ["it is too long"]


def test_a_changed_file_or_another_size_is_another_source(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "pets", {"Cat/0.jpg": WHOLE, "Dog/0.jpg": WHOLE})
    first = open_source(folder).fingerprint()
    assert first == open_source(folder).fingerprint()
    assert first != open_source(folder, transcoding=Transcoding(size=(8, 8))).fingerprint()
    (tmp_path / "pets" / "Dog" / "0.jpg").write_bytes(WHOLE + b"\0")
    assert first != open_source(folder).fingerprint()


def test_a_file_that_unpacks_to_more_than_it_states_takes_no_memory(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "pets.zip", {"Cat/0.jpg": bytes(40 << 20), "Cat/1.jpg": WHOLE})
    data = bytearray(Path(path).read_bytes())
    struct.pack_into("<I", data, data.find(b"PK\x01\x02") + 24, 1000)  # in the directory, the length unpacked
    Path(path).write_bytes(data)
    source = open_source(path)
    tracemalloc.start()
    try:
        packed = pack(source, str(tmp_path / "bucket"), on_error="skip", num_workers=1)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [item.reason for item in packed.skipped] == ["it cannot be unpacked: Bad CRC-32 for file 'Cat/0.jpg'"]
    assert peak_bytes < 8 << 20


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_whose_unpacking_has_no_bound_are_refused(tmp_path: Path, method: int) -> None:
    path = make_zip(tmp_path / "pets.zip", {"Cat/0.jpg": WHOLE}, method=method)
    with pytest.raises(CorruptDataError, match=r"Cat/0.jpg: unsupported compression method; received .*; allowed: s"):
        pack(open_source(path), str(tmp_path / "bucket"))


def test_links_that_go_round_and_what_is_no_file_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    make_folder(folder, {"Cat/0.jpg": WHOLE, "Dog/0.jpg": WHOLE})
    make_folder(tmp_path / "elsewhere", {"1.jpg": WHOLE})
    (folder / "Cat" / "up").symlink_to("..")
    (folder / "Cat" / "here").symlink_to(".")
    (folder / "Cat" / "itself.jpg").symlink_to("itself.jpg")
    (folder / "Cat" / "gone.jpg").symlink_to("nothing")
    (folder / "Dog" / "zeros.jpg").symlink_to("/dev/zero")
    (folder / "Dog" / "more").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "Dog" / "2.jpg")
    found = [item.key for item in open_source(str(folder)).splits()["train"].items()]
    # What lies behind "up" is a folder that it is in, from where only its own files are left.
    assert found == ["Cat/0.jpg", "Dog/0.jpg", "Dog/more/1.jpg"]
