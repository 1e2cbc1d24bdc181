"""The successor's form of a job: its public examples, translated; what is lost would be refused by its own name."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest
import yaml

from lockstep.errors import ConfigError
from lockstep.jobs.input.custom_jobs import (
    ContainerSpec,
    CustomJob,
    CustomJobScheduling,
    CustomJobSpec,
    EnvVar,
    GcsDestination,
    MachineSpec,
    PythonPackageSpec,
    WorkerPoolSpec,
)
from lockstep.jobs.input.documents import parse_config, parse_job
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.input.spec import unsupported
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.restarts import RestartCondition

ONE_POOL = """
workerPoolSpecs:
  machineSpec:
    machineType: n1-standard-8
    acceleratorType: NVIDIA_TESLA_V100
    acceleratorCount: 2
  replicaCount: 1
  pythonPackageSpec:
    packageUris: [gs://bucket/trainer-0.1.tar.gz]
    pythonModule: trainer.task
"""

EVERY_POOL: dict[str, Any] = {
    "displayName": "sdk sample: distributed-training",
    "jobSpec": {
        "workerPoolSpecs": [
            {
                "machineSpec": {
                    "machineType": "n1-standard-8",
                    "acceleratorType": "NVIDIA_TESLA_V100",
                    "acceleratorCount": 2,
                },
                "replicaCount": "1",
                "pythonPackageSpec": {
                    "packageUris": ["gs://bucket/trainer-0.1.tar.gz"],
                    "pythonModule": "trainer.task",
                    "args": ["--epochs", "2"],
                    "env": [{"name": "LEVEL", "value": "debug"}],
                },
            },
            {},
            {
                "machineSpec": {"machineType": "n1-standard-4", "acceleratorType": "ACCELERATOR_TYPE_UNSPECIFIED"},
                "replicaCount": 2,
                "pythonPackageSpec": {
                    "packageUris": ["gs://bucket/trainer-0.1.tar.gz"],
                    "pythonModule": "trainer.task",
                    "args": ["--epochs", "2"],
                },
            },
            {
                "machineSpec": {
                    "machineType": "ct5lp-hightpu-4t",
                    "acceleratorType": "TPU_V5_LITEPOD",
                    "acceleratorCount": 4,
                    "tpuTopology": "2x2",
                },
                "pythonPackageSpec": {
                    "packageUris": ["gs://bucket/trainer-0.1.tar.gz"],
                    "pythonModule": "trainer.task",
                    "args": ["--epochs", "2"],
                },
            },
        ],
        "scheduling": {"timeout": "7200s", "disableRetries": True, "strategy": "FLEX_START"},
        "baseOutputDirectory": {"outputUriPrefix": "gs://bucket/out/"},
    },
    "labels": {"team": "vision"},
}


def changed(path: str, value: object, *, document: dict[str, Any] = EVERY_POOL) -> dict[str, Any]:
    """Returns a document with another value at a path such as ``jobSpec.workerPoolSpecs.0.nfsMounts``."""
    made = copy.deepcopy(document)
    *parents, last = path.split(".")
    place: Any = made
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
    place[int(last) if isinstance(place, list) else last] = value
    return made


@pytest.mark.parametrize(
    ("model", "schema"),
    [
        (CustomJob, "CustomJob"),
        (CustomJobSpec, "CustomJobSpec"),
        (WorkerPoolSpec, "WorkerPoolSpec"),
        (MachineSpec, "MachineSpec"),
        (ContainerSpec, "ContainerSpec"),
        (PythonPackageSpec, "PythonPackageSpec"),
        (EnvVar, "EnvVar"),
        (CustomJobScheduling, "Scheduling"),
        (GcsDestination, "GcsDestination"),
    ],
)
def test_fields_are_those_of_the_discovery_document(model: Any, schema: str) -> None:
    text = (files("googleapiclient") / "discovery_cache/documents/aiplatform.v1.json").read_text("utf-8")
    properties = json.loads(text)["schemas"][f"GoogleCloudAiplatformV1{schema}"]["properties"]
    assert {field.alias for field in model.model_fields.values()} == set(properties)


def test_a_pool_without_a_list_is_the_master() -> None:
    config = parse_config(yaml.safe_load(ONE_POOL), source="config.yaml")
    assert config.job_id is None
    assert config.training_input.to_json() == {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-8",
        "masterConfig": {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_V100"}},
        "packageUris": ["gs://bucket/trainer-0.1.tar.gz"],
        "pythonModule": "trainer.task",
        "useChiefInTfConfig": True,
    }


def test_pools_become_roles_and_nothing_is_lost() -> None:
    request = parse_job(EVERY_POOL, source="request")
    asked = request.training_input
    assert request.job_id == "sdk_sample__distributed_training"
    assert request.labels == {"team": "vision"}
    assert unsupported(asked) == []
    gang = resolve(asked, catalogue=load_catalogue())
    assert [(replica.tf_role, replica.index, replica.machine_type) for replica in gang] == [
        ("chief", 0, "n1-standard-8"),
        ("ps", 0, "n1-standard-4"),
        ("ps", 1, "n1-standard-4"),
        ("evaluator", 0, "ct5lp-hightpu-4t"),
    ]
    assert [str(replica.accelerator.type) if replica.accelerator else None for replica in gang] == [
        "NVIDIA_TESLA_V100",
        None,
        None,
        "TPU_V5E",
    ]
    assert all(replica.args == ("--epochs", "2") for replica in gang), "no --job-dir: the successor hands none on"
    assert [dict(replica.env) for replica in gang] == [{"LEVEL": "debug"}, {}, {}, {}]
    assert asked.lockstep.base_output_directory == "gs://bucket/out/"
    assert asked.lockstep.restart_policy.condition is RestartCondition.NEVER
    assert (asked.scheduling.max_running_time, asked.scheduling.max_wait_time) == ("7200s", "86400s")


def test_a_config_may_hold_the_whole_resource() -> None:
    config = parse_config(changed("displayName", "run-7"), source="config.yaml")
    assert (config.job_id, config.labels) == ("run_7", {"team": "vision"})


@pytest.mark.parametrize("whole", [False, True])
def test_a_job_may_want_all_of_it_to_start_again_for_one_worker(whole: bool) -> None:
    document = changed("jobSpec.scheduling.restartJobOnWorkerRestart", whole)
    policy = parse_config(document, source="config.yaml").training_input.lockstep.restart_policy
    assert (policy.whole_job, policy.condition) == (whole, RestartCondition.NEVER)


def test_a_wait_of_zero_is_no_limit() -> None:
    document = changed("jobSpec.scheduling.maxWaitDuration", "0s")
    assert parse_config(document, source="c").training_input.scheduling.max_wait_time is None


POOL = "jobSpec.workerPoolSpecs"
NESTED = "jobSpec.workerPoolSpecs[0]"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            f"{POOL}.0.diskSpec",
            {"bootDiskSizeGb": 200},
            f"{NESTED}.diskSpec: boot disks cannot be configured; remove it",
        ),
        (f"{POOL}.0.nfsMounts", [{}], f"{NESTED}.nfsMounts: this version mounts"),
        (f"{POOL}.0.machineSpec.reservationAffinity", {"a": 1}, f"{NESTED}.machineSpec.reservationAffinity: no"),
        (f"{POOL}.3.machineSpec.tpuTopology", "4x4", f"{POOL}[3].machineSpec.tpuTopology: a TPU slice is one machine"),
        ("jobSpec.serviceAccount", "me@x", "jobSpec.serviceAccount: service accounts"),
        ("jobSpec.network", "n", "jobSpec.network: network peering"),
        ("jobSpec.tensorboard", "t", "jobSpec.tensorboard: event files stay"),
        ("jobSpec.experiment", "e", "jobSpec.experiment: experiments are not supported"),
        ("jobSpec.persistentResourceId", "p", "jobSpec.persistentResourceId: nodes cannot be kept"),
        (
            "jobSpec.scheduling",
            {"strategy": "SPOT"},
            "scheduling.strategy: spot machines cannot be requested per job (SPOT)",
        ),
        ("encryptionSpec", {"kmsKeyName": "k"}, "request: encryptionSpec: buckets keep their own"),
        # what does not fit together, or is not there
        (f"{POOL}.0.replicaCount", 2, f"{NESTED}.replicaCount; received 2; allowed: 1, the chief"),
        (f"{POOL}.0", {}, f"{NESTED}.replicaCount; received 0"),
        (POOL, [], "workerPoolSpecs; received []; allowed: 1 to 4 pools"),
        (f"{POOL}.0.machineSpec", {"machineType": "m", "machine_typ": "m"}, "did you mean 'machineType'"),
        (f"{POOL}.0.machineSpec.machineType", "n1-standard-5", f"{NESTED}.machineSpec.machineType; received"),
        (f"{POOL}.0.machineSpec.acceleratorCount", 3, f"{NESTED}.machineSpec.acceleratorCount; received 3"),
        (f"{POOL}.0.machineSpec.acceleratorCount", 0, f"{NESTED}.machineSpec.acceleratorCount is missing"),
        (f"{POOL}.0.machineSpec.acceleratorType", "V100", f"{NESTED}.machineSpec.acceleratorType; received 'V100'"),
        (f"{POOL}.0.containerSpec", {"imageUri": "i"}, "either containerSpec or pythonPackageSpec"),
        (f"{POOL}.0.pythonPackageSpec.pythonModule", "other", f"{POOL}[2].pythonPackageSpec; received"),
        (
            f"{POOL}.0.pythonPackageSpec.env",
            [{"name": "TF_CONFIG", "value": ""}],
            "Lockstep itself sets TF_CONFIG",
        ),
        (f"{POOL}.0.pythonPackageSpec.env", [{"name": "A", "value": "$(B)"}], "it is not expanded"),
        (
            f"{POOL}.0.pythonPackageSpec.env",
            [{"name": "A", "value": "1"}] * 2,
            "env; received ['A', 'A']; allowed: each",
        ),
        ("jobSpec.scheduling", {"maxWaitDuration": "60s"}, "scheduling.maxWaitDuration; received '60s'; allowed: 0s"),
        ("displayName", "7th run", "displayName; received '7th run'; allowed: 1 to 128 characters that begin with"),
        ("trainingInput", {}, "trainingInput and jobSpec cannot be given together"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_own_name(path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_job(changed(path, value), source="request")
    text = str(caught.value)
    assert message in text
    assert text.startswith("request: ")
    assert "trainingInput." not in text
    assert "\n" not in text


def test_containers_are_the_contracts() -> None:
    pool = {
        "machineSpec": {"machineType": "n1-highmem-2"},
        "containerSpec": {"imageUri": "gcr.io/p/trainer", "command": ["run"], "args": ["--fast"]},
    }
    config = parse_config({"workerPoolSpecs": [pool]}, source="config.yaml").training_input.master_config
    assert config is not None
    assert (config.image_uri, config.container_command, config.container_args) == (
        "gcr.io/p/trainer",
        ("run",),
        ("--fast",),
    )


def test_a_module_may_run_in_an_image() -> None:
    path = f"{POOL}.0.pythonPackageSpec.executorImageUri"
    asked = parse_job(changed(path, "gcr.io/p/jax:1"), source="request").training_input
    assert asked.master_config is not None
    assert (asked.master_config.image_uri, asked.python_module) == ("gcr.io/p/jax:1", "trainer.task")
