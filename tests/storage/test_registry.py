import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.storage import check_shared_url, glob_urls, join_url, open_bucket, read_url, split_url


def test_paths_and_file_urls_are_the_same_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_bucket(tmp_path.as_uri()).write("x", b"1")
    for url in (str(tmp_path), f"{tmp_path}/", tmp_path, ".", f"../{tmp_path.name}", f"file://{tmp_path}/"):
        bucket = open_bucket(url)
        assert bucket.read("x") == b"1"
        assert bucket.url == str(tmp_path)
    assert open_bucket(bucket.url_of("sub")).url == f"{tmp_path}/sub"


def test_a_bucket_under_a_prefix_is_part_of_the_bucket() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    open_bucket(url).write("a/b/c", b"1")
    assert open_bucket(f"{url}/a/").read("b/c") == b"1"
    assert [item.key for item in open_bucket(f"{url}/a").list()] == ["b/c"]
    assert read_url(f"{url}/a/b/c") == b"1"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("gs://b/p/x", ("gs://b", "p/x")),
        ("s3://b/x", ("s3://b", "x")),
        ("memory://b/p/x", ("memory://b", "p/x")),
        ("file:///d/p/x", ("/d/p", "x")),
        ("/d/p/x", ("/d/p", "x")),
        ("/x", ("/", "x")),
        ("p/x", ("p", "x")),
        ("x", (".", "x")),
    ],
)
def test_split_url(url: str, parts: tuple[str, str]) -> None:
    assert split_url(url) == parts


@pytest.mark.parametrize("url", ["gs://b", "s3://b/", "memory://b", "/"])
def test_split_url_needs_an_object(url: str) -> None:
    with pytest.raises(InvalidInputError, match="names a bucket, not an object"):
        split_url(url)


def test_join_url() -> None:
    assert join_url("gs://b/p/", "x/", "", "y") == "gs://b/p/x/y"
    assert join_url("/d", "x") == "/d/x"
    assert join_url("/", "x") == "/x"
    assert join_url("/d") == "/d"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "the URL is empty"),
        ("gss://b/x", r"no such kind of storage; received 'gss://b/x'; allowed: .*; did you mean 'gs'"),
        ("http://host/x", "no such kind of storage"),
        ("file://relative", "a file URL names an absolute path"),
        ("gs://", "the URL names no bucket"),
        ("memory:///", "the URL names no bucket"),
    ],
)
def test_bad_urls(url: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_bucket(url)


def test_read_url_names_what_is_absent(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=f"there is no object {tmp_path}/x"):
        read_url(tmp_path / "x")


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_glob_urls(kind: str, tmp_path: Path) -> None:
    root = str(tmp_path) if kind == "local" else f"memory://{uuid.uuid4().hex}"
    for key in ("t-0.tfrec", "t-1.tfrec", "t-10.tfrec", "t.0", "d/t-2.tfrec", "d/e/t-3.tfrec", "^a"):
        open_bucket(root).write(key, b"")

    def found(pattern: str) -> list[str]:
        return [url.removeprefix(f"{root}/") for url in glob_urls(f"{root}/{pattern}")]

    assert found("t-*.tfrec") == ["t-0.tfrec", "t-1.tfrec", "t-10.tfrec"]
    assert found("t-?.tfrec") == ["t-0.tfrec", "t-1.tfrec"]
    assert found("t-[1-9]*.tfrec") == ["t-1.tfrec", "t-10.tfrec"]
    assert found("t-[!1]*") == ["t-0.tfrec"]
    assert found("[^]a") == ["^a"]
    assert found("t.*") == ["t.0"]
    assert found("*/t-*") == ["d/t-2.tfrec"]
    assert found("**/t-*.tfrec") == ["d/e/t-3.tfrec", "d/t-2.tfrec", "t-0.tfrec", "t-1.tfrec", "t-10.tfrec"]
    assert found("d/**") == ["d/e/t-3.tfrec", "d/t-2.tfrec"]
    assert found("t-0.tfrec") == ["t-0.tfrec"]
    assert found("gone") == []
    assert found("gone/*") == []


def test_glob_urls_keeps_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"")
    assert glob_urls("*") == ["a"]
    assert glob_urls("./*") == ["./a"]


@pytest.mark.parametrize(("scheme", "package", "extra"), [("gs", "gcsfs", "gcs"), ("s3", "s3fs", "s3")])
def test_a_missing_extra_is_named(scheme: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (package, f"{package}.core"):
        monkeypatch.setitem(sys.modules, module, None)  # what Python holds for a module that cannot be imported
    with pytest.raises(InvalidInputError) as caught:
        open_bucket(f"{scheme}://bucket/prefix")
    assert str(caught.value) == (
        f"cannot open {scheme}://bucket/prefix: the package {package} is not installed; "
        f"run: pip install 'lockstep-train[{extra}]'"
    )


def test_a_local_bucket_imports_no_client() -> None:
    program = (
        "import sys; from lockstep.storage import open_bucket; open_bucket('.').list();"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'fsspec', 'numpy', 'jax', 'keras', 'grain'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("url", ["/a/b", "file:///a/b", "gs://bucket/key", "s3://bucket"])
def test_places_that_every_process_finds(url: str) -> None:
    check_shared_url(url, what="--bucket")


@pytest.mark.parametrize("url", ["a/b", ".", "../a", "memory://bucket/key"])
def test_places_that_another_process_does_not_find_are_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="--bucket: must mean the same place in other processes"):
        check_shared_url(url, what="--bucket")
