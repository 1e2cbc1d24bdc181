"""Jobs in real containers through a real service: two replicas that talk, a killed runner, nothing left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lockstep.testing.machine import TIMEOUT_S, Machine
from lockstep.testing.podman import Podman, why_no_podman

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(why_no_podman() is not None, reason=f"real containers: {why_no_podman()}"),
]

IMAGE = "localhost/busybox:1"
TALK = """
address=$(echo "$TF_CONFIG" | sed -E 's/.*"master": \\["([0-9.]+):([0-9]+)"\\].*/\\1 \\2/'); set -- $address
if echo "$TF_CONFIG" | grep -q '"type": "master"'
then mkfifo $HOME/in; exec 3<>$HOME/in; echo "heard $(nc -l -p $2 <&3)"  # without input nc hangs up at once
else until echo hello | nc $1 $2; do sleep 0.1; done; fi
"""
GO_ON = """
if [ -e "$AIP_CHECKPOINT_DIR/x" ]; then echo goes on
else mkdir -p "$AIP_CHECKPOINT_DIR"; touch "$AIP_CHECKPOINT_DIR/x"; sleep 600; fi
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    made = Podman(tmp_path_factory.mktemp("podman"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def contained(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine of its own, whose service finds this podman."""
    made = Machine(tmp_path_factory.mktemp("machine"))
    made.env |= podman.env
    made.run("image", "build", str(podman.busybox()), "--tag", IMAGE)
    made.run("up")
    yield made
    made.run("down", "--cancel")
    assert made.processes() == []
    assert podman.containers() == []


PREDICT = """#!/bin/sh
read -r line
printf 'Content-Type: application/json\\r\\n\\r\\n{"predictions": ["%s", "%s"]}' \\
  "$(echo "$line" | tr -cd 0-9)" "$(cat $AIP_STORAGE_URI/name.txt)"
"""


def over(job: dict[str, Any]) -> bool:
    return job["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")


def runner_of(pid: int) -> psutil.Process:
    """Returns the runner beside a container: it carries the same mark as the container's program."""
    spool = psutil.Process(pid).children()[0].environ()["LOCKSTEP_SPOOL"]
    for process in psutil.process_iter():
        try:
            is_runner = "lockstep.runner" in process.cmdline() and process.environ().get("LOCKSTEP_SPOOL") == spool
        except psutil.Error:
            continue
        if is_runner:
            return process
    raise AssertionError("it has no runner")


def test_two_replicas_talk_over_the_nodes_network(contained: Machine, podman: Podman, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "trainingInput: {scaleTier: CUSTOM, masterType: n1-standard-4, workerType: n1-standard-4, workerCount: 1}"
    )
    out = contained.run("submit", "talk", "--config", str(config), "--master-image-uri", IMAGE, "--", TALK)
    assert "heard hello" in out, out
    assert "job talk: SUCCEEDED" in out
    assert podman.containers() == []


def test_a_dry_run_names_the_image(contained: Machine) -> None:
    out = contained.run("submit", "tried", "--master-image-uri", IMAGE, "--dry-run", "--", "x")
    assert f"image: {IMAGE}" in out
    assert "may use the whole node: machine types reserve nothing on this engine" in out
    assert "command: '(the image'\"'\"'s entry point)' x" in out


def test_a_command_runs_in_a_replicas_container(contained: Machine) -> None:
    contained.run(
        *("submit", "opened", "--master-image-uri", IMAGE, "--enable-web-access", "--async", "--"),
        "sleep 600",
    )
    contained.wait("opened", lambda job: job["state"] == "RUNNING")
    out = contained.run("exec", "opened", "--no-terminal", "--", "sh", "-c", "ls /bin/busybox; echo $AIP_MODEL_DIR")
    assert out == f"/bin/busybox\n{contained.home.bucket}/local/jobs/opened/model\n"
    error = contained.run("exec", "opened", "--no-terminal", "--", "sh", "-c", "echo no >&2; exit 7", code=7)
    assert "no" in error
    contained.run("cancel", "opened")
    contained.wait("opened", over)


def test_a_job_whose_runner_is_killed_goes_on_in_another_container(contained: Machine, podman: Podman) -> None:
    contained.run("submit", "killed", "--master-image-uri", IMAGE, "--async", "--", GO_ON)
    place = contained.home.bucket / "local" / "jobs" / "killed" / "checkpoints" / "x"
    job = contained.wait("killed", lambda job: job["state"] == "RUNNING" and place.exists())
    runner_of(job["lockstep"]["replicas"][0]["pid"]).kill()
    ended = contained.wait("killed", over)
    assert ended["state"] == "SUCCEEDED", ended
    assert "goes on" in contained.run("logs", "killed")
    assert podman.containers() == []


def test_a_container_whose_runner_died_without_a_service_is_gone_when_one_starts(
    contained: Machine, podman: Podman
) -> None:
    code = (
        "import os, signal; from lockstep.containers import current_runner; print(current_runner(), flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    labels = {"job": "j", "replica": "r", "attempt": "0", "spool": "/elsewhere", "runner": dead}
    flags = [word for name, value in labels.items() for word in ("--label", f"lockstep.{name}={value}")]
    podman.run(
        "run",
        "--detach",
        "--network",
        "host",
        "--ulimit",
        "nofile=999:999",
        "--ulimit",
        "nproc=999:999",
        *flags,
        IMAGE,
        "sleep 600",
    )
    contained.kill_service()
    contained.run("up")
    deadline = time.monotonic() + TIMEOUT_S
    while podman.containers():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_unknown_image_is_refused_by_the_node_as_the_users_error(contained: Machine) -> None:
    contained.run("submit", "absent", "--master-image-uri", "localhost/absent:1", "--async")
    job = contained.wait("absent", over)
    assert job["state"] == "FAILED"
    assert "image localhost/absent:1 is not on this node, and its name has no registry" in job["errorMessage"]
    assert "USER_ERROR" in job["lockstep"]["endReason"]


def test_a_server_in_a_container_is_deployed_predicts_and_goes(
    contained: Machine, podman: Podman, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    (image / "www" / "cgi-bin").mkdir(parents=True)
    (image / "www" / "alive").write_text("yes")
    (image / "www" / "cgi-bin" / "predict").write_text(PREDICT)
    (image / "www" / "cgi-bin" / "predict").chmod(0o755)
    (image / "Containerfile").write_text(f"FROM {IMAGE}\nCOPY www /www\n")
    contained.run("image", "build", str(image), "--tag", "localhost/server:1")
    files = tmp_path / "files"
    files.mkdir()
    (files / "name.txt").write_text("of the files")
    contained.run(
        *("deploy", "mine", "--image-uri", "localhost/server:1", "--model-url", str(files), "--port", "7000"),
        *("--predict-route", "/cgi-bin/predict", "--health-route", "/alive"),
        *("--", "httpd -f -p $(AIP_HTTP_PORT) -h /www"),
    )
    (running,) = podman.containers()
    assert podman.run("port", running).startswith("7000/tcp -> 127.0.0.1:")
    request = tmp_path / "request.json"
    request.write_text('{"instances": [1, 2, 3]}')
    assert json.loads(contained.run("predict", "mine", "--json-request", str(request))) == {
        "predictions": ["123", "of the files"]
    }
    contained.run("undeploy", "mine/v1")
    assert podman.containers() == []
