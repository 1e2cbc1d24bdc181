"""Packed data sets over REST and in the console: what there is, who sees it, and that hostile files are bounded."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.service.console.signed_in import signed_in
from tests.service.packed import HOSTILE, images, pack

from lockstep.data import ShardName, encode_example, frame
from lockstep.jobs.security.access import Scope
from lockstep.service import data_sets
from lockstep.testing.served import Served

pytest.importorskip("PIL.Image", reason="images are an extra")
LIST = "/v1/projects/local/datasets"
READ = "/v1/projects/local/datasets:read"


@pytest.fixture
def folder(service: Served) -> Path:
    return Path(service.context.settings.bucket, "local")


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress])
def test_a_data_set_is_listed_and_shown_with_its_images(
    service: Served, folder: Path, compress: Callable[[bytes], bytes]
) -> None:
    url = pack(folder / "data", images(30), pack=compress)
    listed = service.http.get(LIST).json()
    (found,) = listed["datasets"]
    assert (found["url"], found["numRecords"], found["numShards"], found["problems"]) == (url, 30, 2, [])
    assert [feature["name"] for feature in found["features"]] == ["image", "label"]
    read = service.http.get(READ, params={"url": url, "numRecords": 4}).json()
    assert read["problems"] == []
    assert [record["label"] for record in read["records"]] == ["cat"] * 4, "the first file has every second record"
    assert all(record["image"].startswith("data:image/jpeg;base64,/9j/") for record in read["records"])
    assert read["records"][0]["values"]["image"].startswith("JPEG, 8 x 8")
    assert [shard["numRecords"] for shard in read["shards"]] == [15, 15]
    with signed_in(service) as browser:
        shown = browser.get("/data").text
        assert "pets-train" in shown
        page = browser.get("/projects/local/data", params={"url": url})
        assert page.text.count("<img ") == 24
        assert HOSTILE not in page.text
        assert 'alt="image of record 0"' in page.text
        assert "img-src 'self' data:" in page.headers["content-security-policy"]


def test_numbers_and_text_are_shown_as_a_table_without_a_manifest_too(service: Served, folder: Path) -> None:
    folder.mkdir(parents=True)
    records = b"".join(frame(encode_example({"text": f"{HOSTILE} {n}", "value": n / 2})) for n in range(3))
    (folder / "rows.tfrecord").write_bytes(records)
    read = service.http.get(READ, params={"url": f"{folder}/rows.tfrecord"}).json()
    assert read["numRecords"] is None
    assert [record["values"]["value"] for record in read["records"]] == ["[0.0]", "[0.5]", "[1.0]"]
    with signed_in(service) as browser:
        page = browser.get("/projects/local/data", params={"url": f"{folder}/rows.tfrecord"}).text
    assert "alert(1)" in page
    assert HOSTILE not in page
    assert "not stated" in page


def test_data_sets_are_turned_over_and_a_folder_may_be_named(service: Served, folder: Path) -> None:
    for name in ("a", "b", "c"):
        pack(folder / name, images(2))
    names: list[str] = []
    token = ""
    while True:
        page = service.http.get(LIST, params={"pageSize": 2, "pageToken": token}).json()
        names += [each["url"].split("/")[-2] for each in page["datasets"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert names == ["a", "b", "c"]
    (one,) = service.http.get(LIST, params={"folder": f"{folder}/b"}).json()["datasets"]
    assert one["name"] == "pets-train"
    assert service.http.get(LIST, params={"pageToken": "x"}).status_code == 400
    assert service.http.get(READ, params={"url": f"{folder}/b/pets-test"}).status_code == 404


def test_nobody_sees_what_is_not_the_projects(service: Served, folder: Path, tmp_path: Path) -> None:
    bucket = folder.parent
    hidden = pack(bucket / "other", images(2))
    elsewhere = pack(tmp_path / "elsewhere", images(2))
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(bucket / "other")
    for file in (bucket / "other").iterdir():
        (folder / file.name).symlink_to(file)
    for scope in (Scope.VIEWER, Scope.SUBMITTER):
        client = service.client(service.key(scope, project="local"))
        for url in (hidden, elsewhere, f"{folder}/../other/pets-train", f"{folder}/link/pets-train"):
            assert client.get(READ, params={"url": url}).status_code == 400, (scope, url)
        for place in (str(bucket), str(bucket / "other"), "/", f"{folder}/link"):
            assert client.get(LIST, params={"folder": place}).status_code == 400, (scope, place)
        read = client.get(READ, params={"url": f"{folder}/pets-train"}).json()
        assert (read["records"], read["features"]) == ([], []), "links lead to another project"
        assert any("a link leads outside its folder" in problem for problem in read["problems"])
    everywhere = service.client(service.key(Scope.VIEWER))
    for url in (hidden, elsewhere, "gs://bucket/pets-train"):
        assert everywhere.get(READ, params={"url": url}).status_code == 400, "viewers see the project's folder alone"
    assert service.http.get(READ, params={"url": elsewhere}).json()["numRecords"] == 2, "an operator sees more"


def _bomb() -> bytes:
    """A PNG that says that it has 2^30 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 2**15, 2**15, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def test_hostile_files_are_bounded(service: Served, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_sets, "MAX_READ_BYTES", 100_000)
    monkeypatch.setattr(data_sets, "MAX_MANIFEST_BYTES", 2000)
    bomb = {"image": _bomb(), "label": 7}
    large = {"image": b"x" * 200_000, "label": 0}
    url = pack(folder / "bomb", [bomb, images(1)[0], bomb, large])
    read = service.http.get(READ, params={"url": url}).json()
    assert [record["image"] for record in read["records"][:2]] == [None, None]
    assert len(read["records"]) == 3, "what is too large is not read"
    zipped = pack(folder / "zipped", [large] * 4, pack=gzip.compress)
    assert service.http.get(READ, params={"url": zipped}).json()["records"] == []
    long = pack(folder / "long", images(2), source="x" * 3000)
    (problem,) = service.http.get(READ, params={"url": long}).json()["problems"][:1]
    assert "too large to be shown" in problem
    for name, content in {
        "cut": frame(b"x" * 50)[:30],
        "noise": bytes(range(256)),
        "no-example": frame(b"\xff" * 20),
        "empty": b"",
    }.items():
        (folder / f"{name}.tfrecord").write_bytes(content)
        answer = service.http.get(READ, params={"url": f"{folder}/{name}.tfrecord"})
        assert (answer.status_code, answer.json()["records"]) == (200, []), name
        assert bool(answer.json()["problems"]) is (name != "empty"), name
    (folder / "bad-train.manifest.json").write_text('{"format": 1, "features": {"x": {"type": "moon"}}}')
    bad = next(each for each in service.http.get(LIST).json()["datasets"] if each["name"] == "bad-train")
    assert "not a manifest" in bad["problems"][0]


def test_missing_and_foreign_files_are_said(service: Served, folder: Path) -> None:
    url = pack(folder, images(4))
    first = folder / str(ShardName(data_set="pets-train", index=0, num_shards=2, num_records=2))
    first.rename(folder / str(ShardName(data_set="pets-train", index=0, num_shards=2, num_records=9)))
    read = service.http.get(READ, params={"url": url}).json()
    assert read["problems"] == [
        "1 of the files that the manifest lists do not exist",
        "1 files belong to another packing run than the manifest",
    ]
    assert read["numMissing"] == 1
    assert [shard["missing"] for shard in read["shards"]] == [False, False, True]
    assert len(read["records"]) == 2


def test_a_folder_of_too_many_files_is_cut(service: Served, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_sets, "MAX_OBJECTS", 6)
    for name in ("a", "b", "c"):
        pack(folder / name, images(2))
    found = service.http.get(LIST).json()
    assert (len(found["datasets"]), found["truncated"]) == (2, True)
