"""What clouds have to be told, and what is derived of a node type."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.clusters.machines.registry import check_machines
from lockstep.errors import ConfigError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import parse_cluster

AWS: dict[str, Any] = {"type": "aws", "settings": {"region": "us-east-1"}}
AWS_NODE: dict[str, Any] = {"ImageId": "ami-1", "SubnetIds": ["subnet-1"]}
GCP: dict[str, Any] = {"type": "gcp", "settings": {"project_id": "p", "availability_zone": "us-central1-a"}}
GCP_NODE: dict[str, Any] = {"sourceInstanceTemplate": "global/instanceTemplates/worker"}

_AT = "/subscriptions/s/resourceGroups/lab/providers"
AZURE_SETTINGS: dict[str, Any] = {
    "subscription_id": "s",
    "resource_group": "lab-nodes",
    "location": "westeurope",
    "subnet": f"{_AT}/Microsoft.Network/virtualNetworks/lab/subnets/nodes",
    "nsg": f"{_AT}/Microsoft.Network/networkSecurityGroups/nodes",
    "msi": f"{_AT}/Microsoft.ManagedIdentity/userAssignedIdentities/node",
}
AZURE: dict[str, Any] = {"type": "azure", "settings": AZURE_SETTINGS}
AZURE_NODE: dict[str, Any] = {"imageId": f"{_AT}/Microsoft.Compute/images/lockstep"}


def azure(**settings: Any) -> dict[str, Any]:
    return {"type": "azure", "settings": {**AZURE_SETTINGS, **settings}}


def check(provider: dict[str, Any], *, node: dict[str, Any], **kind: Any) -> None:
    types = {"one": {"machineType": "n1-standard-4", "maxNodes": 2, "nodeConfig": node, **kind}}
    document = {"name": "lab", "provider": provider, "headAddress": "10.0.0.5", "nodeTypes": types}
    definition = parse_cluster(document, source="cluster.yaml", catalogue=load_catalogue())
    check_machines(definition, catalogue=load_catalogue())


def v100s(count: int) -> dict[str, Any]:
    return {"acceleratorConfig": {"type": "NVIDIA_TESLA_V100", "count": count}}


@pytest.mark.parametrize(
    ("provider", "node", "kind"),
    [
        pytest.param(AWS, AWS_NODE, {}, id="aws"),
        pytest.param(AWS, {**AWS_NODE, "InstanceType": "p3.8xlarge"}, v100s(4), id="aws, its own type"),
        pytest.param(AWS, AWS_NODE, {"machineType": "a2-highgpu-8g"}, id="aws, accelerators that come with it"),
        pytest.param(AZURE, AZURE_NODE, {}, id="azure"),
        pytest.param(AZURE, {**AZURE_NODE, "vmSize": "Standard_NC24s_v3"}, v100s(4), id="azure, its own size"),
        pytest.param(
            azure(availability_zone="3"),
            {"imagePublisher": "p", "imageOffer": "o", "imageSku": "s", "imageVersion": "latest"},
            {"machineType": "a2-highgpu-8g", "spot": True},
            id="azure, accelerators that come with it, of the market, in a zone",
        ),
        pytest.param(GCP, GCP_NODE, {}, id="gcp"),
        pytest.param(GCP, GCP_NODE, {"machineType": "a2-highgpu-1g", "spot": True}, id="gcp, accelerators"),
    ],
)
def test_what_is_enough(provider: dict[str, Any], node: dict[str, Any], kind: dict[str, Any]) -> None:
    check(provider, node=node, **kind)


@pytest.mark.parametrize(
    ("provider", "node", "kind", "words"),
    [
        pytest.param({"type": "aws"}, AWS_NODE, {}, r"provider\.settings\.region", id="no region"),
        pytest.param(
            {"type": "aws", "settings": {"region": "us-east-1", "zone": "a"}},
            AWS_NODE,
            {},
            r"zone is not",
            id="unknown",
        ),
        pytest.param(
            {"type": "aws", "settings": {"region": "us-east-1", "tags": {"ray-node-name": "x"}}},
            *(AWS_NODE, {}, r"settings\.tags"),
            id="our tags",
        ),
        pytest.param(AWS, {"SubnetIds": ["subnet-1"]}, {}, "ImageId is missing", id="no image"),
        pytest.param(AWS, {"ImageId": "ami-1"}, {}, "SubnetIds is missing", id="no subnet"),
        pytest.param(AWS, AWS_NODE, v100s(2), "InstanceType is missing", id="no such instance type"),
        pytest.param(AWS, {**AWS_NODE, "UserData": "x"}, {}, "UserData is set by Lockstep", id="our start-up"),
        pytest.param(AWS, AWS_NODE, {"region": "us-west-2"}, r"one\.region", id="another region"),
        pytest.param(azure(msi=""), AZURE_NODE, {}, r"provider\.settings\.msi", id="no identity"),
        pytest.param(azure(nsg="nodes"), AZURE_NODE, {}, r"nsg; received 'nodes'; allowed: its id", id="no id"),
        pytest.param(azure(subnet=AZURE_SETTINGS["nsg"]), AZURE_NODE, {}, r"settings\.subnet", id="another id"),
        pytest.param(azure(availability_zone="1,2"), AZURE_NODE, {}, "one zone", id="two zones"),
        pytest.param(AZURE, {}, {}, "imageId is missing", id="no image, azure"),
        pytest.param(AZURE, {"imageOffer": "o"}, {}, "imagePublisher", id="part of an image"),
        pytest.param(AZURE, AZURE_NODE, v100s(2), "vmSize is missing", id="no such size"),
        pytest.param(AZURE, {**AZURE_NODE, "vmsize": "x"}, {}, "did you mean 'vmSize'", id="unknown, azure"),
        pytest.param(AZURE, {**AZURE_NODE, "customData": "x"}, {}, "is set by Lockstep", id="our start-up, azure"),
        pytest.param(AZURE, {**AZURE_NODE, "evictionPolicy": "Deallocate"}, {}, "see .*spot", id="our eviction"),
        pytest.param(AZURE, AZURE_NODE, {"region": "us-west-2"}, r"one\.region", id="another region, azure"),
        pytest.param({"type": "gcp", "settings": {"project_id": "p"}}, GCP_NODE, {}, "availability_zone", id="no zone"),
        pytest.param(GCP, {}, {}, "disks is missing", id="no disks"),
        pytest.param(GCP, GCP_NODE, {"maxNodes": 501}, "at most 500", id="more than one page"),
        pytest.param(GCP, GCP_NODE, {"machineType": "complex_model_m"}, "Compute Engine", id="a legacy machine"),
        pytest.param(
            GCP,
            {**GCP_NODE, "metadata": {"items": [{"key": "startup-script", "value": "x"}]}},
            *({}, "startup-script"),
            id="its own start-up",
        ),
    ],
)
def test_what_is_missing_or_not_known_is_named(
    provider: dict[str, Any], node: dict[str, Any], kind: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check(provider, node=node, **kind)
