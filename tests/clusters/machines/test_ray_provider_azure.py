"""Machines of Azure: Ray's own client and Azure's, against a server that acts as Azure's management interface."""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Iterator
from functools import partial
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, NamedTuple, final

import pytest
import trustme
from tests.clusters.machines.azure_management import GROUP, PAGE_LENGTH, TOKEN, AzureManagement, azure_management

from lockstep.clusters.machines import AbstractMachines
from lockstep.clusters.machines.clouds import open_cloud
from lockstep.clusters.machines.ray_provider import RayProviderMachines
from lockstep.errors import EngineError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import parse_cluster
from lockstep.testing.machines import AbstractMachinesConformance

RAY_TOKEN = "0123456789abcdef" * 4
NAME = "test-t4-0-0a1b2c"

# Azure's libraries take seconds to import: only tests that are played do so.
pytestmark = pytest.mark.heavy


@final
class AccessToken(NamedTuple):
    """As Azure's library has it."""

    token: str
    expires_on: int = 4_000_000_000


class Credential:
    """What stands for whoever runs the service."""

    def __init__(self, **_: Any) -> None:
        pass

    def get_token(self, *_scopes: str, **_kwargs: Any) -> AccessToken:
        return AccessToken(TOKEN)


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureManagement]:
    from ray.autoscaler._private._azure import node_provider

    authority = trustme.CA()
    bundle: Path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(bundle))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with azure_management(tls) as azure, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
        for name in ("ComputeManagementClient", "NetworkManagementClient", "ResourceManagementClient"):
            client = partial(getattr(node_provider, name), base_url=azure.url)
            patch.setattr(node_provider, name, client)
        patch.setattr(node_provider, "DefaultAzureCredential", Credential)
        patch.setattr(node_provider, "get_cloud_from_metadata_requests", lambda: "unknown")  # nobody is asked
        yield azure


@pytest.fixture
def azure(_server: AzureManagement) -> AzureManagement:
    fresh = AzureManagement()
    fresh.url = _server.url
    vars(_server).update(vars(fresh))
    return _server


def machines_of(name: str, **settings: Any) -> RayProviderMachines:
    node = {"imageId": f"{GROUP}/providers/Microsoft.Compute/images/lockstep", "osDiskSize": 100}
    market = {"imagePublisher": "p", "imageOffer": "o", "imageSku": "s", "imageVersion": "latest"}
    t4s = {"type": "NVIDIA_TESLA_T4", "count": 1}
    document = {
        "name": name,
        "provider": {
            "type": "azure",
            "settings": {
                "subscription_id": "sub-1",
                "resource_group": "lab-nodes",
                "location": "westeurope",
                "subnet": f"{GROUP}/providers/Microsoft.Network/virtualNetworks/net/subnets/nodes",
                "nsg": f"{GROUP}/providers/Microsoft.Network/networkSecurityGroups/nodes",
                "msi": f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/node",
                "tags": {"team": "[vision]"},
                **settings,
            },
        },
        "headAddress": "10.0.0.5",
        "setupCommands": ["echo ready"],
        "nodeTypes": {
            "cpu": {"machineType": "n1-standard-4", "maxNodes": 2, "nodeConfig": market},
            "t4": {
                "machineType": "n1-standard-8",
                "acceleratorConfig": t4s,
                "maxNodes": 1,
                "spot": True,
                "nodeConfig": {**node, "billingProfile": {"maxPrice": 0.2}, "enableAcceleratedNetworking": True},
            },
        },
    }
    definition = parse_cluster(document, source="cluster.yaml", catalogue=load_catalogue())
    cloud = open_cloud(definition, catalogue=load_catalogue())
    return RayProviderMachines(cloud, token=RAY_TOKEN, head_address=lambda: "10.0.0.5:6379")


def unknown_keys(model: Any, document: dict[str, Any]) -> list[str]:
    """Returns the keys of a document that a model of Azure's library does not have, nor the models in it."""
    fields = {field._rest_name: name for name, field in model._attr_to_rest_field.items()}
    unknown = [key for key in document if key not in fields]
    for key in document.keys() - set(unknown):
        value, inner = document[key], getattr(model, fields[key])
        values, inners = (value, inner) if isinstance(value, list) else ([value], [inner])
        for one, of in zip(values, inners, strict=True):
            if hasattr(of, "_attr_to_rest_field"):
                unknown += [f"{key}.{each}" for each in unknown_keys(of, one)]
    return unknown


class TestAzure(AbstractMachinesConformance):
    @pytest.fixture(autouse=True)
    def _made(self, azure: AzureManagement) -> None:
        self._machines = machines_of("test")

    def machines(self) -> AbstractMachines:
        return self._machines


def test_a_machine_is_what_its_type_says_and_starts_a_node(azure: AzureManagement) -> None:
    machines_of("test").create(NAME, node_type="t4")
    (machine,) = azure.machines.values()
    assert (machine["name"], machine["location"]) == (NAME, "westeurope")
    assert "zones" not in machine
    tags = {"team": "[vision]", "lockstep-machine": NAME, "ray-cluster-name": "test"}
    assert machine["tags"].items() >= tags.items()
    assert list(machine["identity"]["userAssignedIdentities"]) == [
        f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/node"
    ]
    properties = machine["properties"]
    assert properties["hardwareProfile"] == {"vmSize": "Standard_NC8as_T4_v3"}
    assert (properties["priority"], properties["evictionPolicy"]) == ("Spot", "Delete")
    assert properties["billingProfile"] == {"maxPrice": 0.2}
    assert properties["storageProfile"]["osDisk"]["diskSizeGB"] == 100
    (interface,) = properties["networkProfile"]["networkInterfaceConfigurations"]
    assert interface["properties"]["enableAcceleratedNetworking"] is True
    assert properties["osProfile"]["linuxConfiguration"]["disablePasswordAuthentication"] is True
    script = base64.b64decode(azure.custom_data[NAME]).decode()
    assert f"lockstep.io/node={NAME},lockstep.io/node-type=t4" in script
    assert "eval 'echo ready'" in script
    assert "/deallocate?" in script


def test_what_is_asked_for_is_what_azures_own_client_knows(azure: AzureManagement) -> None:
    from azure.mgmt.compute.models import VirtualMachine

    machines_of("test", availability_zone="2").create("test-cpu-0-0a1b2c", node_type="cpu")
    (machine,) = azure.machines.values()
    assert machine["zones"] == ["2"]
    image = machine["properties"]["storageProfile"]["imageReference"]
    assert image == {"publisher": "p", "offer": "o", "sku": "s", "version": "latest"}
    own = {key: value for key, value in machine.items() if key not in ("type", "apiVersion")}
    assert unknown_keys(VirtualMachine(own), own) == []


def test_all_of_a_machine_goes_with_it(azure: AzureManagement) -> None:
    machines_of("test").create(NAME, node_type="t4")
    storage, network = (azure.machines[NAME]["properties"][key] for key in ("storageProfile", "networkProfile"))
    assert storage["osDisk"]["deleteOption"] == "Delete"
    assert [each["properties"]["deleteOption"] for each in network["networkInterfaceConfigurations"]] == ["Delete"]


def test_no_token_is_where_azure_shows_it(azure: AzureManagement) -> None:
    machines_of("test").create(NAME, node_type="t4")
    shown = str([azure.machines, azure.deployments])
    for text in (RAY_TOKEN, base64.b64encode(RAY_TOKEN.encode()).decode()[:40], azure.custom_data[NAME]):
        assert text not in shown


def test_two_requests_for_a_machine_make_one_even_where_azure_does_not_show_it_yet(azure: AzureManagement) -> None:
    machines = machines_of("test")
    machines.create(NAME, node_type="t4")
    azure.num_late = 1
    machines.create(NAME, node_type="t4")
    assert azure.num_made == 1
    assert machines.names() == {NAME}


def test_a_machine_that_runs_outlives_a_second_request_that_fails(azure: AzureManagement) -> None:
    machines = machines_of("test")
    machines.create(NAME, node_type="t4")
    azure.num_late = 1
    azure.no_room = {"code": "PropertyChangeNotAllowed", "message": "customData may not be changed"}
    with pytest.raises(EngineError, match="PropertyChangeNotAllowed"):
        machines.create(NAME, node_type="t4")
    azure.finish_deletions()
    assert machines.names() == {NAME}


def test_machines_of_others_are_neither_seen_nor_removed(azure: AzureManagement) -> None:
    mine, other = machines_of("mine"), machines_of("other")
    other.create("other-cpu-0-0a1b2c", node_type="cpu")
    for index in range(3):  # on several pages
        mine.create(f"mine-cpu-{index}-0a1b2c", node_type="cpu")
    azure.machines["desktop"] = {"name": "desktop", "properties": {"provisioningState": "Succeeded"}}
    assert mine.names() == {f"mine-cpu-{index}-0a1b2c" for index in range(3)}
    mine.remove("other-cpu-0-0a1b2c")
    mine.remove("desktop")
    assert other.names() == {"other-cpu-0-0a1b2c"}
    assert "desktop" in azure.machines


def test_looking_is_one_request_however_many_machines_there_are(azure: AzureManagement) -> None:
    machines = machines_of("test")
    for index in range(PAGE_LENGTH):
        machines.create(f"test-cpu-{index}-0a1b2c", node_type="cpu")
    azure.requests.clear()
    assert len(machines.names()) == PAGE_LENGTH
    assert azure.requests == ["GET virtualMachines"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        pytest.param("AllocationFailed", "We do not have sufficient capacity", id="none there"),
        pytest.param("ZonalAllocationFailed", "We do not have sufficient capacity in this zone", id="none in the zone"),
        pytest.param("OverconstrainedAllocationRequest", "Allocation failed", id="none of this kind"),
    ],
)
def test_a_stock_out_is_said_in_azures_words_and_leaves_nothing(
    code: str, message: str, azure: AzureManagement
) -> None:
    machines = machines_of("test")
    azure.no_room = {"code": code, "message": message}
    with pytest.raises(EngineError, match=f"^could not create machine {NAME}: {code}: {message}$"):
        machines.create(NAME, node_type="t4")
    assert machines.names() == frozenset()
    azure.finish_deletions()
    assert not azure.machines


@pytest.mark.parametrize("code", ["QuotaExceeded", "SkuNotAvailable"])
def test_what_azure_refuses_before_it_begins_is_said_in_its_words(code: str, azure: AzureManagement) -> None:
    azure.refusal = {"code": code, "message": "Operation could not be\ncompleted"}
    with pytest.raises(
        EngineError, match=f"^could not create machine {NAME}: {code}: Operation could not be completed$"
    ):
        machines_of("test").create(NAME, node_type="t4")
    assert not azure.deployments


def test_a_machine_that_azure_takes_back_is_gone_while_it_still_goes(azure: AzureManagement) -> None:
    machines = machines_of("test")
    machines.create(NAME, node_type="t4")
    azure.machines[NAME]["properties"]["provisioningState"] = "Deleting"  # evicted, as its policy says
    assert machines.names() == frozenset()
    machines.create("test-cpu-0-0a1b2c", node_type="cpu")
    azure.finish_deletions()
    assert machines.names() == {"test-cpu-0-0a1b2c"}


def test_what_failed_after_it_served_is_kept_until_it_is_removed(azure: AzureManagement) -> None:
    machines = machines_of("test")
    machines.create(NAME, node_type="t4")
    azure.machines[NAME]["properties"]["provisioningState"] = "Failed"
    assert machines.names() == {NAME}
    for _ in range(3):
        machines.remove(NAME)
    assert machines.names() == frozenset()
    assert azure.requests.count("DELETE virtualMachines") == 1


def test_too_many_requests_are_made_again_after_the_pause_that_azure_asks_for(azure: AzureManagement) -> None:
    machines = machines_of("test")
    azure.num_throttled = 2
    machines.create(NAME, node_type="t4")
    azure.num_throttled = 2
    assert machines.names() == {NAME}
    azure.num_throttled = 100
    with pytest.raises(EngineError, match=r"^could not list the machines: TooManyRequests: The request is being throt"):
        machines.names()


def test_whom_azure_does_not_know_is_told_so_in_one_line(
    azure: AzureManagement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Credential, "get_token", lambda *_, **__: AccessToken("stale"))
    with pytest.raises(
        EngineError, match=r"^could not list the machines: AuthenticationFailed: Authentication failed\.$"
    ):
        machines_of("test").names()


def test_neither_ray_nor_azures_library_says_anything_beside(azure: AzureManagement) -> None:
    heard = MemoryHandler(1000)
    loggers = [logging.getLogger(name) for name in ("ray", "azure")]
    for logger in loggers:
        logger.addHandler(heard)
    try:
        machines = machines_of("test")
        machines.create(NAME, node_type="t4")
        azure.refusal = {"code": "QuotaExceeded", "message": "no more"}
        with pytest.raises(EngineError):
            machines.create("test-t4-0-ffffff", node_type="t4")
        machines.remove(NAME)
    finally:
        for logger in loggers:
            logger.removeHandler(heard)
    assert [record.getMessage() for record in heard.buffer] == []
