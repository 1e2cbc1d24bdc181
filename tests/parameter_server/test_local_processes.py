"""A script that is its own cluster: the other roles run it too, and end with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.waiting import wait_until

from lockstep.errors import ConfigError, EngineError, InvalidInputError
from lockstep.parameter_server.local_processes import LocalProcesses, restart_command
from lockstep.processes import find_marked
from lockstep.processes.ports import reserve_address
from lockstep.topology import Topology

TIMEOUT_S = 30.0
MARK = "LOCKSTEP_TEST_LOCAL"
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from lockstep.errors import LockstepError
from lockstep.parameter_server.local_processes import LocalProcesses
local = LocalProcesses(num_workers=2, num_servers=1, evaluator=True, max_restarts=1)
topology = local.resolve()
assert local.topology is topology
task = topology.task
print(task.role, task.index, topology.num_processes, Path.cwd().name, sys.argv[1:], flush=True)
if task.role != "chief":
    assert not local.processes
    if sys.argv[1] == "end":
        sys.exit()
    while True:
        time.sleep(600)
for line in sys.stdin:  # the chief does as it is told
    words = line.split()
    if words[0] == "kill":
        local.kill(words[1], int(words[2]), signal.SIGKILL)
    elif words[0] == "processes":
        print("processes", *sorted(local.processes), flush=True)
    elif words[0] == "addresses":
        print("addresses", *topology.synchronous_addresses, *topology.cluster["ps"], flush=True)
    elif words[0] == "another":
        try:
            LocalProcesses().resolve()
        except LockstepError as error:
            print("refused", error, flush=True)
    elif words[0] == "raise":
        raise RuntimeError("as told")
"""


LEAVING = """
import sys, time
from lockstep.parameter_server import local_processes
local_processes.LEAVE_S = local_processes.FAILED_LEAVE_S = 0.1
if local_processes.LocalProcesses(1).resolve().task.role != "chief":
    time.sleep(600)
if sys.argv[1] == "badly":
    raise RuntimeError
"""

LATE = """
import os, sys, time
from lockstep.parameter_server import local_processes
from lockstep.topology import Topology
local_processes.LEAVE_S = local_processes.FAILED_LEAVE_S = 600
local = local_processes.LocalProcesses(2)
task = Topology.from_env().task
if task.role == "worker" and task.index == 1:
    time.sleep(600)
"""
ALONE = f"""{LATE}
if local.resolve().task.role == "chief":
    local.wait_for_dismissed(lambda: ["worker 0"])
"""
TRAINING = f"""{LATE}
import lockstep
import keras
import numpy as np
strategy = lockstep.parameter_server.ParameterServerStrategy(local)
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=1, steps_per_epoch=8, verbose=0)
"""


class Chief:
    """A chief at work, with its pipes."""

    def __init__(self, folder: Path, *arguments: str, cwd: Path | None = None) -> None:
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self._output = folder / "output"
        env = {**{name: value for name, value in os.environ.items() if name != "TF_CONFIG"}, MARK: str(folder)}
        command = [sys.executable, "-X", "dev", *arguments]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=cwd or folder, env=env, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True
            )

    @property
    def lines(self) -> list[str]:
        return self._output.read_text().rpartition("\n")[0].splitlines()  # without one that is being written

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def wait_for(self, line: str, *, count: int = 1) -> None:
        wait_until(lambda: self.lines.count(line) == count, what=lambda: f"{line!r} in\n" + "\n".join(self.lines))

    def end(self) -> int:
        """Waits for its end; returns its exit code."""
        self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode


def left(folder: Path) -> list[int]:
    return [identity.pid for identity in find_marked(MARK, accept=lambda value: value == str(folder))]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Chief]]:
    made: list[Chief] = []

    def make(*arguments: str, cwd: Path | None = None) -> Chief:
        made.append(Chief(tmp_path, *arguments, cwd=cwd))
        return made[-1]

    yield make
    for chief in made:
        chief.process.kill()
        chief.process.communicate()
    wait_until(lambda: not left(tmp_path))


def test_every_role_runs_the_script_as_the_chief_does(tmp_path: Path, start: Callable[..., Chief]) -> None:
    (tmp_path / "work").mkdir()
    chief = start("../train.py", "--a b", "", cwd=tmp_path / "work")
    for name in ("worker 0", "worker 1", "ps 0", "evaluator 0"):
        chief.wait_for(f"{name}: {name} 3 work ['--a b', '']")
    chief.wait_for("chief 0 3 work ['--a b', '']")
    chief.tell("another")
    told = (
        "refused this process has started local processes already; use the same LocalProcesses again: all of them run"
    )
    chief.wait_for(f"{told} this script")
    chief.tell("addresses")
    wait_until(lambda: any(line.startswith("addresses") for line in chief.lines))
    addresses = next(line for line in chief.lines if line.startswith("addresses")).split()[1:]
    assert len(set(addresses)) == 4
    for address in addresses:
        port = int(address.removeprefix("127.0.0.1:"))
        with pytest.raises(EngineError):
            reserve_address("127.0.0.1", ports=range(port, port + 1))
    chief.tell("kill worker 1")
    chief.wait_for("worker 1: worker 1 3 work ['--a b', '']", count=2)
    chief.wait_for("worker 1 was killed by SIGKILL; restarting it: restart 1 of 1")
    chief.tell("kill ps 0")
    chief.wait_for("ps 0 was killed by SIGKILL; not restarted: all 1 restarts are used")
    chief.tell("processes")
    chief.wait_for("processes evaluator 0 worker 0 worker 1")
    chief.process.kill()
    assert chief.end() == -signal.SIGKILL
    wait_until(lambda: not left(tmp_path))


@pytest.mark.parametrize(
    ("last", "code"), [pytest.param("processes", 0, marks=pytest.mark.heavy), ("raise", 1)], ids=["well", "badly"]
)
def test_the_chiefs_end_waits_for_those_that_end_too(
    tmp_path: Path, start: Callable[..., Chief], last: str, code: int
) -> None:
    chief = start("train.py", "end")
    for name in ("worker 0", "worker 1", "ps 0", "evaluator 0"):
        chief.wait_for(f"{name}: {name} 3 {tmp_path.name} ['end']")
    chief.tell(last)
    assert chief.end() == code
    assert left(tmp_path) == []
    assert ("RuntimeError: as told" in chief.lines) is (code == 1)
    assert not any("killed" in line for line in chief.lines)


@pytest.mark.parametrize("way", ["well", "badly"])
def test_those_that_do_not_end_are_waited_for_and_ended(tmp_path: Path, way: str) -> None:
    """For a while that is said, where no error has ended the chief."""
    script = tmp_path / "train.py"
    script.write_text(LEAVING)
    env = {**{name: value for name, value in os.environ.items() if name != "TF_CONFIG"}, MARK: str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script, way], env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == (way == "badly")
    assert ("waiting for the end of ps 0, worker 0: 0 s at the most" in done.stderr) is (way == "well")
    assert left(tmp_path) == []


@pytest.mark.parametrize("script", [ALONE, pytest.param(TRAINING, marks=pytest.mark.heavy)], ids=["alone", "training"])
def test_a_worker_that_did_not_join_the_training_is_not_waited_for(tmp_path: Path, script: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    env = {**{name: value for name, value in os.environ.items() if name != "TF_CONFIG"}, MARK: str(tmp_path)}
    done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "the training is over; stopped, since it had not joined: worker 1" in done.stderr
    assert left(tmp_path) == []


@pytest.mark.parametrize("arguments", [("-c", SCRIPT), ("-",)], ids=["code", "pipe"])
def test_what_cannot_be_started_again_is_refused(start: Callable[..., Chief], arguments: Sequence[str]) -> None:
    chief = start(*arguments)
    if arguments == ("-",):
        chief.tell(SCRIPT)
    assert chief.end() == 1
    assert (
        "lockstep.errors.ConfigError: local processes run the chief's script again, but this program is not a script "
        "file; received 'a notebook, a prompt, python -c or a pipe'; allowed: python FILE.py, python -m MODULE; "
        "save it as a file" in chief.lines
    )


def test_a_cluster_that_the_environment_names_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 0}}))
    local = LocalProcesses(num_workers=7)
    assert local.resolve() == Topology.from_env()
    assert local.resolve().num_processes == 2
    with pytest.raises(InvalidInputError, match="to be signalled; received 'worker 0'; allowed: none"):
        local.kill("worker")
    local.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python train.py -c", "PY /far/train.py -c"),
        ("python -u -X dev -Wignore ../far/train.py x", "PY -u -X dev -Wignore /far/train.py x"),
        ("python -uX dev -W error train.py train.py", "PY -uX dev -W error /far/train.py train.py"),
        ("python --check-hash-based-pycs always train.py", "PY --check-hash-based-pycs always /far/train.py"),
        ("python -Im far.train train.py", "PY -Im far.train train.py"),
        ("python folder train.py", "PY folder train.py"),
    ],
    ids=["script", "options", "joined options", "long option", "module", "folder"],
)
def test_the_command_is_the_same_again(words: str, expected: str) -> None:
    assert restart_command(words.split(), main="/far/train.py", executable="PY") == tuple(expected.split())


@pytest.mark.parametrize(
    "words",
    ["python", "python -i", "python -Ec 1 train.py", "python -", "python -X dev"],
    ids=["prompt", "asked prompt", "code", "pipe", "prompt with an option"],
)
def test_no_other_program_is_run_again(words: str) -> None:
    with pytest.raises(ConfigError, match="save it as a file"):
        restart_command(words.split(), main="/far/train.py", executable="PY")


def test_no_notebook_is_run_again() -> None:
    with pytest.raises(ConfigError, match="save it as a file"):
        restart_command(["python", "-m", "ipykernel_launcher", "-f", "kernel.json"], main=None, executable="PY")


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_servers": 0}, {"max_restarts": -1}], ids=["workers", "servers", "restarts"]
)
def test_counts_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match=r"\w+; received (0|-1); allowed: [01] or more"):
        LocalProcesses(**options)  # type: ignore[arg-type]
