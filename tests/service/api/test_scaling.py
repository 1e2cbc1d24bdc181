"""``autoScaling`` and ``manualScaling`` of versions, by Google's own client."""

from __future__ import annotations

from typing import Any

import pytest
from googleapiclient.errors import HttpError

from lockstep.jobs.running.order_parts import FileOrder
from lockstep.service.store import VersionRecord, VersionState
from lockstep.testing.served import Served

AUTO = {"minNodes": 0, "maxNodes": 4, "metrics": [{"name": "CPU_USAGE", "target": 70}]}
OWN = {"requestsPerServer": 2.5, "idleTimeout": "90s", "wakeTimeout": "0s", "stabilizationWindow": "1.5s"}


@pytest.fixture(autouse=True)
def model(service: Served) -> None:
    service.google().models().create(parent="projects/local", body={"name": "m"}).execute()


def create(service: Served, **fields: Any) -> dict[str, Any]:
    """Creates a version; returns it as it is then."""
    versions = service.google().models().versions()
    body = {"name": "v1", "deploymentUri": "/m", **fields}
    versions.create(parent="projects/local/models/m", body=body).execute()
    return versions.get(name="projects/local/models/m/versions/v1").execute()


def make_ready(service: Served, **changes: Any) -> VersionRecord:
    models = service.context.models
    record = models.get_version(project="local", model="m", name="v1")
    models.update_version(record, state=VersionState.READY, **changes)
    return models.get_version(project="local", model="m", name="v1")


def test_what_is_asked_for_is_recorded_and_returned(service: Served) -> None:
    version = create(service, autoScaling=AUTO, lockstep={"autoScaling": OWN})
    assert version["autoScaling"] == AUTO
    assert version["lockstep"].items() >= {"autoScaling": OWN, "numServers": 1, "numReadyServers": 0}.items()
    assert "manualScaling" not in version


def test_what_is_left_out_has_the_contracts_defaults(service: Served) -> None:
    version = create(service, autoScaling={"minNodes": 2})
    assert version["autoScaling"] == {
        "minNodes": 2,
        "maxNodes": 100,
        "metrics": [{"name": "CPU_USAGE", "target": 60}],
    }
    assert version["lockstep"]["numServers"] == 2


def test_without_scaling_a_version_has_one_server(service: Served) -> None:
    version = create(service)
    assert version["manualScaling"] == {"nodes": 1}
    assert "autoScaling" not in version


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"autoScaling": AUTO, "manualScaling": {"nodes": 1}}, "either autoScaling or manualScaling, not both"),
        ({"autoScaling": {"minNodes": 3, "maxNodes": 2}}, "autoScaling.maxNodes; received 2; allowed: minNodes, 3, to"),
        ({"autoScaling": {"minNodes": -1}}, "autoScaling.minNodes"),
        ({"autoScaling": {"maxNodes": 0}}, "autoScaling.maxNodes"),
        ({"autoScaling": {"maxNodes": 101}}, "autoScaling.maxNodes"),
        ({"autoScaling": {"metrics": [{"name": "CPU_USAGE", "target": 0}]}}, "metrics[0].target"),
        ({"autoScaling": {"metrics": [{"name": "METRIC_NAME_UNSPECIFIED"}]}}, "metrics[0].name"),
        ({"autoScaling": {"metrics": [{"name": "CPU_USAGE"}] * 2}}, "metrics.1.name: CPU_USAGE is there twice"),
        ({"autoScaling": {"metrics": [{"name": "GPU_DUTY_CYCLE"}]}}, "GPU_DUTY_CYCLE is not known: n1-standard-4 has"),
        ({"lockstep": {"autoScaling": OWN}}, "only for versions with autoScaling"),
        ({"autoScaling": AUTO, "lockstep": {"autoScaling": {"requestsPerServer": 0}}}, "a number above 0"),
        ({"autoScaling": AUTO, "lockstep": {"autoScaling": {"wakeTimeout": "601s"}}}, '"0s" to "600s"'),
        ({"autoScaling": AUTO, "lockstep": {"autoScaling": {"idleTimeout": 5}}}, "idleTimeout"),
    ],
)
def test_what_cannot_be_is_refused_in_words(service: Served, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(HttpError) as caught:
        create(service, **fields)
    assert caught.value.resp.status == 400
    assert message in caught.value.reason


def test_a_version_without_a_server_is_ready_and_says_what_it_waits_for(service: Served) -> None:
    create(service, autoScaling=AUTO)
    make_ready(service, num_servers=0, files=(FileOrder(url="/m", name="m", sha256="0"),))
    versions = service.google().models().versions()
    version = versions.get(name="projects/local/models/m/versions/v1").execute()
    assert (version["state"], version["lockstep"]["numServers"]) == ("READY", 0)
    assert version["lockstep"]["waitingFor"].startswith("a request, which starts a server")


def test_a_request_that_is_not_held_is_told_when_to_try_again(service: Served) -> None:
    create(service, autoScaling=AUTO, lockstep={"autoScaling": OWN})
    make_ready(service, num_servers=0)
    answer = service.http.post("/v1/projects/local/models/m:predict", json={"instances": [1]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert answer.json()["error"]["status"] == "UNAVAILABLE"


def test_a_request_that_is_held_too_long_is_told_when_to_try_again(service: Served) -> None:
    create(service, autoScaling=AUTO, lockstep={"autoScaling": {"wakeTimeout": "0.2s"}})
    make_ready(service, num_servers=0)
    answer = service.http.post("/v1/projects/local/models/m:predict", json={"instances": [1]}, timeout=30)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert "one is being started" in answer.json()["error"]["message"]
