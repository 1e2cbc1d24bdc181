"""What a job asks for: read as the contract has it, refused in one line otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import ConfigError
from lockstep.jobs.input.documents import parse_config, parse_job, parse_training_input
from lockstep.jobs.input.hyperparameters import HyperparameterSpec, ParameterSpec
from lockstep.jobs.input.spec import (
    AcceleratorConfig,
    DiskConfig,
    EncryptionConfig,
    ReplicaConfig,
    ScaleTier,
    Scheduling,
    TrainingInput,
    ignored,
    running_python_version,
    unsupported,
)

SEED = """
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-standard-8
  masterConfig:
    acceleratorConfig: {count: 2, type: NVIDIA_TESLA_V100}
"""


def parse(text: str) -> TrainingInput:
    return parse_training_input(yaml.safe_load(text), source="config.yaml")


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "schema"),
    [
        (TrainingInput, "TrainingInput"),
        (ReplicaConfig, "ReplicaConfig"),
        (AcceleratorConfig, "AcceleratorConfig"),
        (DiskConfig, "DiskConfig"),
        (Scheduling, "Scheduling"),
        (HyperparameterSpec, "HyperparameterSpec"),
        (ParameterSpec, "ParameterSpec"),
        (EncryptionConfig, "EncryptionConfig"),
    ],
)
def test_fields_are_those_of_the_discovery_document(model: Any, schema: str) -> None:
    document = json.loads((files("googleapiclient") / "discovery_cache/documents/ml.v1.json").read_text("utf-8"))
    properties = document["schemas"][f"GoogleCloudMlV1__{schema}"]["properties"]
    assert {field.alias for field in model.model_fields.values()} - {"lockstep"} == set(properties)


def test_the_seed_form_is_read() -> None:
    training_input = parse(SEED)
    assert training_input.scale_tier is ScaleTier.CUSTOM
    assert training_input.master_type == "n1-standard-8"
    assert training_input.master_config is not None
    accelerators = training_input.master_config.accelerator_config
    assert accelerators is not None
    assert (accelerators.count, str(accelerators.type)) == (2, "NVIDIA_TESLA_V100")
    assert unsupported(training_input) == []


def test_an_empty_file_asks_for_the_basic_tier() -> None:
    assert parse("") == TrainingInput()


@pytest.mark.parametrize("count", ["3", "'3'"])
def test_int64_is_read_from_a_number_or_a_string_and_written_as_a_string(count: str) -> None:
    training_input = parse(f"trainingInput: {{scaleTier: CUSTOM, masterType: m, workerType: w, workerCount: {count}}}")
    assert training_input.worker_count == 3
    assert training_input.to_json() == {
        "scaleTier": "CUSTOM",
        "masterType": "m",
        "workerType": "w",
        "workerCount": "3",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scaleTier: BASIC", "config.yaml: unknown key scaleTier; put it under trainingInput"),
        (
            "trainingInput: {scaleTeir: X}",
            "config.yaml: unknown key trainingInput.scaleTeir; did you mean 'scaleTier'?",
        ),
        (
            "trainingInput: {master_type: x}",
            "config.yaml: unknown key trainingInput.master_type; did you mean 'masterType'?",
        ),
        (
            "trainingInput: {masterConfig: {diskConfig: {zzz: 1}}}",
            "config.yaml: unknown key trainingInput.masterConfig.diskConfig.zzz; allowed: bootDiskType, bootDiskSizeGb",
        ),
        ("trainingInput: 3", "config.yaml: trainingInput; received 3; allowed: keys and values"),
        ("trainingInput:", "config.yaml: trainingInput is empty; allowed: keys and values"),
        ("[1]", "config.yaml; received [1]; allowed: keys and values"),
        (
            "trainingInput: {args: [--epochs, 2]}",
            "config.yaml: trainingInput.args[1]; received 2; allowed: text; write it in quotes",
        ),
        (
            "trainingInput: {workerCount: true}",
            "config.yaml: trainingInput.workerCount; received True; allowed: a whole number",
        ),
        (
            "trainingInput: {workerCount: 2.0}",
            "config.yaml: trainingInput.workerCount; received 2.0; allowed: a whole number",
        ),
        (
            "trainingInput: {scheduling: {maxRunningTime: 3600}}",
            (
                "config.yaml: trainingInput.scheduling.maxRunningTime; received 3600; "
                'allowed: seconds with an "s", such as "3600s"'
            ),
        ),
        (
            "trainingInput: {scheduling: {maxWaitTime: 1799s}}",
            "config.yaml: trainingInput.scheduling.maxWaitTime; received '1799s'; allowed: 1800s or more",
        ),
        (
            "trainingInput: {lockstep: {stuckAfter: 0.5s}}",
            "config.yaml: trainingInput.lockstep.stuckAfter; received '0.5s'; allowed: 1s or more",
        ),
        (
            "trainingInput: {lockstep: {restartPolicy: {wholeJob: true, serversAlone: true}}}",
            (
                "config.yaml: trainingInput.lockstep.restartPolicy.serversAlone; received True; "
                "allowed: not together with wholeJob"
            ),
        ),
        (
            "trainingInput: {lockstep: {restartPolicy: {wholeJob: true, workersMove: true}}}",
            (
                "config.yaml: trainingInput.lockstep.restartPolicy.workersMove; received True; "
                "allowed: not together with wholeJob"
            ),
        ),
        (
            "trainingInput: {scheduling: {priority: 1001}}",
            "config.yaml: trainingInput.scheduling.priority; received 1001; allowed: 0 to 1000",
        ),
        (
            "trainingInput: {enableWebAccess: 'no'}",
            "config.yaml: trainingInput.enableWebAccess; received 'no'; allowed: true or false",
        ),
        (
            "trainingInput: {scaleTier: CUSTOM}",
            "config.yaml: trainingInput.masterType is missing; allowed: a machine type, since scaleTier is CUSTOM",
        ),
        (
            "trainingInput: {scaleTier: CUSTOM, masterType: m, workerCount: 2}",
            "config.yaml: trainingInput.workerType is missing; allowed: a machine type, since workerCount is 2",
        ),
        (
            "trainingInput: {workerCount: 2}",
            "config.yaml: trainingInput.workerCount; received 2; allowed: only with scaleTier CUSTOM, not BASIC",
        ),
        (
            "trainingInput: {args: [a], masterConfig: {imageUri: i, containerArgs: [b]}}",
            "config.yaml: trainingInput.masterConfig.containerArgs; received ['b']; allowed: not together with args",
        ),
        (
            "trainingInput: {pythonModule: m, masterConfig: {imageUri: i, containerCommand: [b]}}",
            (
                "config.yaml: trainingInput.masterConfig.containerCommand; received ['b']; "
                "allowed: not together with pythonModule"
            ),
        ),
        (
            "trainingInput: {masterConfig: {imageUri: i}, lockstep: {environment: {requirements: r.txt}}}",
            (
                "config.yaml: trainingInput.lockstep.environment.requirements; received 'r.txt'; "
                "allowed: not with an imageUri: an image brings its own packages"
            ),
        ),
        (
            "trainingInput: {workerConfig: {containerCommand: [b]}}",
            "config.yaml: trainingInput.workerConfig.containerCommand; received ['b']; allowed: only with an imageUri",
        ),
        (
            "jobId: 1a",
            (
                "config.yaml: jobId; received '1a'; "
                "allowed: 1 to 128 letters, digits and underscores, starting with a letter"
            ),
        ),
        (
            "trainingInput: {hyperparameters: {params: [{parameterName: a, type: DISCRETE, discreteValues: [2, 1]}]}}",
            (
                "config.yaml: trainingInput.hyperparameters.params[0].discreteValues; received [2.0, 1.0]; "
                "allowed: 1 to 1000 numbers in strictly increasing order, since type is DISCRETE"
            ),
        ),
    ],
)
def test_bad_input_gets_one_line_that_names_the_key(text: str, message: str) -> None:
    assert refusal(text) == message


def test_several_problems_are_counted() -> None:
    message = refusal("trainingInput: {scaleTier: BASC, args: abc, enableWebAccess: 1}")
    assert message == (
        "config.yaml: trainingInput.scaleTier; received 'BASC'; "
        "allowed: BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU, BASIC_TPU, CUSTOM; did you mean 'BASIC'? (and 2 more)"
    )


def test_rules_hold_for_models_made_in_python_too() -> None:
    with pytest.raises(ValueError, match="do not fit together"):
        TrainingInput(scale_tier=ScaleTier.CUSTOM)


def test_models_are_frozen() -> None:
    training_input = TrainingInput()
    with pytest.raises(ValueError, match="frozen"):
        training_input.region = "us-central1"


def test_a_config_may_name_the_job_and_its_labels() -> None:
    config = parse_config({"jobId": "rnn_7", "labels": {"owner": "ann"}}, source="config.yaml")
    assert (config.job_id, config.labels, config.training_input) == ("rnn_7", {"owner": "ann"}, TrainingInput())


@pytest.mark.parametrize("labels", [{"Owner": "a"}, {"": "a"}, {"1a": "b"}, {"a": "B"}, {"a": 1}, {"a": "b" * 64}, [1]])
def test_labels_follow_their_rules(labels: object) -> None:
    with pytest.raises(ConfigError, match="labels"):
        parse_config({"labels": labels}, source="config.yaml")


def test_a_job_that_was_read_can_be_sent_back() -> None:
    job = {
        "jobId": "rnn_7",
        "trainingInput": {"pythonModule": "train"},
        "labels": {"owner": "ann"},
        "state": "FAILED",
        "createTime": "2026-01-31T12:00:00Z",
        "etag": "abc=",
        "trainingOutput": {"consumedMLUnits": 1.79},
    }
    request = parse_job(job, source="request")
    assert request.to_json() == {
        "jobId": "rnn_7",
        "trainingInput": {"pythonModule": "train"},
        "labels": {"owner": "ann"},
    }


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"trainingInput": {}}, "request: jobId is missing"),
        ({"jobId": "a"}, "request: trainingInput is missing"),
        (
            {"jobId": "a", "trainingInput": {}},
            "request: trainingInput.pythonModule is missing; allowed: the module to run",
        ),
        (
            {"jobId": "a", "trainingInput": {}, "predictionInput": {"modelName": "m"}},
            "request: predictionInput; received {'modelName': 'm'}; allowed: not together with trainingInput",
        ),
    ],
)
def test_a_job_that_cannot_be_created_is_refused(job: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_job(job, source="request")
    assert str(caught.value) == message


def test_what_cannot_be_honoured_is_named() -> None:
    training_input = TrainingInput(
        encryption_config=EncryptionConfig(kms_key_name="k"),
        network="n",
        service_account="s",
        python_version="3.7",
        worker_config=ReplicaConfig(image_uri="i", tpu_tf_version="2", disk_config=DiskConfig()),
    )
    lines = unsupported(training_input)
    assert [line.split(":")[0].removeprefix("trainingInput.") for line in lines] == [
        "encryptionConfig",
        "network",
        "serviceAccount",
        "pythonVersion",
        "workerConfig.tpuTfVersion",
        "workerConfig.diskConfig",
    ]
    assert all(line.endswith("; remove it") for line in lines)


def test_what_can_be_honoured_is_not_named() -> None:
    training_input = TrainingInput(
        region="europe-west1",
        job_dir="gs://b/j",
        python_module="train",
        package_uris=("gs://b/p.tar.gz",),
        args=("--epochs", "2"),
        python_version=running_python_version(),
        scheduling=Scheduling(priority=7),
        use_chief_in_tf_config=True,
        worker_config=ReplicaConfig(image_uri="gcr.io/p/i:1"),
    )
    assert unsupported(training_input) == []


def test_a_runtime_version_is_noted_and_ignored() -> None:
    training_input = TrainingInput(python_module="train", runtime_version="2.4")
    assert unsupported(training_input) == []
    (line,) = ignored(training_input)
    assert line.startswith("trainingInput.runtimeVersion: 2.4 is ignored; there is one runtime")
    assert ignored(TrainingInput(python_module="train")) == []


def test_durations_are_read_into_seconds() -> None:
    scheduling = Scheduling(max_running_time="1.5s", max_wait_time="1800s")
    assert (scheduling.max_running_time_s, scheduling.max_wait_time_s) == (1.5, 1800.0)
    assert (Scheduling().max_running_time_s, Scheduling().max_wait_time_s) == (604800.0, None)


_TEXT = st.text(alphabet=st.characters(codec="utf-8"), max_size=8)
_KEYS = st.sampled_from(
    [field.alias or "" for field in TrainingInput.model_fields.values()]
    + ["acceleratorConfig", "count", "type", "params", "diskConfig", "priority", "zz"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | _TEXT | st.integers(), inner, max_size=3),
    max_leaves=12,
)


def _message(read: Callable[..., object], document: object) -> str | None:
    try:
        read(document, source="config.yaml")
    except ConfigError as error:
        return str(error)
    return None


@given(content=_JSON)
def test_nothing_but_a_config_error_comes_of_any_document(content: object) -> None:
    for document in (content, {"trainingInput": content}, {"jobId": "a", "trainingInput": content}):
        for read in (parse_training_input, parse_job):
            message = _message(read, document)
            assert message is None or (message.startswith("config.yaml") and "\n" not in message)


@given(
    workers=st.integers(1, 2**63 - 1),
    priority=st.integers(0, 1000),
    args=st.lists(_TEXT, max_size=3).map(tuple),
    chief=st.booleans(),
)
def test_json_reads_back_into_an_equal_model(
    *, workers: int, priority: int, args: tuple[str, ...], chief: bool
) -> None:
    training_input = TrainingInput(
        scale_tier=ScaleTier.CUSTOM,
        master_type="n1-standard-8",
        worker_type="n1-standard-4",
        worker_count=workers,
        args=args,
        scheduling=Scheduling(priority=priority),
        use_chief_in_tf_config=chief,
    )
    document = json.loads(json.dumps({"trainingInput": training_input.to_json()}))
    assert parse_training_input(document, source="config.yaml") == training_input
