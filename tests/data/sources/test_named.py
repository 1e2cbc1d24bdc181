import gzip
import hashlib
import http.server
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.data.sources import SOURCES, open_source
from lockstep.data.sources.digits import Digits
from lockstep.data.sources.fashion_mnist import DEBIAN_FOLDER, FILES, DataFile, find_fashion_mnist
from lockstep.data.sources.idx import parse_idx, uncompressed
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError, UnavailableError


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def digest(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


IMAGES = {"train": np.arange(3 * 784, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)}
IMAGES["test"] = 255 - IMAGES["train"][:2]
LABELS = {"train": np.array([3, 1, 9], np.uint8), "test": np.array([2, 0], np.uint8)}
CONTENTS = {
    file.name: idx(array)
    for split, pair in FILES.items()
    for file, array in zip(pair, (IMAGES[split], LABELS[split]), strict=True)
}
PUBLISHED = {name: gzip.compress(content, mtime=1) for name, content in CONTENTS.items()}


def describe(published: Mapping[str, bytes]) -> dict[str, tuple[DataFile, DataFile]]:
    """The small files' own digests, in place of the real ones."""

    def file(name: str) -> DataFile:
        return DataFile(name=name, published_md5=digest(published[name]), content_md5=digest(CONTENTS[name]))

    return {split: (file(images.name), file(labels.name)) for split, (images, labels) in FILES.items()}


SMALL = describe(PUBLISHED)


def fill(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """Where to look, with nothing there and no mirror."""
    return {"cache": tmp_path / "cache", "debian_folder": tmp_path / "debian", "mirrors": (), "files": SMALL}


def check(found: Any) -> None:
    splits = found.splits()
    assert list(splits) == ["train", "test"]
    for split, part in splits.items():
        assert part.labels.dtype == np.int64
        np.testing.assert_array_equal(part.images, IMAGES[split])
        np.testing.assert_array_equal(part.labels, LABELS[split])
        assert [example["label"] for example in part] == LABELS[split].tolist()


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            data = files.get(self.path.rsplit("/", 1)[-1])
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/data", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def silent() -> Iterator[str]:
    """A socket that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("form", ["as published", "compressed again", "uncompressed"])
def test_a_folder_that_the_user_names(form: str, tmp_path: Path, places: dict[str, Any]) -> None:
    files = {
        "as published": PUBLISHED,
        "compressed again": {name: gzip.compress(content, 1, mtime=2) for name, content in CONTENTS.items()},
        "uncompressed": {name.removesuffix(".gz"): content for name, content in CONTENTS.items()},
    }[form]
    found = find_fashion_mnist(fill(tmp_path / "mine", files), **places)
    check(found)
    assert found.origin == f"the folder {tmp_path}/mine"
    assert (found.name, len(found.classes)) == ("fashion-mnist", 10)


def test_a_published_file_is_known_by_its_own_digest_too(tmp_path: Path, places: dict[str, Any]) -> None:
    unknown = {
        split: tuple(DataFile(name=file.name, published_md5=file.published_md5, content_md5="0") for file in pair)
        for split, pair in SMALL.items()
    }
    check(find_fashion_mnist(fill(tmp_path / "mine", PUBLISHED), **(places | {"files": unknown})))


def test_what_the_named_folder_lacks_is_named(tmp_path: Path, places: dict[str, Any]) -> None:
    fill(places["debian_folder"], PUBLISHED)
    folder = fill(tmp_path / "mine", {name: data for name, data in PUBLISHED.items() if "t10k" not in name})
    with pytest.raises(MissingInputError) as caught:
        find_fashion_mnist(folder, **places)
    assert str(caught.value).startswith(f"{folder} lacks t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz; ")


def test_debians_package_goes_before_the_cache(places: dict[str, Any]) -> None:
    fill(places["cache"], PUBLISHED)
    assert find_fashion_mnist(**places).origin == f"the cache {places['cache']}"
    fill(places["debian_folder"], PUBLISHED)
    found = find_fashion_mnist(**places)
    check(found)
    assert found.origin == "the Debian package dataset-fashion-mnist"


@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")
def test_the_real_files_have_the_digests_that_are_stated(tmp_path: Path) -> None:
    found = find_fashion_mnist(cache=tmp_path, mirrors=())
    splits = found.splits()
    assert {split: part.images.shape for split, part in splits.items()} == {
        "train": (60_000, 28, 28),
        "test": (10_000, 28, 28),
    }
    assert splits["train"].labels[:5].tolist() == [9, 0, 0, 3, 0]
    assert all(np.bincount(part.labels).tolist() == [len(part) // 10] * 10 for part in splits.values())


def test_a_file_of_another_digest_is_named(tmp_path: Path, places: dict[str, Any]) -> None:
    wrong = idx(np.zeros(3, np.uint8))
    folder = fill(tmp_path / "mine", PUBLISHED | {"train-labels-idx1-ubyte.gz": gzip.compress(wrong)})
    with pytest.raises(CorruptDataError) as caught:
        find_fashion_mnist(folder, **places)
    assert str(caught.value).startswith(f"{folder}/train-labels-idx1-ubyte.gz: not the file of Fashion-MNIST; ")
    assert digest(wrong) in str(caught.value)


def test_a_download_is_kept_in_the_cache(places: dict[str, Any]) -> None:
    with serving({}) as (empty, _), serving(PUBLISHED) as (full, asked):
        found = find_fashion_mnist(**(places | {"mirrors": (empty, full)}))
        check(found)
        assert found.origin == f"{full}, kept in {places['cache']}"
        assert sorted(asked) == sorted(f"/data/{name}" for name in PUBLISHED)
    assert sorted(path.name for path in places["cache"].iterdir()) == sorted(PUBLISHED)
    assert find_fashion_mnist(**places).origin == f"the cache {places['cache']}"


def test_a_download_goes_on_with_what_the_cache_lacks(places: dict[str, Any]) -> None:
    fill(places["cache"], {name: data for name, data in PUBLISHED.items() if "train" in name})
    with serving(PUBLISHED) as (mirror, asked):
        check(find_fashion_mnist(**(places | {"mirrors": (mirror,)})))
    assert sorted(asked) == ["/data/t10k-images-idx3-ubyte.gz", "/data/t10k-labels-idx1-ubyte.gz"]


def test_a_damaged_download_is_not_kept(places: dict[str, Any]) -> None:
    damaged = {name: data[:-20] for name, data in PUBLISHED.items()}
    with serving(damaged) as (mirror, _), pytest.raises(UnavailableError, match="cannot be uncompressed"):
        find_fashion_mnist(**(places | {"mirrors": (mirror,)}))
    assert not places["cache"].exists()


def test_a_silent_network_is_given_up_once_for_all_mirrors(places: dict[str, Any]) -> None:
    started_s = time.monotonic()
    with silent() as one, silent() as other, pytest.raises(UnavailableError) as caught:
        find_fashion_mnist(**(places | {"mirrors": (one, other), "silence_s": 0.4}))
    assert 0.4 <= time.monotonic() - started_s < 3.0
    message = str(caught.value)
    assert message.startswith("Fashion-MNIST is not on this machine and could not be downloaded (")
    assert f"{one}: silent for 0.4 s; {other}: silent for 0.4 s" in message
    assert "\n" not in message


def test_a_network_that_refuses_is_named(places: dict[str, Any]) -> None:
    with silent() as gone:
        pass
    with pytest.raises(UnavailableError, match=f"{gone}: .*refused"):
        find_fashion_mnist(**(places | {"mirrors": (gone,)}))


def test_digits() -> None:
    found = Digits()
    splits = found.splits()
    assert (found.name, found.classes) == ("digits", tuple("0123456789"))
    assert {split: len(part) for split, part in splits.items()} == {"train": 1438, "test": 359}
    for part in splits.values():
        assert part.images.shape[1:] == (28, 28)
        assert part.images.dtype == np.uint8
        assert (part.images.min(), part.images.max()) == (0, 255)
        assert set(part.labels.tolist()) == set(range(10))
    first = next(iter(splits["train"]))
    assert first["label"] == 0
    assert first["image"][2:26, 2:26].any()
    assert not first["image"][:2].any()
    assert not first["image"][:, 26:].any()


def test_sources_by_name(tmp_path: Path) -> None:
    assert SOURCES == ("fashion-mnist", "digits")
    assert open_source("digits").name == "digits"
    with pytest.raises(InvalidInputError, match=r"no such data set; received 'digit'; .*did you mean 'digits'"):
        open_source("digit")
    with pytest.raises(InvalidInputError, match="the digits come with Lockstep, not in a folder"):
        open_source("digits", folder=tmp_path)
    with pytest.raises(MissingInputError, match=f"{tmp_path} lacks train-images"):
        open_source("fashion-mnist", folder=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file of bytes"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "not an IDX file of bytes"),
        (idx(np.zeros((2, 3), np.uint8))[:-1], r"17 bytes, 18 expected for the shape \(2, 3\)"),
        (idx(np.zeros((2, 3), np.uint8)) + b"x", "19 bytes, 18 expected"),
        (b"\x00\x00\x08\x02\x00\x00\x00\x01\x00", "cut off in its header: 9 bytes, 12 needed"),
    ],
)
def test_what_is_no_idx_file_is_reported(content: bytes, message: str) -> None:
    with pytest.raises(CorruptDataError, match=f"x: {message}"):
        parse_idx(content, name="x")


def test_compressed_or_not() -> None:
    assert uncompressed(b"abc", name="x") == b"abc"
    assert uncompressed(gzip.compress(b"abc"), name="x") == b"abc"
    damaged = bytearray(gzip.compress(b"abc" * 100))
    damaged[12] ^= 255
    for data in (gzip.compress(b"abc")[:-3], bytes(damaged)):
        with pytest.raises(CorruptDataError, match="x: cannot be uncompressed"):
            uncompressed(data, name="x")
