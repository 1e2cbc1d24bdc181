"""Requests, documents and filters that nobody thought of: an answer or one line, never a crash, and soon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.errors import LockstepError
from lockstep.jobs.input.documents import parse_config, parse_job
from lockstep.jobs.lists.filters import parse_filter
from lockstep.jobs.logs.filters import parse_log_filter
from lockstep.jobs.parsing.yaml_documents import parse_yaml
from lockstep.service.api.prediction.model_requests import parse_version
from lockstep.service.api.vertex import requests as vertex
from lockstep.service.api.vertex.deploying import check_server, version_document
from lockstep.service.store import UploadedModelRecord

QUICK = settings(max_examples=150, deadline=None, derandomize=True, database=None)

FILTER_WORDS = st.sampled_from(
    [
        "jobId",
        "state",
        "labels.a",
        "createTime",
        "severity",
        "textPayload",
        "timestamp",
        "AND",
        "OR",
        "NOT",
        "-",
        "(",
        ")",
        ":",
        "=",
        "!=",
        "<",
        ">=",
        "=~",
        "!~",
        "*",
        '"',
        '"x"',
        "2026-01-01",
        "1e999",
        "9" * 400,
        "ERROR",
        "\\",
        "\x00",
        "--",
    ]
)
FILTERS = st.one_of(
    st.text(max_size=60), st.lists(FILTER_WORDS, max_size=20).map(" ".join), st.lists(FILTER_WORDS).map("".join)
)
KEYS = st.sampled_from(
    [
        "jobId",
        "labels",
        "trainingInput",
        "scaleTier",
        "masterType",
        "args",
        "workerCount",
        "scheduling",
        "priority",
        "maxRunningTime",
        "pythonModule",
        "jobSpec",
        "workerPoolSpecs",
        "machineSpec",
        "replicaCount",
        "displayName",
        "lockstep",
        "hyperparameters",
        "params",
        "env",
        "restartPolicy",
        "masterConfig",
        "acceleratorConfig",
        "containerSpec",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["CUSTOM", "3600s"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=8), inner, max_size=5),
    max_leaves=25,
)


@QUICK
@given(FILTERS)
def test_a_filter_is_read_or_refused(text: str) -> None:
    refusals: list[str] = []
    for parse in (parse_filter, parse_log_filter):
        try:
            parse(text)
        except LockstepError as error:
            refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)


@QUICK
@given(VALUES)
def test_a_document_is_read_or_refused(document: Any) -> None:
    refusals: list[str] = []
    for parse in (parse_config, parse_job):
        try:
            parse(document, source="fuzz")
        except LockstepError as error:
            refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)


@QUICK
@given(
    st.one_of(
        st.text(max_size=80), st.lists(st.sampled_from(list("{}[]:,-&*!?|>'\"#%@` \n\ta1")), max_size=60).map("".join)
    )
)
def test_a_yaml_text_is_read_or_refused(text: str) -> None:
    refusals: list[str] = []
    try:
        parse_config(parse_yaml(text, source="fuzz"), source="fuzz")
    except LockstepError as error:
        refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)


VERTEX_KEYS = st.sampled_from(
    [
        "model",
        "modelId",
        "displayName",
        "artifactUri",
        "containerSpec",
        "imageUri",
        "predictRoute",
        "healthRoute",
        "ports",
        "env",
        "deployedModel",
        "deployedModelId",
        "trafficSplit",
        "dedicatedResources",
        "automaticResources",
        "machineSpec",
        "machineType",
        "acceleratorType",
        "minReplicaCount",
        "maxReplicaCount",
        "autoscalingMetricSpecs",
        "metricName",
        "labels",
    ]
)
VERTEX_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["digits", "0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(VERTEX_KEYS | st.text(max_size=3), inner, max_size=5),
    max_leaves=15,
)
UPLOADED = UploadedModelRecord(
    project="p",
    name="net",
    description="",
    labels={},
    region="us-central1",
    artifact_uri="gs://b/m",
    container_spec=None,
    create_time_s=0,
    update_time_s=0,
)

DEPLOYED = vertex.parse(
    vertex.DeployRequest, {"deployedModel": {"model": "m", "automaticResources": {"minReplicaCount": 1}}}
)


@QUICK
@given(st.dictionaries(VERTEX_KEYS, VERTEX_VALUES, max_size=4))
@pytest.mark.heavy
def test_a_document_of_vertex_ai_is_read_or_refused(document: dict[str, Any]) -> None:
    refusals: list[str] = []
    deployed = {"deployedModel": {"model": "m", **document}, "trafficSplit": document.get("trafficSplit", {})}
    for kind, asked in (
        (vertex.UploadRequest, document),
        (vertex.UploadRequest, {"model": {"displayName": "m", "artifactUri": "gs://b/m", **document}}),
        (vertex.UploadRequest, {"model": {"displayName": "m", "containerSpec": {"imageUri": "i:1", **document}}}),
        (vertex.EndpointRequest, {"displayName": "m", **document}),
        (vertex.DeployRequest, deployed),
        (vertex.UndeployRequest, document),
    ):
        try:
            request = vertex.parse(kind, asked)
            if isinstance(request, vertex.DeployRequest):
                vertex.check_split(request.traffic_split)
                parse_version(version_document(request.deployed_model, endpoint="e", name="v", model=UPLOADED))
            elif isinstance(request, vertex.UploadRequest):
                check_server(request.model)
                spec = request.model.container_spec
                uploaded = replace(UPLOADED, container_spec=None if spec is None else spec.to_json())
                parse_version(version_document(DEPLOYED.deployed_model, endpoint="e", name="v", model=uploaded))
        except LockstepError as error:
            refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)


NASTY = {
    "brackets": "[" * 50_000,
    "braces": "{a: " * 20_000,
    "long_key": "a" * 200_000 + ": 1",
    "huge_number": "jobId: " + "9" * 100_000,
    "aliases": "a: &a [x, x]\n"
    + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)),
    "dashes": "- " * 20_000,
    "odd_key": "? [a, b]\n: c",
    "mapping_as_key": "{? {a: b} : c}",
    "date": "2026-99-99: 2026-13-45",
    "number": "a: 0x_",
    "merge": "<<: 3",
    "tagged_bool": "a: !!bool maybe",
    "tagged_time": "a: !!timestamp never",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_yaml_text_is_refused(name: str) -> None:
    with pytest.raises(LockstepError):
        parse_config(parse_yaml(NASTY[name], source="fuzz"), source="fuzz")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", ["(" * 20_000, "NOT " * 20_000, "a:" * 20_000, "jobId:a AND " * 5_000, '"' + "x" * 100_000]
)
def test_a_nasty_filter_is_answered_soon(text: str) -> None:
    refusals: list[str] = []
    for parse in (parse_filter, parse_log_filter):
        try:
            parse(text)
        except LockstepError as error:
            refusals.append(str(error))
    assert all(len(refusal) < 2_000 for refusal in refusals)
