"""`lockstep tensorboard`: which folders it reads, how copies are kept in step, and the program itself."""

from __future__ import annotations

import importlib.util
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from tests.cli.fake_client import FakeClient, job
from typer.testing import CliRunner

from lockstep.cli.commands import make_app
from lockstep.cli.tensorboard import command
from lockstep.cli.tensorboard.folders import Mirror, Runs, folder_here
from lockstep.errors import InvalidInputError, MissingInputError, PortInUseError

EVENTS = "tensorboard/train/events.out.tfevents.1"
TIMEOUT_S = 90.0


def test_without_tensorboard_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(make_app("tensorboard"), ["tensorboard", "train_1"])
    assert isinstance(done.exception, MissingInputError)
    assert str(done.exception) == "TensorBoard is not installed; pip install tensorboard"


def test_a_copy_grows_in_place_until_the_job_has_ended(tmp_path: Path) -> None:
    fake = FakeClient(job("train_1"))
    fake.files = {EVENTS: b"abc", "model/x.keras": b"not fetched"}
    mirror = Mirror(fake, "train_1", folder=tmp_path)  # type: ignore[arg-type]
    copy = tmp_path / "train" / "events.out.tfevents.1"
    with_nothing_new = [mirror.sync(), mirror.sync()]
    assert with_nothing_new == [1, 0]
    assert copy.read_bytes() == b"abc"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [copy]
    before = copy.stat().st_ino
    fake.files[EVENTS] = b"abcdef"
    assert mirror.sync() == 1
    assert (copy.read_bytes(), copy.stat().st_ino) == (b"abcdef", before), "TensorBoard keeps the file open"
    fake.files[EVENTS] = b"xy"
    mirror.sync()
    assert copy.read_bytes() == b"xy", "a file that was written anew"
    fake.found["train_1"]["state"] = "SUCCEEDED"
    fake.files["tensorboard/validation/events.out.tfevents.2"] = b"v"
    assert mirror.sync() == 1
    fake.files[EVENTS] = b"never"
    assert mirror.sync() == 0, "a job that has ended writes no more"
    fake.files = {"tensorboard/../../evil": b"x"}
    with pytest.raises(InvalidInputError, match="leads out of the folder"):
        Mirror(fake, "train_1", folder=tmp_path / "runs").sync()  # type: ignore[arg-type]


def test_files_of_this_machine_are_read_where_they_are(tmp_path: Path) -> None:
    here, there = job("here"), job("there")
    here["lockstep"]["outputs"]["tensorboard"] = str(tmp_path / "bucket")
    fake = FakeClient(here, there)
    fake.is_on_this_machine = True
    fake.files = {EVENTS: b"abc"}
    assert folder_here(here, is_on_this_machine=True) is None, "it does not exist yet"
    (tmp_path / "bucket").mkdir()
    assert folder_here(here, is_on_this_machine=False) is None
    (tmp_path / "runs").mkdir()
    runs = Runs(fake, fake.found, folder=tmp_path / "runs")  # type: ignore[arg-type]
    runs.sync()
    assert runs.may_change
    assert (tmp_path / "runs" / "here").readlink() == tmp_path / "bucket"
    assert (tmp_path / "runs" / "there" / "train" / "events.out.tfevents.1").read_bytes() == b"abc"
    del there["lockstep"]["outputs"]["tensorboard"]
    with pytest.raises(InvalidInputError, match="batch prediction"):
        folder_here(there, is_on_this_machine=True)


def test_a_port_that_is_in_use_is_passed_over_or_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert command.free_port("127.0.0.1", first=port, count=50) > port
        with pytest.raises(PortInUseError, match=f"port {port} of"):
            command.free_port("127.0.0.1", first=port, count=1)


PROGRAM = """
import sys
from pathlib import Path
from tests.cli.fake_client import FakeClient, job
from lockstep.cli.main import main
from lockstep.cli.tensorboard import command

fake = FakeClient(job("train_1"))
for path in Path(sys.argv[1]).rglob("*tfevents*"):
    fake.files["tensorboard/" + path.relative_to(sys.argv[1]).as_posix()] = path.read_bytes()
command.connect = lambda *_: fake
sys.argv = ["lockstep", "tensorboard", "train_1", "--sync-every", "1"]
main()
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs the package tensorboard")
@pytest.mark.parametrize("ends_by", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_tensorboard_shows_the_curves_and_ends_with_the_command(tmp_path: Path, ends_by: signal.Signals) -> None:
    import tensorboardX

    with tensorboardX.SummaryWriter(str(tmp_path / "events" / "train")) as writer:
        writer.add_scalar("epoch_loss", 0.5, 1)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "events")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], TIMEOUT_S)[0], "it says nothing"
        line = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert url is not None, line
        deadline = time.monotonic() + TIMEOUT_S
        address = f"{url[0]}data/plugin/scalars/tags"
        while "epoch_loss" not in (shown := httpx.get(address, trust_env=False, timeout=TIMEOUT_S).text):
            assert time.monotonic() < deadline, shown
            time.sleep(0.2)
        assert "train_1/train" in shown
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(ends_by)
        code = process.wait(TIMEOUT_S)
        assert code == (0 if ends_by is signal.SIGINT else -signal.SIGKILL)
        assert psutil.wait_procs(children, timeout=TIMEOUT_S)[1] == [], "nothing runs on"
        if ends_by is signal.SIGINT:
            assert list(tmp_path.glob("lockstep-*")) == [], "its folder is removed"
    finally:
        process.kill()
        process.communicate()
