"""From what a job asks for to its replicas."""

from __future__ import annotations

from collections import Counter

import pytest

from lockstep.errors import ConfigError
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType, ReplicaConfig, ScaleTier, TrainingInput
from lockstep.jobs.machines.catalogue import load_catalogue

CATALOGUE = load_catalogue()
CUSTOM = {"scaleTier": "CUSTOM", "masterType": "n1-standard-8"}


def custom(**fields: object) -> TrainingInput:
    return parse_training_input({"trainingInput": {**CUSTOM, **fields}}, source="config.yaml")


def accelerators(kind: str, count: int) -> dict[str, object]:
    return {"acceleratorConfig": {"type": kind, "count": count}}


def refusal(training_input: TrainingInput) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(training_input, catalogue=CATALOGUE)
    return str(caught.value)


def test_the_seed_job_is_one_master_with_two_accelerators() -> None:
    gang = resolve(custom(masterConfig=accelerators("NVIDIA_TESLA_V100", 2)), catalogue=CATALOGUE)
    (master,) = gang
    assert (master.name, master.role, master.tf_role) == ("master-replica-0", "master", "master")
    assert master.machine_type == "n1-standard-8"
    assert master.accelerator == AcceleratorConfig(type=AcceleratorType.NVIDIA_TESLA_V100, count=2)
    assert gang.describe() == "1 master (n1-standard-8 + 2 x NVIDIA_TESLA_V100)"


def test_every_role_is_named_as_cloud_ml_names_it() -> None:
    gang = resolve(
        custom(
            workerType="n1-standard-4",
            workerCount=2,
            parameterServerType="n1-highmem-2",
            parameterServerCount="1",
            evaluatorType="n1-standard-4",
            evaluatorCount=1,
        ),
        catalogue=CATALOGUE,
    )
    assert [replica.name for replica in gang] == [
        "master-replica-0",
        "worker-replica-0",
        "worker-replica-1",
        "ps-replica-0",
        "evaluator-replica-0",
    ]
    assert [replica.machine_type for replica in gang] == [
        "n1-standard-8",
        "n1-standard-4",
        "n1-standard-4",
        "n1-highmem-2",
        "n1-standard-4",
    ]


@pytest.mark.parametrize(
    ("tier", "counts"),
    [
        ("BASIC", {"master": 1}),
        ("STANDARD_1", {"master": 1, "worker": 4, "ps": 3}),
        ("PREMIUM_1", {"master": 1, "worker": 19, "ps": 11}),
        ("BASIC_GPU", {"master": 1}),
        ("BASIC_TPU", {"master": 1}),
    ],
)
def test_tiers_are_expanded(tier: str, counts: dict[str, int]) -> None:
    gang = resolve(TrainingInput(scale_tier=ScaleTier(tier)), catalogue=CATALOGUE)
    assert Counter(replica.role for replica in gang) == counts
    assert len(gang) == sum(counts.values())


def test_tf_config_calls_the_master_chief_where_the_job_asks_so() -> None:
    gang = resolve(
        custom(useChiefInTfConfig=True, workerType="n1-standard-4", workerCount=1, pythonModule="m"),
        catalogue=CATALOGUE,
    )
    assert [(replica.name, replica.tf_role) for replica in gang] == [
        ("master-replica-0", "chief"),
        ("worker-replica-0", "worker"),
    ]


def test_every_replica_runs_the_program_with_the_job_dir_at_the_end() -> None:
    training_input = TrainingInput(
        scale_tier=ScaleTier.STANDARD_1,
        python_module="trainer.task",
        args=("--epochs", "2"),
        job_dir="gs://b/j",
        package_uris=("gs://b/p.tar.gz",),
    )
    for replica in resolve(training_input, catalogue=CATALOGUE):
        assert replica.python_module == "trainer.task"
        assert replica.args == ("--epochs", "2", "--job-dir", "gs://b/j")
        assert replica.package_uris == ("gs://b/p.tar.gz",)


def test_an_image_falls_back_to_the_masters() -> None:
    training_input = custom(
        masterConfig={"imageUri": "one"},
        workerType="n1-standard-4",
        workerCount=1,
        workerConfig={"containerCommand": ["run"]},
        evaluatorType="n1-standard-4",
        evaluatorCount=1,
        evaluatorConfig={"imageUri": "two"},
    )
    gang = resolve(training_input, catalogue=CATALOGUE)
    assert [(replica.image_uri, replica.container_command) for replica in gang] == [
        ("one", ()),
        ("one", ("run",)),
        ("two", ()),
    ]


def test_accelerators_that_come_with_a_machine_need_not_be_named() -> None:
    for config in (
        None,
        ReplicaConfig(accelerator_config=AcceleratorConfig.model_validate({"type": "NVIDIA_L4", "count": 1})),
    ):
        training_input = TrainingInput(scale_tier=ScaleTier.CUSTOM, master_type="g2-standard-4", master_config=config)
        (master,) = resolve(training_input, catalogue=CATALOGUE)
        assert master.accelerator == AcceleratorConfig(type=AcceleratorType.NVIDIA_L4, count=1)


def test_a_cloud_tpu_goes_with_machines_of_either_kind() -> None:
    tpu = {"workerType": "cloud_tpu", "workerCount": 1, "workerConfig": accelerators("TPU_V3", 8)}
    for master in ("n1-standard-4", "standard"):
        assert len(resolve(custom(masterType=master, **tpu), catalogue=CATALOGUE)) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"masterType": "n1-standrad-8"},
            "trainingInput.masterType; received 'n1-standrad-8'; did you mean 'n1-standard-8'?",
        ),
        ({"workerType": "abc"}, "trainingInput.workerType; received 'abc'; allowed: n1-standard-4, "),
        (
            {"masterConfig": accelerators("NVIDIA_TESLA_V100", 3)},
            "trainingInput.masterConfig.acceleratorConfig.count; received 3; allowed: 1, 2, 4, 8 of NVIDIA_TESLA_V100",
        ),
        (
            {"masterType": "a2-highgpu-1g", "masterConfig": accelerators("NVIDIA_TESLA_A100", 2)},
            (
                "trainingInput.masterConfig.acceleratorConfig; received '2 x NVIDIA_TESLA_A100'; "
                "allowed: 1 x NVIDIA_TESLA_A100, which come with a2-highgpu-1g, or nothing"
            ),
        ),
        (
            {"masterType": "large_model", "masterConfig": accelerators("NVIDIA_TESLA_K80", 1)},
            (
                "trainingInput.masterConfig.acceleratorConfig; received '1 x NVIDIA_TESLA_K80'; "
                "allowed: nothing, since large_model is a legacy machine type"
            ),
        ),
        (
            {"masterType": "cloud_tpu", "masterConfig": accelerators("NVIDIA_TESLA_K80", 1)},
            (
                "trainingInput.masterConfig.acceleratorConfig; received '1 x NVIDIA_TESLA_K80'; "
                "allowed: TPUs, since the machine type is cloud_tpu"
            ),
        ),
        (
            {"workerType": "large_model", "workerCount": 1},
            (
                "trainingInput.workerType; received 'large_model'; "
                "allowed: a machine type of the kind of n1-standard-8: Compute Engine and legacy types do not mix"
            ),
        ),
        (
            {"workerType": "n1-standard-4", "workerCount": 2**62},
            f"trainingInput: too many replicas; received {2**62 + 1}; allowed: at most 1000 in all",
        ),
        ({"region": "moon-1"}, "trainingInput.region; received 'moon-1'; allowed: us-..., "),
    ],
)
def test_what_the_catalogue_has_not_is_refused(fields: dict[str, object], message: str) -> None:
    assert refusal(custom(**fields)).startswith(message)
