"""The example jobs, as a person submits them, each on machines that come and go."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from lockstep.clusters.machines.local import MACHINE_VARIABLE
from lockstep.testing.machine import Machine
from lockstep.testing.machines import machine_of

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

JOBS = Path(__file__).resolve().parents[2] / "examples" / "jobs"
TIMEOUT_S = 240.0
NUM_UPDATES = 600
"""The steps that the parameter servers' example takes."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    definition = yaml.safe_load((JOBS / "cluster.yaml").read_text())
    definition["idleTimeout"] = "3s"
    (made.code / "cluster.yaml").write_text(yaml.safe_dump(definition))
    made.run("cluster", "use", str(made.code / "cluster.yaml"))
    made.run("up")
    yield made
    made.run("down", "--cancel")
    assert made.processes() == []


def submit(machine: Machine, name: str) -> dict[str, Any]:
    begin(machine, name)
    job = machine.wait(name, lambda job: job["state"] in ("SUCCEEDED", "FAILED"), timeout_s=TIMEOUT_S)
    assert job["state"] == "SUCCEEDED", machine.run("logs", name)
    return job


def begin(machine: Machine, name: str, *arguments: str, job: str = "", config: Path | None = None) -> None:
    folder = JOBS / name
    flags = ("--config", str(config or folder / "config.yaml"), "--package-path", str(folder / "trainer"), "--async")
    machine.run("submit", job or name, *flags, *(("--", *arguments) if arguments else ()))


def program(machine: Machine, role: str, index: int) -> psutil.Process:
    """Returns the process of a replica's program."""
    found: list[psutil.Process] = []
    for process in machine.processes():
        with contextlib.suppress(psutil.Error, KeyError):
            task = json.loads(process.environ()["TF_CONFIG"])["task"]
            if process.cmdline()[1:3] == ["-m", "trainer.task"] and (task["type"], task["index"]) == (role, index):
                found.append(process)
    (one,) = found
    return one


def wait_for_text(machine: Machine, job: str, text: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while text not in (said := "\n".join(machine.log_texts(job))):
        assert time.monotonic() < deadline, said
        time.sleep(0.5)


def _has_checkpoint(job: dict[str, Any]) -> bool:
    return any(Path(job["lockstep"]["outputs"]["checkpoints"]).glob("[0-9]*"))


def ledger(machine: Machine) -> list[dict[str, Any]]:
    with machine.client() as client:
        return client.nodes(everything=True)["nodes"]


def check_training(job: dict[str, Any], text: str) -> None:
    """Checks that the loss fell, and that the model is in the bucket."""
    (losses,) = re.findall(r"loss ([\d.]+) -> ([\d.]+)", text)
    assert float(losses[1]) < float(losses[0]) / 4
    model = Path(job["lockstep"]["outputs"]["model"])
    assert [path.suffix for path in model.iterdir()] == [".keras"]


def check_worker_came_back(machine: Machine, name: str, *, num_restarts: int) -> None:
    """Checks that replicas of the parameter servers' example were launched again alone, one worker among them."""
    # Each step is trained, however slow the machine is.
    job = machine.wait(name, lambda job: job["state"] in ("SUCCEEDED", "FAILED"), timeout_s=2 * TIMEOUT_S)
    text = "\n".join(machine.log_texts(name))
    assert job["state"] == "SUCCEEDED", text
    assert job["lockstep"]["numRestarts"] == num_restarts, "of one replica each"
    assert text.count("of 1 master, 3 workers, 2 parameter servers") == 6 + num_restarts
    assert len(re.findall(r"worker 1 has run [1-9]\d* closures", text)) == 1, "its second life took part"
    check_training(job, text)


def wait_until_gone(machine: Machine) -> None:
    deadline = time.monotonic() + 60
    while any(node["state"] != "down" for node in ledger(machine)):
        assert time.monotonic() < deadline, ledger(machine)
        time.sleep(0.1)


def test_six_machines_come_run_a_master_workers_and_parameter_servers_and_go(machine: Machine) -> None:
    job = submit(machine, "parameter_servers")
    text = "\n".join(machine.log_texts("parameter_servers"))
    assert text.count("of 1 master, 3 workers, 2 parameter servers") == 6
    assert len(job["lockstep"]["replicas"]) == 6
    served = dict(re.findall(r"(ps \d) serves at ([\d.]+):", text))
    assert sorted(served) == ["ps 0", "ps 1"]
    assert len(set(served.values())) == 2, "each on a machine of its own"
    num_steps = [int(number) for number in re.findall(r"worker \d has run (\d+) closures", text)]
    assert len(num_steps) == 3
    assert sum(num_steps) == NUM_UPDATES
    updates = re.findall(r"(ps \d) has applied ([\d,]+) pushes", text)
    assert sorted(updates) == [("ps 0", str(NUM_UPDATES)), ("ps 1", str(NUM_UPDATES))], "each step once on each server"
    check_training(job, text)
    nodes = ledger(machine)
    assert sorted(node["nodeType"] for node in nodes) == ["cpu4"] * 4 + ["mem2"] * 2
    wait_until_gone(machine)
    for node in ledger(machine):
        assert node["reason"] == "idle for 3 s"
        times = [node[key] for key in ("askedTime", "upTime", "readyTime", "releasedTime", "downTime")]
        assert times == sorted(times)
    raylets = [p for p in psutil.process_iter(["name"]) if p.info["name"] == "raylet"]
    assert len([p for p in raylets if p in machine.processes()]) <= 1  # the head's alone


def test_a_worker_and_a_server_that_are_killed_come_back_alone_and_the_training_goes_on(machine: Machine) -> None:
    begin(machine, "parameter_servers", "--epochs", "400", job="killed")
    machine.wait("killed", _has_checkpoint, timeout_s=TIMEOUT_S)
    program(machine, "worker", 1).kill()
    wait_for_text(machine, "killed", "worker 1 is lost")
    program(machine, "ps", 0).kill()
    wait_for_text(machine, "killed", "ps 0 has its part of the checkpoint")
    check_worker_came_back(machine, "killed", num_restarts=2)


def test_a_worker_whose_machine_is_gone_goes_on_on_another_and_the_training_goes_on(machine: Machine) -> None:
    begin(machine, "parameter_servers", "--epochs", "600", job="moved")
    machine.wait("moved", _has_checkpoint, timeout_s=TIMEOUT_S)
    gone = machine_of(program(machine, "worker", 1).pid)
    for process in machine.processes():
        with contextlib.suppress(psutil.Error):
            if Path(process.environ().get(MACHINE_VARIABLE, "")).stem == gone:
                process.kill()
    waiting = machine.wait("moved", lambda job: "machines are ready" in (job["lockstep"]["waitingFor"] or ""))
    assert waiting["state"] == "RUNNING"
    wait_for_text(machine, "moved", "worker 1 is lost")
    check_worker_came_back(machine, "moved", num_restarts=1)
    (node,) = [node for node in ledger(machine) if node["name"] == gone]
    assert node["reason"] in ("its machine is gone", "its node left the engine"), "whichever is noticed first"


def test_an_evaluator_beside_the_training_evaluates_its_checkpoints(machine: Machine, tmp_path: Path) -> None:
    definition = yaml.safe_load((JOBS / "parameter_servers" / "config.yaml").read_text())
    more = {"workerCount": "2", "evaluatorType": "n1-standard-4", "evaluatorCount": "1"}
    definition["trainingInput"] |= more
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(definition))
    begin(machine, "parameter_servers", "--epochs", "200", job="evaluated", config=config)
    wait_for_text(machine, "evaluated", "checkpoint of step ")
    program(machine, "evaluator", 0).kill()
    job = machine.wait("evaluated", lambda job: job["state"] in ("SUCCEEDED", "FAILED"), timeout_s=TIMEOUT_S)
    text = "\n".join(machine.log_texts("evaluated"))
    assert job["state"] == "SUCCEEDED", text
    assert len(job["lockstep"]["replicas"]) == 6
    assert job["lockstep"]["numRestarts"] == 1, "of the evaluator, alone"
    assert text.count("of 1 master, 2 workers, 2 parameter servers") == 6 + 1
    evaluated = {
        int(step): float(loss) for step, loss in re.findall(r"checkpoint of step (\d+): loss ([\d.e-]+)", text)
    }
    last = 200 * NUM_UPDATES // 10
    assert last in evaluated, "it evaluates the last one before it ends"
    (held_out,) = re.findall(r"loss of rows held out: ([\d.]+)", text)
    assert evaluated[last] == pytest.approx(float(held_out), abs=6e-4), "the same rows, by the same parameters"
    check_training(job, text)


def test_a_master_with_two_accelerators(machine: Machine) -> None:
    job = submit(machine, "two_accelerators")
    assert "2 replicas in sync" in machine.log_texts("two_accelerators")
    assert (Path(job["lockstep"]["outputs"]["model"])).exists()


def test_a_master_and_two_workers_train_in_step(machine: Machine) -> None:
    submit(machine, "workers")
    assert machine.log_texts("workers").count("3 replicas in sync") == 3


def test_a_service_that_is_killed_while_machines_come_up_finds_them_again(machine: Machine) -> None:
    wait_until_gone(machine)
    before = {node["name"] for node in ledger(machine)}
    begin(machine, "parameter_servers", job="again")
    machine.wait("again", lambda job: "machines are ready" in (job["lockstep"]["waitingFor"] or ""))
    machine.kill_service()
    machine.run("up")
    job = machine.wait("again", lambda job: job["state"] in ("SUCCEEDED", "FAILED"), timeout_s=TIMEOUT_S)
    assert job["state"] == "SUCCEEDED"
    check_training(job, "\n".join(machine.log_texts("again")))
    assert len({node["name"] for node in ledger(machine)} - before) == 6  # none twice
