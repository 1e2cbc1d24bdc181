"""A job's own Python environment, through a real runner: built before the program starts, told where it cannot be."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.runner.python_environment.wheels import index_of, make_wheel
from tests.runner.test_runner_process import RunnerProcess, _log, _order, _run

from lockstep.jobs.running.orders import Fault, ReplicaOrder, ReplicaPhase
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.submission.packing import stage_folder

PROGRAM = """
import os, shutil, sys
import tiny, lockstep
print(tiny.VERSION, sys.prefix == os.environ["VIRTUAL_ENV"], shutil.which("python") == sys.executable)
print(sorted(name for name in os.environ if name.startswith(("UV_", "PIP_"))))
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    make_wheel(tmp_path / "wheels", "tiny", "1.0")
    with index_of(tmp_path / "wheels", tmp_path / "index") as (url, _):
        yield url


@contextmanager
def _node(**variables: str) -> Iterator[None]:
    """Sets variables of the node, which a runner starts with."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _job(tmp_path: Path, requirements: str, **changes: object) -> ReplicaOrder:
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(PROGRAM)
    (code / "requirements.txt").write_text(requirements)
    url = stage_folder(code, staging=str(tmp_path / "bucket"))
    cache = {"environment_cache": str(tmp_path / "cache"), "packages": (url,)}
    return _order(tmp_path, "-m", "train", **cache, **changes)


def test_a_program_has_what_its_folder_asks_for_beside_what_the_node_has(tmp_path: Path, index: str) -> None:
    with _node(UV_DEFAULT_INDEX=index):
        status = _run(_job(tmp_path, "tiny\n"))
    assert status.end is not None
    texts = [str(entry["text"]) for entry in _log(tmp_path)]
    assert status.end.succeeded, texts
    assert texts[0] == "lockstep: the Python environment of requirements.txt"
    assert any("tiny==1.0" in text for text in texts)
    assert texts[-2:] == ["1.0 True True", "[]"]


def test_no_environment_is_built_where_the_job_wants_none(tmp_path: Path, index: str) -> None:
    with _node(UV_DEFAULT_INDEX=index):
        status = _run(_job(tmp_path, "tiny\n", python_environment=PythonEnvironment(none=True)))
    assert status.end is not None
    assert status.end.exit_code == 1
    assert any("No module named 'tiny'" in line for line in status.end.tail)
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_built_is_the_programs_fault_and_names_package_and_file(tmp_path: Path, index: str) -> None:
    with _node(UV_DEFAULT_INDEX=index):
        status = _run(_job(tmp_path, "nowhere==1\n"))
    assert status.end is not None
    assert status.end.fault is Fault.PROGRAM
    problem = status.end.problem or ""
    assert "requirements.txt" in problem
    assert "nowhere" in problem
    assert len(problem.splitlines()) == 1
    assert [entry["severity"] for entry in _log(tmp_path)][-1] == "ERROR"


def test_an_index_that_does_not_answer_is_the_machines_fault(tmp_path: Path) -> None:
    with _node(UV_DEFAULT_INDEX="http://127.0.0.1:9/", UV_HTTP_RETRIES="0"):
        status = _run(_job(tmp_path, "tiny\n"))
    assert status.end is not None
    assert status.end.fault is Fault.MACHINE
    assert "127.0.0.1:9" in (status.end.problem or "")


@pytest.mark.parametrize("how", ["stop", "engine gone"])
def test_a_runner_that_builds_can_be_stopped_and_leaves_nothing_running(tmp_path: Path, how: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with _node(UV_DEFAULT_INDEX=f"http://127.0.0.1:{silent.getsockname()[1]}/"):
            runner = RunnerProcess(_job(tmp_path, "tiny\n"))
        assert runner.process.stdin is not None
        assert runner.wait_for(ReplicaPhase.SETUP).pid is None
        connection, _ = silent.accept()  # uv waits for an answer
        builders = psutil.Process(runner.process.pid).children(recursive=True)
        assert builders
        if how == "stop":
            runner.process.stdin.write(b"stop\n")
            runner.process.stdin.flush()
        else:
            runner.process.stdin.close()
        status = runner.last()
        runner.close()
        connection.close()
    assert status.end is not None
    assert status.end.stopped
    psutil.wait_procs(builders, timeout=10)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in builders)
