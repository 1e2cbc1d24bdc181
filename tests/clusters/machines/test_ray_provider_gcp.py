"""Machines of Google Cloud: Ray's own client, against a server that acts as Compute Engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from googleapiclient.discovery import build
from tests.clusters.machines.compute_engine import ComputeEngine, compute_engine

from lockstep.clusters.machines import AbstractMachines
from lockstep.clusters.machines.clouds import open_cloud
from lockstep.clusters.machines.ray_provider import RayProviderMachines
from lockstep.errors import EngineError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import parse_cluster
from lockstep.testing.machines import AbstractMachinesConformance

TOKEN = "0123456789abcdef" * 4
NAME = "test-v100-0-0a1b2c"


@pytest.fixture(scope="module")
def _server() -> Iterator[ComputeEngine]:
    with compute_engine() as engine, pytest.MonkeyPatch.context() as patch:
        client = build(
            "compute",
            "v1",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": engine.url},
            static_discovery=True,
        )
        patch.setattr(  # where Ray would look for credentials
            "ray.autoscaler._private.gcp.node_provider.construct_clients_from_provider_config",
            lambda _: (None, None, client, None),
        )
        yield engine


@pytest.fixture
def engine(_server: ComputeEngine) -> ComputeEngine:
    _server.instances.clear()
    _server.refusal = None
    return _server


@pytest.fixture
def machines(engine: ComputeEngine) -> RayProviderMachines:
    node = {
        "disks": [{"boot": True, "initializeParams": {"sourceImage": "projects/p/global/images/lockstep"}}],
        "metadata": {"items": [{"key": "team", "value": "vision"}]},
    }
    v100s = {"type": "NVIDIA_TESLA_V100", "count": 2}
    document = {
        "name": "test",
        "provider": {
            "type": "gcp",
            "settings": {"project_id": "p", "availability_zone": "us-central1-a", "tags": {"team": "vision"}},
        },
        "headAddress": "10.0.0.5",
        "nodeTypes": {
            "cpu": {"machineType": "n1-standard-4", "maxNodes": 2, "nodeConfig": node},
            "v100": {
                "machineType": "n1-standard-8",
                "acceleratorConfig": v100s,
                "maxNodes": 1,
                "spot": True,
                "nodeConfig": node,
            },
        },
    }
    definition = parse_cluster(document, source="cluster.yaml", catalogue=load_catalogue())
    cloud = open_cloud(definition, catalogue=load_catalogue())
    return RayProviderMachines(cloud, token=TOKEN, head_address=lambda: "10.0.0.5:6379")


class TestGoogleCloud(AbstractMachinesConformance):
    @pytest.fixture(autouse=True)
    def _made(self, machines: RayProviderMachines) -> None:
        self._machines = machines

    def machines(self) -> AbstractMachines:
        return self._machines


def test_a_machine_is_what_its_type_says_and_starts_a_node(
    engine: ComputeEngine, machines: RayProviderMachines
) -> None:
    machines.create(NAME, node_type="v100")
    ((name, instance),) = engine.instances.items()
    assert name.startswith(f"{NAME}-")
    assert instance["machineType"] == "zones/us-central1-a/machineTypes/n1-standard-8"
    (gpus,) = instance["guestAccelerators"]
    assert gpus["acceleratorType"].endswith("/acceleratorTypes/nvidia-tesla-v100")
    assert gpus["acceleratorCount"] == 2
    assert instance["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
    }
    assert (
        instance["labels"].items() >= {"team": "vision", "lockstep-machine": NAME, "ray-cluster-name": "test"}.items()
    )
    metadata: dict[str, Any] = {item["key"]: item["value"] for item in instance["metadata"]["items"]}
    assert metadata["team"] == "vision"
    assert f"lockstep.io/node={NAME},lockstep.io/node-type=v100" in metadata["startup-script"]


def test_a_machine_that_turned_itself_off_is_still_there_until_it_is_removed(
    engine: ComputeEngine, machines: RayProviderMachines
) -> None:
    machines.create(NAME, node_type="cpu")
    next(iter(engine.instances.values()))["status"] = "TERMINATED"
    assert machines.names() == {NAME}
    machines.remove(NAME)
    assert not engine.instances


def test_a_stock_out_is_said_in_the_clouds_words(engine: ComputeEngine, machines: RayProviderMachines) -> None:
    engine.refusal = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "The zone does not have enough resources"}
    with pytest.raises(EngineError, match="0a1b2c: ZONE_RESOURCE_POOL_EXHAUSTED: The zone does not have enough resou"):
        machines.create(NAME, node_type="v100")
    assert machines.names() == frozenset()
