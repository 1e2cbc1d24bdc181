"""Routines that would use up the node, or stay for ever: each is ended, and its version fails with the reason."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest
from tests.service.security.confined import IS_ROOT, POOL, WAIT_S, Site, processes_of

from lockstep.service.control import starts
from lockstep.service.prediction.deployments import is_ready
from lockstep.service.store import VersionState
from lockstep.serving import SERVER_TOKEN
from lockstep.submission.packing import stage_folder

pytestmark = IS_ROOT

READY_WITHIN_S = 6.0
MEMORY_BYTES = 512 * 2**20

FORKS = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
ALLOCATES = """
blocks = []
while True:
    blocks.append(b"x" * 2**24)
"""
ALLOCATES_ELSEWHERE = """
import os, time
if os.fork() == 0:
    if os.fork():
        os._exit(0)
    blocks = []
    while len(blocks) < 60:
        blocks.append(b"x" * 2**24)
    time.sleep(10**6)
time.sleep(10**6)
"""
SLEEPS = """
import time
time.sleep(10**6)
"""
SLEEPS_IN_ITS_FIRST_CALL = """
import time
class Predictor:
    @classmethod
    def from_path(cls, model_dir):
        time.sleep(10**6)
"""
ENDS = """
import os
os._exit(0)
"""
LISTENS = """
import os, subprocess, sys, time
CODE = '''
import os, pathlib, signal, socket, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setsid()
listener = socket.create_server(("127.0.0.1", 0))
pathlib.Path("new").write_text(str(listener.getsockname()[1]))
os.rename("new", "port")
while True:
    connection, _ = listener.accept()
    subprocess.Popen(["sh"], stdin=connection, stdout=connection)
'''
class Predictor:
    @classmethod
    def from_path(cls, model_dir):
        subprocess.Popen([sys.executable, "-c", CODE], env={})
        while not os.path.exists("port"):
            time.sleep(0.01)
        return cls()
    def predict(self, instances, **kwargs):
        return [open("port").read() for _ in instances]
"""


@pytest.fixture
def deploy(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Deploys a routine with the given code."""

    def deploy(code: str, *, ready_within_s: float = WAIT_S) -> None:
        server = replace(starts.SERVER, ready_within_s=ready_within_s, memory_bytes=MEMORY_BYTES)
        monkeypatch.setattr(starts, "SERVER", server)
        folder = site.bench.home.path / "code"
        folder.mkdir()
        (folder / "hostile.py").write_text(code)
        package = stage_folder(folder, staging=str(site.bench.home.bucket))
        artifacts = site.bench.home.path / "artifacts"
        artifacts.mkdir()
        (artifacts / "weights").write_text("1")
        site.create(artifacts, package, prediction_class="hostile.Predictor")

    return deploy


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param(FORKS, "it was not ready within 6 s", id="forks without end"),
        pytest.param(
            ALLOCATES,
            "it used more than 0.5 GiB of memory, its limit",
            id="allocates without end",
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            ALLOCATES_ELSEWHERE,
            "it used more than 0.5 GiB of memory, its limit",
            id="allocates in a process of its own",
        ),
        pytest.param(SLEEPS, "it was not ready within 6 s", id="sleeps at import"),
        pytest.param(
            SLEEPS_IN_ITS_FIRST_CALL,
            "it was not ready within 6 s",
            id="sleeps in its first call",
            marks=pytest.mark.heavy,
        ),
        pytest.param(ENDS, "its server ended", id="ends itself"),
    ],
)
@pytest.mark.heavy
def test_it_is_ended_and_its_version_fails_with_the_reason(
    site: Site, deploy: Callable[..., None], code: str, reason: str
) -> None:
    deploy(code, ready_within_s=READY_WITHIN_S if "not ready" in reason else WAIT_S)
    site.step_until(lambda: site.version.state is VersionState.FAILED)
    site.step_until(lambda: processes_of(POOL) == [])
    assert reason in str(site.version.error_message)
    assert "\n" not in str(site.version.error_message)


@pytest.mark.heavy
def test_a_shell_that_it_opens_has_its_rights_and_ends_with_it(site: Site, deploy: Callable[..., None]) -> None:
    deploy(LISTENS)
    site.step_until(lambda: site.version.state is VersionState.READY and is_ready(site.server))
    server = site.server
    token = site.bench.vault.derive(server.uid, purpose=SERVER_TOKEN)
    url = f"http://{server.replicas[0].status.address}/predict"
    headers = {"Authorization": f"Bearer {token}"}
    (port,) = httpx.post(url, json={"instances": [0]}, headers=headers, timeout=WAIT_S).json()["predictions"]
    with socket.create_connection(("127.0.0.1", int(port)), timeout=WAIT_S) as shell:
        shell.sendall(f"id -u; cat {site.bench.home.token} 2>/dev/null; echo $?\n".encode())
        output = shell.makefile()
        user, code = output.readline(), output.readline()
    assert int(user) in POOL
    assert code == "1\n"
    site.delete()
    assert processes_of(POOL) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=WAIT_S)
