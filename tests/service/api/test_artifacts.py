"""The files that a job left: listed in pages, downloaded piece by piece, and never anything else of the machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import wait_until

from lockstep.client import Client
from lockstep.client.addresses import ServiceAddress
from lockstep.errors import InvalidInputError, NotFoundError, UnavailableError
from lockstep.jobs.security.access import Scope
from lockstep.service import streams as streams_module
from lockstep.service.api.control import artifacts as artifacts_api
from lockstep.service.control import job_outputs
from lockstep.storage import open_bucket
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

PATH = "/v1/projects/local/jobs/j/artifacts"


@pytest.fixture
def folder(bench: Bench) -> Path:
    """The folder of the outputs of a job, with a few files."""
    bench.create("j", "pass")
    folder = bench.home.bucket / "j"
    for name, content in {
        "model/final.keras": b"model",
        "model/a b/ü#?%41.txt": b"odd",
        "checkpoints/1/state": b"12345678",
        "logs/u/r/000.jsonl": b"{}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def client(service: Served) -> Iterator[Client]:
    with Client(ServiceAddress(url=service.url, token=HOME_TOKEN)) as made:
        yield made


def _paths(service: Served, *, size: int = 0) -> list[str]:
    """Returns the paths on all pages of a size."""
    seen: list[str] = []
    token = ""
    while True:
        answer = service.http.get(PATH, params={"pageSize": size, "pageToken": token})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["artifacts"]) <= (size or 100)
        seen += [artifact["path"] for artifact in page["artifacts"]]
        token = page.get("nextPageToken", "")
        if not token:
            return seen


ALL = ["model/a b/ü#?%41.txt", "model/final.keras", "checkpoints/1/state", "logs/u/r/000.jsonl"]


def test_files_are_listed_in_pages_each_once(service: Served, folder: Path) -> None:
    (folder / "model" / ".lockstep-tmp-1").write_bytes(b"being written")
    for size in (1, 2, 3, 4, 9):
        assert _paths(service, size=size) == ALL
    assert [each["output"] for each in service.http.get(PATH).json()["artifacts"]] == ["model", "model", "checkpoints"]
    first = service.http.get(PATH).json()["artifacts"][1]
    assert (first["output"], first["sizeBytes"], first["updateTime"][:2]) == ("model", 5, "20")
    assert artifacts_api._time(1e15) is None, "programs choose the times of files, and no date has this one"


def test_a_file_is_downloaded_with_its_length_and_its_name(service: Served, folder: Path) -> None:
    answer = service.http.get(f"{PATH}/model/final.keras")
    assert (answer.content, answer.headers["content-length"]) == (b"model", "5")
    assert answer.headers["content-disposition"] == 'attachment; filename="final.keras"'
    assert answer.headers["content-type"] == "application/octet-stream"
    odd = service.http.get(f"{PATH}/model/a%20b/%C3%BC%23%3F%2541.txt")
    assert odd.content == b"odd"
    assert odd.headers["content-disposition"] == "attachment; filename*=utf-8''%C3%BC%23%3F%2541.txt"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("model/..%2f..%2f..%2ftoken", 400),
        ("model/%2e%2e/checkpoints/1/state", 400),
        ("model//final.keras", 400),
        ("model/%2e", 400),
        ("model/final.keras/", 400),
        ("model/final.keras/x", 404),
        ("model/%00", 400),
        ("model/a b", 404),  # a folder
        ("model", 404),
        ("nothing/x", 404),
        ("..%2fmodel/final.keras", 404),
        ("model/" + "a" * 300, 404),
    ],
)
def test_a_path_that_is_no_file_of_the_job_is_refused(service: Served, folder: Path, path: str, status: int) -> None:
    answer = service.http.get(f"{PATH}/{path}")
    assert answer.status_code == status, answer.text


def test_links_that_programs_make_are_neither_listed_nor_followed(service: Served, folder: Path) -> None:
    (folder.parent / "secret").mkdir()
    (folder.parent / "secret" / "token").write_text("hidden")
    (folder / "model" / "link").symlink_to(folder.parent / "secret" / "token")
    (folder / "model" / "folder").symlink_to(folder.parent / "secret")
    os.mkfifo(folder / "model" / "pipe")
    assert _paths(service) == ALL
    for path in ("model/link", "model/folder/token", "model/pipe"):
        assert service.http.get(f"{PATH}/{path}").status_code == 404, path
    (folder / "model").rename(folder / "elsewhere")
    (folder / "model").symlink_to(folder.parent / "secret")  # the whole output is a link
    assert service.http.get(f"{PATH}/model/token").status_code == 404
    listed = service.http.get(PATH)
    assert listed.status_code == 502
    assert "links are not followed" in listed.json()["error"]["message"]
    assert "hidden" not in listed.text


def test_a_folder_that_becomes_a_link_while_it_is_read_is_not_followed(
    service: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "secret").mkdir()
    (folder.parent / "secret" / "token").write_text("hidden")
    stored = job_outputs._stored

    def replace(entry: os.DirEntry[str], *, key: str) -> Any:
        place = folder / "model" / "a b"
        if not place.is_symlink():
            place.rename(folder / "moved")
            place.symlink_to(folder.parent / "secret")
        return stored(entry, key=key)

    monkeypatch.setattr(job_outputs, "_stored", replace)
    assert _paths(service) == ["model/final.keras", "checkpoints/1/state", "logs/u/r/000.jsonl"]


def test_other_buckets_are_read_too(service: Served, bench: Bench) -> None:
    job = bench.create("j", "pass")
    open_bucket("memory://artifacts/model").write("x/y.bin", b"far")
    bench.store.update(job.uid, outputs={"model": "memory://artifacts/model"})
    assert _paths(service) == ["model/x/y.bin"]
    assert service.http.get(f"{PATH}/model/x/y.bin").content == b"far"
    assert service.http.get(f"{PATH}/model/x").status_code == 404


def test_a_viewer_of_the_project_reads_them_and_nobody_else(service: Served, folder: Path) -> None:
    for project, status in (("local", 200), ("other", 404)):
        viewer = service.client(service.key(Scope.VIEWER, project=project))
        for path in (PATH, f"{PATH}/model/final.keras"):
            assert viewer.get(path).status_code == status


def test_receivers_that_do_not_read_starve_nobody(service: Served, folder: Path) -> None:
    with (folder / "model" / "large").open("wb") as file:
        file.truncate(64 << 20)
    host, port = service.url.removeprefix("http://").split(":")
    request = f"GET {PATH}/model/large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {HOME_TOKEN}\r\n\r\n".encode()
    slow: list[socket.socket] = []
    try:
        for _ in range(streams_module.MAX_STREAMS - 1):  # more than the threads that all other requests share
            slow.append(socket.create_connection((host, int(port)), timeout=30))
            slow[-1].sendall(request)
            assert slow[-1].recv(12) == b"HTTP/1.1 200"
        assert service.http.get("/v1/projects/local/jobs", timeout=10).status_code == 200
        assert service.http.get(f"{PATH}/model/final.keras", timeout=10).content == b"model"
        slow.append(socket.create_connection((host, int(port)), timeout=30))
        slow[-1].sendall(request)
        assert slow[-1].recv(12) == b"HTTP/1.1 200"
        refused = service.http.get(f"{PATH}/model/final.keras", timeout=10)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    finally:
        for connection in slow:
            connection.close()


def test_a_receiver_that_takes_too_long_loses_the_connection(
    service: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "SEND_S", 0.2)
    with (folder / "model" / "large").open("wb") as file:
        file.truncate(64 << 20)
    with service.http.stream("GET", f"{PATH}/model/large") as answer:
        pieces = answer.iter_raw()
        num_bytes = len(next(pieces))
        streams = service.context.streams
        wait_until(lambda: streams._num_open == 0)
        with pytest.raises(Exception, match="without sending complete"):
            num_bytes += sum(map(len, pieces))
    assert num_bytes < 64 << 20


def test_a_client_lists_and_fetches_whole_files(client: Client, folder: Path, tmp_path: Path) -> None:
    assert [artifact["path"] for artifact in client.artifacts("j")] == ALL
    for path in ALL:
        client.fetch_artifact("j", path, to=tmp_path / "fetched" / "file")
        assert (tmp_path / "fetched" / "file").read_bytes() == (folder / path).read_bytes()
    with pytest.raises(NotFoundError, match="no artifact 'model/none'"):
        client.fetch_artifact("j", "model/none", to=tmp_path / "absent")
    with pytest.raises(InvalidInputError, match="not the path of an artifact"):
        client.fetch_artifact("j", "model/../x", to=tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_a_file_that_does_not_arrive_whole_is_not_there(
    client: Client, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = artifacts_api.open_artifact

    def overstate(*args: Any, **options: Any) -> Any:
        file, size_bytes = opened(*args, **options)
        return file, size_bytes + 1  # as if the file became shorter meanwhile

    monkeypatch.setattr(artifacts_api, "open_artifact", overstate)
    with pytest.raises(UnavailableError):
        client.fetch_artifact("j", "model/final.keras", to=tmp_path / "here" / "file")
    assert list((tmp_path / "here").iterdir()) == []
