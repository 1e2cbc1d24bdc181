"""The server as a node has it: a process under a runner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import keras
import numpy as np
import psutil
import pytest
from tests.serving.served_model import TOKEN, WAIT_S, ServedModel
from tests.waiting import wait_until

from lockstep.errors import ModelError
from lockstep.jobs.running.orders import Fault
from lockstep.serving import SERVER_TOKEN

SHUTDOWN_S = 5.0
"""How long a server answers its open requests after SIGTERM, in seconds, as docs/prediction.md says."""


@pytest.fixture(scope="module")
def server(model_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    os.environ["LOCKSTEP_TOKEN"] = "the service's own"
    try:
        made = ServedModel(tmp_path_factory.mktemp("server"), model_url)
        assert made.await_start().ready_time_s is not None
    finally:
        del os.environ["LOCKSTEP_TOKEN"]
    yield made
    end = made.close().end
    assert end is not None
    assert end.stopped


def test_it_predicts_what_the_model_predicts(server: ServedModel, image_model: keras.Model) -> None:
    batch = np.random.default_rng(5).integers(0, 256, (10, 6, 4), np.uint8)
    np.testing.assert_allclose(server.predict(batch.tolist()), image_model.predict(batch, verbose=0), rtol=1e-6)
    assert server.post(batch.tolist(), token="other").status_code == 401
    assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}


def test_many_clients_get_their_own_answers(server: ServedModel, image_model: keras.Model) -> None:
    batch = np.random.default_rng(6).integers(0, 256, (24, 6, 4), np.uint8)
    expected = image_model.predict(batch, verbose=0)
    answers: dict[int, object] = {}

    def ask(index: int) -> None:
        answers[index] = server.post([batch[index].tolist()]).json()["predictions"][0]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(batch))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    np.testing.assert_allclose([answers[index] for index in range(len(batch))], expected, rtol=1e-5, atol=1e-7)


def test_it_has_nothing_of_the_services_secrets_and_shows_none_of_its_own(server: ServedModel) -> None:
    pid = server.status.pid
    assert pid is not None
    assert os.getsid(pid) == pid != os.getsid(0)
    assert "LOCKSTEP_TOKEN" not in psutil.Process(pid).environ()
    assert TOKEN not in " ".join(psutil.Process(pid).cmdline())
    assert TOKEN not in server.text
    assert TOKEN not in repr(server.order)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.heavy
def test_a_server_that_hangs_or_dies_is_ended_within_seconds(
    model_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    server = ServedModel(tmp_path, model_url, silent_within_s=2.0)
    pid = server.await_start().pid
    assert pid is not None
    os.kill(pid, number)
    server.await_end()
    end = server.close().end
    assert end is not None
    assert (end.fault, end.signal) == (Fault.STUCK if number is signal.SIGSTOP else Fault.PROGRAM, "SIGKILL")
    assert not psutil.pid_exists(pid)


PATIENT = """
import pathlib, sys, time

class Patient:
    @classmethod
    def from_path(cls, model_dir):
        made = cls()
        made.folder = pathlib.Path(model_dir)
        return made

    def predict(self, instances):
        (self.folder / "asked").touch()
        deadline = time.monotonic() + 60
        while not (self.folder / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return [["x" * 1000] * 1000 for _ in instances]
"""
"""A routine that answers with a megabyte for each instance, once a file is there."""


def test_a_request_in_hand_is_answered_whole_after_sigterm(tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text(PATIENT)
    command = [sys.executable, "-m", "lockstep.serving", f"--model={tmp_path}", "--prediction-class=patient.Patient"]
    env = {**os.environ, SERVER_TOKEN: TOKEN, "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    answers: list[httpx.Response] = []
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"http://{server.stdout.readline().strip().rpartition(' ')[2]}"
            wait_until(lambda: _is_open(url), what=lambda: "the server")

            def ask() -> None:
                headers = {"Authorization": f"Bearer {TOKEN}"}
                answers.append(
                    httpx.post(f"{url}/predict", json={"instances": [1, 2]}, headers=headers, timeout=WAIT_S)
                )

            asking = threading.Thread(target=ask)
            asking.start()
            wait_until((tmp_path / "asked").exists, what=lambda: "the request")
            server.send_signal(signal.SIGTERM)
            wait_until(lambda: not _is_open(url), timeout_s=SHUTDOWN_S, what=lambda: "the end of new connections")
            asking.join(1.0)
            assert asking.is_alive(), "the request was cut off at once"
            (tmp_path / "go").touch()
            asking.join(WAIT_S)
            assert server.wait(WAIT_S) == -signal.SIGTERM
        finally:
            server.kill()
    (answer,) = answers
    assert (answer.status_code, answer.json()) == (200, {"predictions": [["x" * 1000] * 1000] * 2})


def _is_open(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_the_service_side_imports_neither_jax_nor_keras() -> None:
    program = "import sys, lockstep.serving; print(sorted({'jax', 'keras', 'fastapi'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


@pytest.fixture
def run_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    from lockstep.serving.__main__ import main  # it imports JAX, which the test above must not inherit

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SERVER_TOKEN, "a-token")
    return lambda *flags: main(["--model=none.keras", *flags])


@pytest.mark.parametrize(
    ("flags", "exit_code", "message"),
    [
        (["--max-batch-size=0"], 64, "--max-batch-size; received 0; allowed: 1 or more"),
        (["--port=70000"], 64, "--port; received 70000; allowed: 0 to 65535"),
        ([], ModelError.exit_code, "cannot load the model none.keras: there is no such file"),
    ],
)
def test_what_goes_wrong_at_the_start_is_one_line_and_an_exit_code(
    run_main: Callable[..., int], capsys: pytest.CaptureFixture[str], flags: list[str], exit_code: int, message: str
) -> None:
    assert run_main(*flags) == exit_code
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_a_server_without_a_token_does_not_start(
    run_main: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SERVER_TOKEN)
    assert run_main() == 66
    assert capsys.readouterr().err.startswith("LOCKSTEP_SERVER_TOKEN is not set; set it to")


@pytest.mark.heavy
def test_a_port_that_is_taken_is_refused(run_main: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_main(f"--port={port}") == 71
    assert capsys.readouterr().err.startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use")
