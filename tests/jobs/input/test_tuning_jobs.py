"""A HyperparameterTuningJob of Vertex AI, translated; what would be lost is refused by its own name."""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from typing import Any

import pytest
import yaml

from lockstep.errors import ConfigError
from lockstep.jobs.input.documents import parse_config, parse_job
from lockstep.jobs.input.tuning_jobs import (
    HyperparameterTuningJob,
    MedianAutomatedStoppingSpec,
    MetricSpec,
    StudyParameterSpec,
    StudySpec,
)

PUBLIC: dict[str, Any] = yaml.safe_load(
    """
displayName: horses or humans
labels: {team: vision}
maxTrialCount: 15
parallelTrialCount: 3
maxFailedTrialCount: 2
studySpec:
  metrics:
  - {metricId: accuracy, goal: MAXIMIZE}
  parameters:
  - parameterId: learning_rate
    doubleValueSpec: {minValue: 0.0001, maxValue: 1}
    scaleType: UNIT_LOG_SCALE
  - parameterId: momentum
    doubleValueSpec: {minValue: 0, maxValue: 1}
    scaleType: UNIT_LINEAR_SCALE
  - parameterId: num_neurons
    discreteValueSpec: {values: [64, 128, 512]}
  - parameterId: layers
    integerValueSpec: {minValue: '1', maxValue: '4'}
  - parameterId: optimizer
    categoricalValueSpec: {values: [adam, sgd]}
    scaleType: SCALE_TYPE_UNSPECIFIED
  algorithm: ALGORITHM_UNSPECIFIED
  medianAutomatedStoppingSpec: {}
trialJobSpec:
  workerPoolSpecs:
  - machineSpec: {machineType: n1-standard-4, acceleratorType: NVIDIA_TESLA_T4, acceleratorCount: 1}
    replicaCount: '1'
    containerSpec: {imageUri: 'gcr.io/p/horse-human:hypertune'}
  baseOutputDirectory: {outputUriPrefix: 'gs://bucket/search'}
"""
)


def changed(path: str, value: object) -> dict[str, Any]:
    """Returns the public example with one value replaced; None removes it."""
    document = copy.deepcopy(PUBLIC)
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    place: Any = document
    for part in parents:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


def test_the_public_example_becomes_a_search_of_the_contract() -> None:
    job = parse_job(PUBLIC, source="request")
    assert job.job_id == "horses_or_humans"
    assert job.labels == {"team": "vision"}
    assert job.training_input.to_json() == {
        "scaleTier": "CUSTOM",
        "masterType": "n1-standard-4",
        "masterConfig": {
            "acceleratorConfig": {"count": "1", "type": "NVIDIA_TESLA_T4"},
            "imageUri": "gcr.io/p/horse-human:hypertune",
        },
        "useChiefInTfConfig": True,
        "hyperparameters": {
            "params": [
                {
                    "parameterName": "learning_rate",
                    "type": "DOUBLE",
                    "minValue": 0.0001,
                    "maxValue": 1.0,
                    "scaleType": "UNIT_LOG_SCALE",
                },
                {
                    "parameterName": "momentum",
                    "type": "DOUBLE",
                    "minValue": 0.0,
                    "maxValue": 1.0,
                    "scaleType": "UNIT_LINEAR_SCALE",
                },
                {"parameterName": "num_neurons", "type": "DISCRETE", "discreteValues": [64.0, 128.0, 512.0]},
                {"parameterName": "layers", "type": "INTEGER", "minValue": 1.0, "maxValue": 4.0},
                {"parameterName": "optimizer", "type": "CATEGORICAL", "categoricalValues": ["adam", "sgd"]},
            ],
            "maxTrials": 15,
            "maxParallelTrials": 3,
            "maxFailedTrials": 2,
            "hyperparameterMetricTag": "accuracy",
            "enableTrialEarlyStopping": True,
        },
        "lockstep": {"baseOutputDirectory": "gs://bucket/search"},
    }


def test_a_file_of_gcloud_leaves_out_what_its_flags_say() -> None:
    document = {key: PUBLIC[key] for key in ("studySpec", "trialJobSpec")}
    config = parse_config(document, source="config.yaml")
    assert config.job_id is None
    spec = config.training_input.hyperparameters
    assert spec is not None
    assert (spec.max_trials, spec.max_parallel_trials) == (1, 1)
    with pytest.raises(ConfigError, match="request: displayName is missing; allowed: the job's name"):
        parse_job(document, source="request")


def test_fields_are_those_of_the_discovery_document() -> None:
    text = (files("googleapiclient") / "discovery_cache/documents/aiplatform.v1.json").read_text("utf-8")
    schemas = json.loads(text)["schemas"]
    spec = "StudySpecParameterSpec"
    for model, name in (
        (HyperparameterTuningJob, "HyperparameterTuningJob"),
        (StudySpec, "StudySpec"),
        (MetricSpec, "StudySpecMetricSpec"),
        (MedianAutomatedStoppingSpec, "StudySpecMedianAutomatedStoppingSpec"),
        (StudyParameterSpec, spec),
        *(
            (field.annotation.__args__[0], f"{spec}{(field.alias or '')[0].upper()}{(field.alias or '')[1:]}")
            for key, field in StudyParameterSpec.model_fields.items()
            if key.endswith("value_spec")
        ),
    ):
        own = {field.alias for field in model.model_fields.values()}
        assert own == set(schemas[f"GoogleCloudAiplatformV1{name}"]["properties"]), name


FIRST = "studySpec.parameters.0"
SHOWN = "studySpec.parameters[0]"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            f"{FIRST}.conditionalParameterSpecs",
            [{}],
            f"{SHOWN}.conditionalParameterSpecs: a parameter is one of every ",
        ),
        (f"{FIRST}.doubleValueSpec.defaultValue", 0.1, f"{SHOWN}.doubleValueSpec.defaultValue: a search has no start"),
        (f"{FIRST}.doubleValueSpec.minValue", 0, f"{SHOWN}.doubleValueSpec.minValue; received 0.0; allowed: more than"),
        (
            f"{FIRST}.doubleValueSpec.minValue",
            2,
            f"{SHOWN}.doubleValueSpec.maxValue; received 1.0; allowed: at least doubleValueSpec.minValue, 2.0",
        ),
        (
            f"{FIRST}.doubleValueSpec",
            None,
            f"{SHOWN}.doubleValueSpec is missing; allowed: one of doubleValueSpec, inte",
        ),
        (
            f"{FIRST}.integerValueSpec",
            {"minValue": 1, "maxValue": 2},
            "received ['doubleValueSpec', 'integerValueSpec']",
        ),
        (
            f"{FIRST}.parameterId",
            "momentum",
            "parameters[1].parameterId; received 'momentum'; allowed: a name that no o",
        ),
        (f"{FIRST}.parameterId", "job-dir", f"{SHOWN}.parameterId; received 'job-dir'; allowed: another name"),
        (
            "studySpec.parameters.2.discreteValueSpec.values",
            [2, 1],
            "[2].discreteValueSpec.values; received [2.0, 1.0]",
        ),
        (
            "studySpec.parameters.4.scaleType",
            "UNIT_LOG_SCALE",
            "[4].scaleType; received 'UNIT_LOG_SCALE'; allowed: NONE",
        ),
        ("studySpec.parameters", [], "studySpec.parameters; received []; allowed: one parameter or more"),
        ("studySpec.metrics", [{"metricId": "a"}] * 2, "studySpec.metrics; received ['a', 'a']; allowed: one metric"),
        ("studySpec.metrics.0.safetyConfig", {"safetyThreshold": 1}, "metrics[0].safetyConfig: trials have no limit"),
        ("studySpec.algorithm", "GRID_SEARCH", f"{SHOWN}.doubleValueSpec; received 'learning_rate'; allowed: no range"),
        ("studySpec.medianAutomatedStoppingSpec", {"useElapsedDuration": True}, "useElapsedDuration: trials are comp"),
        (
            "studySpec.decayCurveStoppingSpec",
            {"useElapsedDuration": True},
            "decayCurveStoppingSpec: trials are stopped",
        ),
        ("studySpec.convexAutomatedStoppingSpec", {"minStepCount": 1}, "convexAutomatedStoppingSpec: trials are stop"),
        ("studySpec.measurementSelectionType", "BEST_MEASUREMENT", "measurementSelectionType: the last measurement"),
        ("studySpec.observationNoise", "HIGH", "studySpec.observationNoise: the same parameters are never tried twice"),
        (
            "studySpec.studyStoppingConfig",
            {"maxNumTrials": 3},
            "studyStoppingConfig: a search ends after maxTrialCount",
        ),
        ("trialJobSpec.network", "n", "trialJobSpec.network: network peering is not supported; remove it"),
        ("trialJobSpec.workerPoolSpecs.0.machineSpec.machineType", "m", "trialJobSpec.workerPoolSpecs[0].machineSpec."),
        ("maxTrialCount", 0, "maxTrialCount; received 0; allowed: greater than or equal to 1"),
        ("trainingInput", {}, "trainingInput and studySpec cannot be given together"),
        ("trialJobSpec", None, "request: trialJobSpec is missing"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_own_name(path: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_job(changed(path, value), source="request")
    text = str(caught.value)
    assert message in text
    assert text.startswith("request: ")
    assert "\n" not in text
