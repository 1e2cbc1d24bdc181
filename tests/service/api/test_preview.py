"""What a job would be: as the engine would get it, and nothing of it is recorded."""

from __future__ import annotations

import json
from typing import Any

from lockstep.home import Home
from lockstep.jobs.input.documents import parse_job
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.states import JobState
from lockstep.service.api.control.preview import GIVEN, NoAccelerators, preview, unrecorded
from lockstep.service.settings import Settings
from lockstep.testing.bench import Bench
from lockstep.testing.local_cluster import LocalCluster

WAIT = "import time; time.sleep(600)"


def request(**training_input: Any) -> Any:
    return parse_job({"jobId": "j", "trainingInput": {"pythonModule": "train", **training_input}}, source="test")


def shown(**training_input: Any) -> dict[str, Any]:
    settings = Settings(home=Home.from_env({"LOCKSTEP_HOME": "/home/h"}), bucket="/b")
    return preview(
        request(**training_input),
        project="local",
        settings=settings,
        catalogue=load_catalogue(),
        cluster=NoAccelerators(),
    )


GANG: dict[str, Any] = {
    "scaleTier": "CUSTOM",
    "masterType": "n1-standard-8",
    "masterConfig": {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_V100"}},
    "workerType": "g2-standard-4",
    "workerCount": "1",
    "evaluatorType": "n1-standard-4",
    "evaluatorCount": "1",
    "args": ["--epochs", "2"],
    "lockstep": {"env": {"worker": {"API_KEY": "hidden"}}},
    "scheduling": {"maxRunningTime": "7200s"},
}


def test_replicas_are_shown_as_they_would_be_ordered() -> None:
    document = shown(**GANG)
    master, worker, evaluator = document["replicas"]
    assert master["command"] == ["python", "-m", "train", "--epochs", "2"]
    assert (master["machine"], master["vcpus"], master["acceleratorsSimulated"]) == (
        "n1-standard-8 + 2 x NVIDIA_TESLA_V100",
        8,
        True,
    )
    tf_config = json.loads(worker["environment"]["TF_CONFIG"])
    assert tf_config["task"] == {"type": "worker", "index": 0}
    assert worker["environment"]["MASTER_PORT"] == "PORT"
    assert tf_config["cluster"] == {
        "master": ["HOST-OF-master-replica-0:PORT"],
        "worker": ["HOST-OF-worker-replica-0:PORT"],
    }
    assert json.loads(evaluator["environment"]["TF_CONFIG"])["task"]["type"] == "evaluator"
    assert worker["environment"]["API_KEY"] == GIVEN
    assert "hidden" not in json.dumps(document["replicas"])
    assert master["environment"]["AIP_MODEL_DIR"] == "/b/local/jobs/j/model" == document["outputs"]["model"]


def test_the_token_of_a_cluster_with_parameter_servers_is_named() -> None:
    served = {"parameterServerType": "n1-standard-4", "parameterServerCount": "1"}
    shown_as = [replica["environment"].get("LOCKSTEP_CLUSTER_TOKEN") for replica in shown(**GANG, **served)["replicas"]]
    assert shown_as == ["(random, the same for all replicas)"] * 4


def test_a_single_replica_has_no_cluster() -> None:
    (master,) = shown()["replicas"]
    assert "LOCKSTEP_CLUSTER_TOKEN" not in master["environment"]
    assert "cluster" not in json.loads(master["environment"]["TF_CONFIG"])


def test_prices_are_those_of_the_bill() -> None:
    price = shown(**GANG)["price"]
    # 2 V100 and the n1-standard-8 are 10.8980 units, the evaluator's n1-standard-4 .3878
    assert price["hour"] == {"mlUnits": "11.29", "costUsd": "5.5321", "unpriced": ["g2-standard-4 + 1 x NVIDIA_L4"]}
    assert (price["most"]["mlUnits"], price["maxRunningSeconds"]) == ("22.57", 7200.0)
    unknown = shown(scaleTier="CUSTOM", masterType="g2-standard-4")["price"]["hour"]
    assert (unknown["mlUnits"], unknown["costUsd"]) == (None, None)


def test_a_place_in_the_queue_is_told_and_not_taken(bench: Bench) -> None:
    schedule = bench.controller.schedule
    first = schedule.preview(unrecorded(request(), project="local", settings=bench.settings))
    assert (first.needs, first.waits) == (("1 x job slots of this service's 2",), None)
    for name in ("one", "two", "three"):
        bench.create(name, WAIT)
    bench.step_until_state("two", JobState.RUNNING)
    job = unrecorded(request(), project="local", settings=bench.settings)
    waits = schedule.preview(job).waits
    assert waits is not None
    assert (waits.position, waits.reason) == (2, "0 of 1 job slots of this service's 2 are free")
    assert waits == schedule.preview(job).waits, "asking changes nothing"
    assert schedule.explain(bench.job("three")).position == 1
    urgent = unrecorded(request(scheduling={"priority": 9}), project="local", settings=bench.settings)
    assert (place := schedule.preview(urgent).waits) is not None
    assert place.position == 1


def test_a_cluster_says_which_accelerators_it_has() -> None:
    cluster = LocalCluster(gpus={"NVIDIA_TESLA_V100": 2})
    settings = Settings(home=Home.from_env({"LOCKSTEP_HOME": "/home/h"}), bucket="/b")
    document = preview(request(**GANG), project="local", settings=settings, catalogue=load_catalogue(), cluster=cluster)
    assert [replica["acceleratorsSimulated"] for replica in document["replicas"]] == [False, True, False]
