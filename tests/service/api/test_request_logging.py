"""``lockstep.requestLogging`` of a version: what it may be, and where requests may be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from lockstep.jobs.security.access import Scope
from lockstep.testing.served import Served

MODEL = "/v1/projects/local/models/m"


@pytest.fixture
def submitter(service: Served) -> httpx.Client:
    client = service.client(service.key(Scope.SUBMITTER, project="local"))
    assert client.post("/v1/projects/local/models", json={"name": "m"}).status_code == 200
    return client


def _create(client: httpx.Client, logging: Any) -> httpx.Response:
    uri = "gs://elsewhere/net.keras"
    body = {"name": "v1", "deploymentUri": uri, "lockstep": {"requestLogging": logging}}
    return client.post(f"{MODEL}/versions", json=body)


def _shown(client: httpx.Client) -> Any:
    return client.get(f"{MODEL}/versions/v1").json().get("lockstep", {}).get("requestLogging")


def test_requests_are_written_to_the_projects_own_folder_by_default(service: Served, submitter: httpx.Client) -> None:
    assert _create(submitter, {"samplingPercentage": 0.1}).status_code == 200
    own = f"{service.context.settings.bucket}/local/request-logs"
    assert _shown(submitter) == {"samplingPercentage": 0.1, "uri": own}


def test_it_is_changed_while_the_version_answers(service: Served, submitter: httpx.Client) -> None:
    submitter.post(f"{MODEL}/versions", json={"name": "v1", "deploymentUri": "gs://elsewhere/net.keras"})
    assert _shown(submitter) is None
    for sampling in (0.5, 0):
        body = {"lockstep": {"requestLogging": {"samplingPercentage": sampling, "uri": "gs://other/folder"}}}
        answer = submitter.patch(f"{MODEL}/versions/v1?updateMask=lockstep.requestLogging", json=body)
        assert answer.json()["done"] is True, answer.text
        assert _shown(submitter) == {"samplingPercentage": float(sampling), "uri": "gs://other/folder"}
    version = service.context.models.get_version(project="local", model="m", name="v1")
    assert service.context.models.request_loggings()[version.uid].url == "gs://other/folder"


@pytest.mark.parametrize("sampling", [-0.1, 1.1, "0.5", None, True])
def test_a_share_is_a_number_from_0_to_1(submitter: httpx.Client, sampling: Any) -> None:
    answer = _create(submitter, {"samplingPercentage": sampling})
    assert answer.status_code == 400
    assert "samplingPercentage" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "uri",
    [
        "{bucket}/other/request-logs",
        "{bucket}/local/jobs/train_1/logs",
        "{bucket}/local/models/m",
        "{bucket}/local",
        "{bucket}/local/request-logs/../models",
        "{bucket}/local/linked",
        "/etc",
        "relative",
        "memory://x",
    ],
)
@pytest.mark.parametrize("all_projects", [False, True])
def test_requests_are_written_to_no_other_folder_of_the_services_machine(
    service: Served, submitter: httpx.Client, uri: str, all_projects: bool
) -> None:
    bucket = Path(service.context.settings.bucket)
    (bucket / "local").mkdir(parents=True, exist_ok=True)
    (bucket / "local" / "linked").symlink_to("/etc")
    client = service.http if all_projects else submitter
    asked = {"samplingPercentage": 1, "uri": uri.format(bucket=bucket)}
    answer = _create(client, asked)
    assert answer.status_code == 400, answer.text
    assert "lockstep.requestLogging.uri" in answer.json()["error"]["message"]
    client.post(f"{MODEL}/versions", json={"name": "v1", "deploymentUri": "gs://elsewhere/net.keras"})
    body = {"lockstep": {"requestLogging": asked}}
    answer = client.patch(f"{MODEL}/versions/v1?updateMask=lockstep.requestLogging", json=body)
    assert answer.status_code == 400, answer.text
    assert _shown(client) is None


def test_the_contracts_field_says_what_to_use(submitter: httpx.Client) -> None:
    body = {"name": "v1", "deploymentUri": "gs://elsewhere/net.keras"}
    answer = submitter.post(f"{MODEL}/versions", json={**body, "requestLoggingConfig": {"samplingPercentage": 0.1}})
    assert answer.status_code == 501
    assert "lockstep.requestLogging writes requests to a bucket" in answer.json()["error"]["message"]
