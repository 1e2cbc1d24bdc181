"""Stores that throttle, fail, drop connections and refuse, in front of which a proxy makes them so."""

import http.client
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import gcsfs.core
import pytest
import s3fs
from google.auth.exceptions import RefreshError
from tests.storage.proxy import Proxy, proxy_before
from tests.storage.servers import environment, gs_server, s3_server

from lockstep.errors import (
    MissingInputError,
    StorageError,
    StoragePermissionError,
    StorageWriteError,
)
from lockstep.storage import AbstractBucket, RetryPolicy, open_bucket, remote

QUICK = RetryPolicy(deadline_s=0.1, first_pause_s=0.01, longest_pause_s=0.02, connect_timeout_s=5, read_timeout_s=10)
PATIENT = RetryPolicy(deadline_s=20, first_pause_s=0.01, longest_pause_s=0.05, connect_timeout_s=5, read_timeout_s=10)
IMPATIENT = RetryPolicy(
    deadline_s=20, first_pause_s=0.01, longest_pause_s=0.05, connect_timeout_s=5, read_timeout_s=0.2
)
HASTY = RetryPolicy(deadline_s=0.1, first_pause_s=0.01, longest_pause_s=0.02, connect_timeout_s=5, read_timeout_s=0.1)
DATA = bytes(range(256)) * 400


@final
@dataclass(frozen=True, kw_only=True)
class Store:
    """A store behind a proxy."""

    scheme: str
    proxy: Proxy

    def bucket(self, policy: RetryPolicy) -> AbstractBucket:
        """A bucket with one object, x, that no other test sees."""
        self.proxy.forward()
        bucket = open_bucket(f"{self.scheme}://bucket-of-faults/{uuid.uuid4().hex}", policy=policy)
        bucket.write("x", DATA)
        self.proxy.forward()
        return bucket


@pytest.fixture(scope="module", params=["s3", "gs"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    server, variable = (
        (s3_server, "AWS_ENDPOINT_URL") if request.param == "s3" else (gs_server, "STORAGE_EMULATOR_HOST")
    )
    with (
        server() as variables,
        proxy_before(variables[variable]) as proxy,
        environment({**variables, variable: proxy.url}),
    ):
        client: Any = s3fs.S3FileSystem if request.param == "s3" else gcsfs.core.GCSFileSystem
        client(use_listings_cache=False).mkdir("bucket-of-faults")
        yield Store(scheme=request.param, proxy=proxy)


CALLS: dict[str, Callable[[AbstractBucket, Path], object]] = {
    "read": lambda bucket, folder: bucket.read("x"),
    "range": lambda bucket, folder: bucket.read("x", start_byte=5, end_byte=9000),
    "open": lambda bucket, folder: bucket.open("x").read(),
    "size": lambda bucket, folder: bucket.size_bytes("x"),
    "list": lambda bucket, folder: [item.key for item in bucket.list()],
    "download": lambda bucket, folder: bucket.download("x", path=folder / "x"),
    "write": lambda bucket, folder: bucket.write("y", DATA),
    "upload": lambda bucket, folder: bucket.upload("y", path=__file__),
    "delete": lambda bucket, folder: bucket.delete("x"),
}
WRITES = ("write", "upload", "delete")
# What else is done goes the same ways through the client: `make test-all` looks at that.
FEW_CALLS = [
    call if call in ("read", "range", "list", "write", "delete") else pytest.param(call, marks=pytest.mark.heavy)
    for call in CALLS
]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        *(pytest.param(call, "503", marks=[] if call in ("range", "write") else pytest.mark.heavy) for call in CALLS),
        *[("list", "429"), ("read", "reset"), ("upload", "reset")],
    ],
)
def test_what_passes_is_not_seen(store: Store, kind: str, call: str, tmp_path: Path) -> None:
    expected = CALLS[call](store.bucket(PATIENT), tmp_path)
    bucket = store.bucket(PATIENT)
    options = {} if kind == "reset" else {"status": int(kind)}
    store.proxy.inject("reset" if kind == "reset" else "status", times=2, **options)
    assert CALLS[call](bucket, tmp_path) == expected
    assert len(store.proxy.requests) > 2
    if call == "download":
        assert (tmp_path / "x").read_bytes() == DATA
    if call in ("write", "upload"):
        assert bucket.read("y") == (DATA if call == "write" else Path(__file__).read_bytes())


@pytest.mark.parametrize("call", ["read", "range", "download"])
def test_a_body_that_is_cut_is_read_again(store: Store, call: str, tmp_path: Path) -> None:
    expected = CALLS[call](store.bucket(PATIENT), tmp_path)
    bucket = store.bucket(PATIENT)
    store.proxy.inject("cut", times=2)
    assert CALLS[call](bucket, tmp_path) == expected


def test_a_range_that_comes_short_is_read_again(store: Store) -> None:
    bucket = store.bucket(PATIENT)
    store.proxy.inject("short", times=2, applies=lambda request: request.range is not None)
    assert bucket.read("x", start_byte=5, end_byte=9000) == DATA[5:9000]
    store.proxy.inject("short", times=2, applies=lambda request: request.range is not None)
    with bucket.open("x") as file:
        assert file.read() == DATA
    bucket = open_bucket(bucket.url, policy=QUICK)
    store.proxy.inject("short", applies=lambda request: request.range is not None)
    with pytest.raises(StorageError, match="last error: received 4497 of 8995 requested bytes"):
        bucket.read("x", start_byte=5, end_byte=9000)


@pytest.mark.parametrize("call", ["read", "write"])
def test_a_server_that_is_silent_is_asked_again(store: Store, call: str, tmp_path: Path) -> None:
    bucket = store.bucket(IMPATIENT)
    store.proxy.inject("stall", times=1)
    CALLS[call](bucket, tmp_path)


@pytest.mark.parametrize("call", FEW_CALLS)
def test_what_does_not_pass_is_named_in_time(store: Store, call: str, tmp_path: Path) -> None:
    bucket = store.bucket(QUICK)
    store.proxy.inject("status", **refusal(store, "SlowDown", "Reduce your request rate.", 503))
    start_s = time.monotonic()
    with pytest.raises(StorageError) as caught:
        CALLS[call](bucket, tmp_path)
    assert time.monotonic() - start_s < 20
    line = str(caught.value)
    verb = {"write": "write", "upload": "write", "delete": "delete", "list": "list"}.get(call, "read")
    assert re.fullmatch(rf"cannot {verb} {bucket.url}/[xy]?: gave up after \d+ attempts over .* s; .*HTTP 503\)?", line)
    assert isinstance(caught.value, StorageWriteError) == (call in WRITES)
    # One request for each attempt: the clients' own attempts would multiply with ours. (Of gs:// to look for an object
    # takes several at once.)
    num_attempts = int(line.split("gave up after ")[1].split()[0])
    assert 2 <= num_attempts <= len(store.proxy.requests) <= num_attempts * (3 if store.scheme == "gs" else 1)
    assert list(tmp_path.iterdir()) == []


def test_connections_that_always_drop_and_servers_that_never_answer_are_named(store: Store) -> None:
    bucket = open_bucket(store.bucket(PATIENT).url, policy=HASTY)
    for kind in ("reset", "cut", "stall"):
        store.proxy.inject(kind)
        start_s = time.monotonic()
        with pytest.raises(StorageError, match=f"cannot read {bucket.url}/x: gave up after .* last error: ."):
            bucket.read("x")
        assert time.monotonic() - start_s < 20


def test_a_download_that_breaks_off_goes_on(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come is not asked for again: each piece has attempts of its own."""
    monkeypatch.setattr(remote, "PIECE_BYTES", 20_000)
    bucket = store.bucket(PATIENT)
    store.proxy.inject("cut", times=2, applies=lambda request: request.range == "bytes=40000-59999")
    bucket.download("x", path=tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    ranges = [request.range for request in store.proxy.requests if request.range is not None]
    assert {name: ranges.count(name) for name in ranges} == {
        f"bytes={start}-{min(start + 20_000, len(DATA)) - 1}": 3 if start == 40_000 else 1
        for start in range(0, len(DATA), 20_000)
    }


def test_what_is_written_in_parts_is_tried_again_below_ours(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a large object is written, the client tries each request again: else one part would repeat them all."""
    monkeypatch.setattr(remote, "LARGE_BYTES", 10)
    bucket = open_bucket(store.bucket(PATIENT).url, policy=RetryPolicy(deadline_s=0))
    store.proxy.inject("status", times=1, status=503)
    bucket.write("y", DATA)
    assert bucket.read("y") == DATA
    store.proxy.inject("status", **refusal(store, "AccessDenied", "Access Denied", 403))
    with pytest.raises(StoragePermissionError):
        bucket.write("y", DATA)
    assert len(store.proxy.requests) == 1


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # aiohttp's of what clients do
def test_a_part_that_fails_does_not_repeat_the_others(store: Store, tmp_path: Path) -> None:
    if store.scheme != "s3":
        pytest.skip("the emulator names its own address for the parts, past the proxy")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(110 << 20)
    bucket = store.bucket(RetryPolicy(deadline_s=0))
    store.proxy.inject("status", times=1, applies=lambda request: "partNumber=2" in request.path)
    bucket.upload("y", path=tmp_path / "large")
    assert bucket.size_bytes("y") == 110 << 20
    parts = [request.path for request in store.proxy.requests if "partNumber=" in request.path]
    assert len(parts) == len(set(parts)) + 1


def test_a_move_that_fails_for_a_while_is_a_move(store: Store) -> None:
    bucket = store.bucket(PATIENT)
    for method in ("DELETE", "PUT" if store.scheme == "s3" else "POST"):
        store.proxy.inject("status", times=1, status=503, applies=lambda request, of=method: request.method == of)
        bucket.move("x", to="y")
        assert [item.key for item in bucket.list()] == ["y"]
        bucket.move("y", to="x")
    store.proxy.inject("status", **refusal(store, "AccessDenied", "Access Denied", 403))
    with pytest.raises(StoragePermissionError, match=f"no permission to move {bucket.url}/x to y: "):
        bucket.move("x", to="y")


def test_a_server_that_is_not_there_is_named() -> None:
    with environment({"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1", "NO_GCE_CHECK": "true"}):
        bucket = open_bucket("gs://bucket/x", policy=QUICK)
        with pytest.raises(StorageError, match=r"cannot list gs://bucket/x/: gave up after .*127\.0\.0\.1"):
            bucket.list()


@pytest.mark.parametrize(
    ("url", "variable"), [("s3://bucket/x", "AWS_ENDPOINT_URL"), ("gs://bucket/x", "STORAGE_EMULATOR_HOST")]
)
def test_a_server_whose_name_is_not_known_is_named_at_once(url: str, variable: str) -> None:
    account = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "no secret", "NO_GCE_CHECK": "true"}
    with environment(account | {variable: "http://store.invalid"}):
        bucket = open_bucket(url, policy=RetryPolicy(deadline_s=0))  # where no name server answers either
        with pytest.raises(StorageError) as caught:
            bucket.list()
    assert str(caught.value).startswith(f"cannot list {url}/: ")
    assert "the host store.invalid was not found: " in str(caught.value)
    assert "; check the network" in str(caught.value)
    assert variable in str(caught.value)


def test_an_account_of_the_machine_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def refresh(account: Any, request: Any) -> None:
        del request
        asked.append(account)
        raise RefreshError("there is no such server")

    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", True)
    monkeypatch.setattr("google.auth.compute_engine.Credentials.refresh", refresh)
    for name in ("NO_GCE_CHECK", "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    with environment({"CLOUDSDK_CONFIG": str(tmp_path)}):
        open_bucket("gs://bucket")
    assert asked == []


def test_a_bucket_serves_a_forked_process_as_well(store: Store) -> None:
    bucket = store.bucket(PATIENT)
    program = f"""if True:
        import os, signal, warnings
        from lockstep.storage import open_bucket

        bucket = open_bucket({bucket.url!r})
        size_bytes = bucket.size_bytes("x")
        warnings.simplefilter("ignore")  # Python's own, of threads that do not survive
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if len(bucket.read("x")) == size_bytes else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(bucket.read("x")) == size_bytes
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_range_is_one_request(store: Store) -> None:
    bucket = store.bucket(PATIENT)
    assert bucket.read("x", start_byte=100, end_byte=200) == DATA[100:200]
    assert [(request.method, request.range) for request in store.proxy.requests] == [("GET", "bytes=100-199")]
    store.proxy.forward()
    assert bucket.read("x", start_byte=100) == DATA[100:]
    assert bucket.read("x") == DATA
    assert [(request.method, request.range) for request in store.proxy.requests] == [
        ("GET", "bytes=100-"),
        ("GET", None),
    ]


def test_an_opened_object_that_vanishes_is_named(store: Store) -> None:
    bucket = store.bucket(PATIENT)
    with bucket.open("x") as file:
        bucket.delete("x")
        with pytest.raises(MissingInputError, match=f"there is no object {bucket.url}/x"):
            file.read(1)


def test_what_is_missing_is_not_asked_for_again(store: Store) -> None:
    bucket = store.bucket(PATIENT)
    with pytest.raises(MissingInputError):
        bucket.read("gone")
    assert len(store.proxy.requests) == 1


def refusal(store: Store, code: str, message: str, status: int) -> dict[str, Any]:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    if store.scheme == "gs":
        body = f'{{"error": {{"code": {status}, "message": "{message}"}}}}'
    return {"status": status, "body": body.encode()}


@pytest.mark.parametrize("call", FEW_CALLS)
def test_what_is_refused_is_no_absence(store: Store, call: str, tmp_path: Path) -> None:
    bucket = store.bucket(PATIENT)
    store.proxy.inject("status", **refusal(store, "AccessDenied", "Access Denied", 403))
    with pytest.raises(StoragePermissionError) as caught:
        CALLS[call](bucket, tmp_path)
    line = str(caught.value)
    assert line.startswith("no permission to ")
    assert bucket.url in line
    assert ("use credentials whose policy allows it" if store.scheme == "s3" else "use an account whose role") in line
    assert "\n" not in line
    assert len(store.proxy.requests) <= 3
    assert (caught.value.http_status, caught.value.exit_code) == (403, 20)
    with pytest.raises(StoragePermissionError):
        bucket.exists("x")


def test_credentials_that_are_not_known_are_told_from_rights_that_lack(store: Store) -> None:
    bucket = store.bucket(PATIENT)
    status = 403 if store.scheme == "s3" else 401
    store.proxy.inject("status", **refusal(store, "InvalidAccessKeyId", "Nobody knows that key.", status))
    with pytest.raises(StoragePermissionError) as caught:
        bucket.read("x")
    said = "(InvalidAccessKeyId, HTTP 403)" if store.scheme == "s3" else "(HTTP 401)"
    hint = "AWS_ACCESS_KEY_ID" if store.scheme == "s3" else "gcloud auth application-default login"
    assert str(caught.value).startswith(
        f"cannot read {bucket.url}/x: credentials are missing or not valid: Nobody knows that key {said}; "
    )
    assert hint in str(caught.value)


def test_missing_credentials_of_s3_are_named(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if store.scheme != "s3":
        pytest.skip("gs:// asks without an account first, which is answered by 401")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with environment({"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "a"), "AWS_CONFIG_FILE": str(tmp_path / "b")}):
        bucket = open_bucket("s3://bucket-of-faults/y", policy=PATIENT)
        with pytest.raises(
            StoragePermissionError, match="cannot write s3://bucket-of-faults/y/x: credentials are missing"
        ):
            bucket.write("x", b"")


def test_a_bucket_that_is_not_there_is_no_transient_fault(store: Store) -> None:
    store.proxy.forward()
    bucket = open_bucket(f"{store.scheme}://no-such-bucket", policy=PATIENT)
    with pytest.raises(MissingInputError, match=f"there is no object {store.scheme}://no-such-bucket/x"):
        bucket.read("x")
    with pytest.raises(StorageWriteError, match=rf"^cannot write {bucket.url}/x: there is no such bucket( \(|$)"):
        bucket.write("x", b"")
    with pytest.raises(StorageError, match=rf"^cannot list {bucket.url}/: there is no such bucket( \(|$)"):
        bucket.list()


def test_the_proxy_does_what_it_says(store: Store) -> None:
    host, port = store.proxy.url.removeprefix("http://").split(":")
    store.proxy.inject("reset", times=1)
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    connection.request("GET", "/")
    with pytest.raises(ConnectionResetError):
        connection.getresponse()
    connection.close()
