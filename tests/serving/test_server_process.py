"""The server as the service has it: a process that is started, watched, adopted and ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import keras
import numpy as np
import psutil
import pytest

from lockstep.errors import CorruptDataError, ModelError
from lockstep.processes import ProcessIdentity
from lockstep.serving import ServerFailed, ServerHandle, ServerReady, ServerStarting, poll, start_server, stop, stop_all
from lockstep.serving.process import server_environment

DEADLINE_S = 90.0
PAUSE_S = 0.05


def settled(handle: ServerHandle) -> ServerReady | ServerFailed:
    """Waits until the server is ready or has failed."""
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / PAUSE_S)):
        status = poll(handle)
        if not isinstance(status, ServerStarting):
            return status
        pause.wait(PAUSE_S)
    raise AssertionError("the server neither started nor failed in time")


@pytest.fixture(scope="module")
def server(model_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerHandle, ServerReady]]:
    folder = tmp_path_factory.mktemp("server")
    os.environ["LOCKSTEP_TOKEN"] = "the service's own"
    try:
        handle = start_server(model_url=model_url, folder=folder)
    finally:
        del os.environ["LOCKSTEP_TOKEN"]
    try:
        status = settled(handle)
        assert isinstance(status, ServerReady), status
        yield handle, status
    finally:
        stop(handle)
    assert not psutil.pid_exists(handle.pid)


Started = tuple[ServerHandle, ServerReady]


def predict(status: ServerReady, instances: list[object], *, token: str | None = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token or status.token}"}
    return httpx.post(f"{status.url}/predict", json={"instances": instances}, headers=headers, timeout=30)


def test_it_predicts_what_the_model_predicts(server: Started, image_model: keras.Model) -> None:
    _, status = server
    batch = np.random.default_rng(5).integers(0, 256, (10, 6, 4), np.uint8)
    response = predict(status, batch.tolist())
    np.testing.assert_allclose(response.json()["predictions"], image_model.predict(batch, verbose=0), rtol=1e-6)
    assert predict(status, batch.tolist(), token="other").status_code == 401
    assert httpx.get(f"{status.url}/healthz").json() == {"status": "ok"}


def test_many_clients_get_their_own_answers(server: Started, image_model: keras.Model) -> None:
    _, status = server
    batch = np.random.default_rng(6).integers(0, 256, (24, 6, 4), np.uint8)
    expected = image_model.predict(batch, verbose=0)
    answers: dict[int, object] = {}

    def ask(index: int) -> None:
        answers[index] = predict(status, [batch[index].tolist()]).json()["predictions"][0]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(batch))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    np.testing.assert_allclose([answers[index] for index in range(len(batch))], expected, rtol=1e-5, atol=1e-7)


def test_it_lives_in_a_session_of_its_own_without_the_services_secrets(server: Started) -> None:
    handle, status = server
    assert os.getsid(handle.pid) == handle.pid != os.getsid(0)
    assert psutil.Process(handle.pid).cwd() == handle.folder
    environment = psutil.Process(handle.pid).environ()
    assert "LOCKSTEP_TOKEN" not in environment
    assert environment["KERAS_BACKEND"] == "jax"
    assert environment["LOCKSTEP_SPOOL"] == handle.folder, "by which `down` finds it where its handle was lost"
    assert handle.token_file.stat().st_mode & 0o777 == 0o600
    assert status.token not in " ".join(psutil.Process(handle.pid).cmdline())
    assert status.token not in repr(status)
    assert status.inputs[0]["shape"] == [6, 4]


def test_it_is_adopted_through_json(server: Started) -> None:
    handle, status = server
    adopted = ServerHandle.from_json(json.loads(json.dumps(handle.to_json())))
    assert adopted == handle
    assert poll(adopted) == status


def test_it_is_adopted_after_a_step_of_the_clock(server: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, status = server
    if sys.platform == "linux":
        boot_time = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot_time + 3600)
    assert poll(handle) == status


def test_another_process_with_its_id_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        now = ProcessIdentity.of(other.pid)
        assert now is not None
        earlier = replace(now, start=f"{now.start}0")
        handle = ServerHandle(process=earlier, folder=str(tmp_path), model_url="m")
        assert isinstance(poll(handle), ServerFailed)
        stop(handle)
        assert other.poll() is None
        assert other.stdin is not None
        other.stdin.close()
        other.wait(DEADLINE_S)


def test_a_model_that_cannot_be_loaded_is_the_reason(tmp_path: Path) -> None:
    handle = start_server(model_url=str(tmp_path / "none.keras"), folder=tmp_path / "server")
    status = settled(handle)
    assert status == ServerFailed(
        reason=f"cannot load the model {tmp_path}/none.keras: there is no object {tmp_path}/none.keras"
    )
    stop(handle)
    stop(handle)


def test_a_server_that_nobody_kept_is_ended_by_the_next_in_its_folder(tmp_path: Path) -> None:
    lost = start_server(model_url=str(tmp_path / "none.keras"), folder=tmp_path)
    lost_process = psutil.Process(lost.pid)
    following = start_server(model_url=str(tmp_path / "none.keras"), folder=tmp_path)
    assert not lost_process.is_running()
    assert ServerHandle.from_json(json.loads(following.record_file.read_text())) == following
    stop(following)
    assert not following.record_file.exists()
    following.record_file.write_text("{")
    last = start_server(model_url=str(tmp_path / "none.keras"), folder=tmp_path)
    stop(last)
    assert not psutil.pid_exists(last.pid)


@pytest.mark.parametrize("record", ["whole", "cut short", "never written"])
def test_every_server_beneath_a_folder_is_ended_with_or_without_its_record(tmp_path: Path, record: str) -> None:
    """A starter killed at any moment leaves no server that cannot be found again."""
    waits = tmp_path / "model.keras"
    os.mkfifo(waits)  # a server that reads it waits until it is ended
    handle = start_server(model_url=str(waits), folder=tmp_path / "servers" / "m" / "v1")
    process = psutil.Process(handle.pid)
    if record == "cut short":
        handle.record_file.write_text("{")
    elif record == "never written":
        handle.record_file.unlink()
    stop_all(folder=tmp_path / "servers" / "other")
    assert process.is_running()
    (tmp_path / "alias").symlink_to(tmp_path / "servers")
    stop_all(folder=tmp_path / "alias")
    assert not process.is_running()
    assert not handle.record_file.exists()
    stop_all(folder=tmp_path / "alias")


@pytest.mark.parametrize("stops_all", [False, True])
def test_a_server_that_does_not_end_on_request_is_killed(tmp_path: Path, stops_all: bool) -> None:
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as deaf:
        assert deaf.stdout is not None
        assert deaf.stdout.readline() == b"deaf\n"
        process = ProcessIdentity.of(deaf.pid)
        assert process is not None
        handle = ServerHandle(process=process, folder=str(tmp_path), model_url="m")
        assert isinstance(poll(handle), ServerStarting)
        start_s = time.monotonic()
        if stops_all:
            handle.record_file.write_text(json.dumps(handle.to_json()))
            stop_all(folder=tmp_path, grace_s=0.2)
        else:
            stop(handle, grace_s=0.2)
        assert time.monotonic() - start_s < 8, "the grace period is this one, not the default"
        assert not psutil.pid_exists(deaf.pid)
        assert deaf.wait(DEADLINE_S) in (-signal.SIGKILL, 0)  # 0: somebody else has waited for it


def test_the_environment_keeps_what_is_needed_alone() -> None:
    given = {"PATH": "/bin", "LOCKSTEP_TOKEN": "x", "AWS_PROFILE": "p", "SECRET": "s", "JAX_PLATFORMS": "cuda"}
    assert server_environment(given) == {
        "PATH": "/bin",
        "AWS_PROFILE": "p",
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "PYTHONUNBUFFERED": "1",
    }


def test_a_record_of_something_else_is_refused() -> None:
    for document in ({"pid": "x"}, {"process": {"pid": "x"}, "folder": "f", "model_url": "m"}, []):
        with pytest.raises(CorruptDataError, match="not the record of a prediction server"):
            ServerHandle.from_json(document)


def test_the_service_side_imports_neither_jax_nor_keras() -> None:
    program = "import sys, lockstep.serving; print(sorted({'jax', 'keras', 'fastapi'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


@pytest.fixture
def run_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    from lockstep.serving.__main__ import main  # it imports JAX, which the test above must not inherit

    monkeypatch.chdir(tmp_path)  # where a server goes by itself: it comes back from there when the test has ended
    (tmp_path / "token").write_text("a-token\n")

    def run(*flags: str) -> int:
        files = [f"--ready-file={tmp_path / 'ready'}", f"--token-file={tmp_path / 'token'}"]
        return main(["--model-url=none.keras", *files, *flags])

    return run


@pytest.mark.parametrize(
    ("flags", "exit_code", "message"),
    [
        (["--max-batch-size=0"], 64, "--max-batch-size; received 0; allowed: 1 or more"),
        (["--port=70000"], 64, "--port; received 70000; allowed: 0 to 65535"),
        (["--token-file=/none/token"], 66, "cannot read the token file /none/token: No such file or directory"),
        ([], ModelError.exit_code, "cannot load the model none.keras: there is no object"),
    ],
)
def test_what_goes_wrong_at_the_start_is_one_line_and_an_exit_code(
    run_main: Callable[..., int], capsys: pytest.CaptureFixture[str], flags: list[str], exit_code: int, message: str
) -> None:
    assert run_main(*flags) == exit_code
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_a_port_that_is_taken_is_refused(run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_main(f"--port={port}") == 71
    assert capsys.readouterr().err.startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use")
