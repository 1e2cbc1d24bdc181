"""Files for those who keep clusters themselves: Ray's launcher, by its own schema, and the KubeRay operator.

KubeRay's own schema is a megabyte of Kubernetes types; the one here has what KubeRay's API reference says of the keys
that are written, and refuses all others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from typer.testing import CliRunner

from lockstep.cli.cluster import app
from lockstep.clusters.machines.clouds.azure import NODE_KEYS
from lockstep.errors import ConfigError

NODE_TYPES: dict[str, Any] = {
    "cpu": {"machineType": "n1-standard-4", "maxNodes": 3, "minNodes": 1},
    "v100x2": {
        "machineType": "n1-standard-8",
        "acceleratorConfig": {"type": "NVIDIA_TESLA_V100", "count": 2},
        "maxNodes": 4,
        "spot": True,
    },
}
AWS = {"type": "aws", "settings": {"region": "us-east-1"}}
GCP = {"type": "gcp", "settings": {"project_id": "p", "availability_zone": "us-central1-a"}}
_AT = "/subscriptions/s/resourceGroups/lab/providers"
AZURE = {
    "type": "azure",
    "settings": {
        "subscription_id": "s",
        "resource_group": "lab-nodes",
        "location": "westeurope",
        "subnet": f"{_AT}/Microsoft.Network/virtualNetworks/lab/subnets/nodes",
        "nsg": f"{_AT}/Microsoft.Network/networkSecurityGroups/nodes",
        "msi": f"{_AT}/Microsoft.ManagedIdentity/userAssignedIdentities/node",
    },
}
AZURE_NODE = {"imageId": f"{_AT}/Microsoft.Compute/images/lockstep", "vmSize": "Standard_D8s_v5"}
KUBERNETES = {"type": "kubernetes", "settings": {"namespace": "training", "image": "registry.example.com/lockstep:1"}}
AWS_NODE = {"ImageId": "ami-1", "SubnetIds": ["subnet-1"], "InstanceType": "m5.2xlarge"}
GCP_NODE = {"disks": [{"boot": True, "initializeParams": {"sourceImage": "projects/p/global/images/lockstep"}}]}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "object", "additionalProperties": TEXT}
COUNT = {"type": "integer", "minimum": 0}
CONTAINER = _object(
    "name",
    "image",
    name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
    image=TEXT,
    env={"type": "array", "items": _object("name", name=TEXT, value={"type": "string"})},
    resources=_object(requests=TEXTS, limits=TEXTS),
    volumeMounts={
        "type": "array",
        "items": _object("name", "mountPath", name=TEXT, mountPath=TEXT, readOnly={"type": "boolean"}),
    },
)
VOLUME = _object(
    "name",
    name=TEXT,
    secret=_object("secretName", secretName=TEXT, defaultMode={"type": "integer", "minimum": 0, "maximum": 0o777}),
    emptyDir=_object(medium={"enum": ["", "Memory"]}),
)
TEMPLATE = _object(
    "spec",
    metadata=_object(labels=TEXTS),
    spec=_object(
        "containers",
        automountServiceAccountToken={"type": "boolean"},
        containers={"type": "array", "minItems": 1, "items": CONTAINER},
        nodeSelector=TEXTS,
        securityContext=_object(fsGroup={"type": "integer"}),
        volumes={"type": "array", "items": VOLUME},
    ),
)
PARAMETERS = {**TEXTS, "not": {"required": ["labels"]}}  # which KubeRay refuses there
GROUP = _object(
    *("groupName", "maxReplicas", "minReplicas", "template"),
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    rayStartParams=PARAMETERS,
    template=TEMPLATE,
)
RAY_CLUSTER = _object(
    *("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=_object("name", name={"type": "string", "maxLength": 63}, namespace=TEXT, labels=TEXTS),
    spec=_object(
        "headGroupSpec",
        rayVersion=TEXT,
        headGroupSpec=_object("template", rayStartParams=PARAMETERS, template=TEMPLATE),
        workerGroupSpecs={"type": "array", "items": GROUP},
    ),
)


def generate(
    folder: Path, provider: dict[str, Any], *, node: dict[str, Any], flags: tuple[str, ...] = (), **changes: Any
) -> dict[str, Any]:
    types = {name: {**kind, "nodeConfig": node} for name, kind in NODE_TYPES.items()}
    document = {"name": "lab", "provider": provider, "headAddress": "10.0.0.5", "nodeTypes": types, **changes}
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["generate", str(file), *flags], catch_exceptions=True)
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return yaml.safe_load(result.stdout)


@pytest.mark.parametrize(
    ("provider", "node"),
    [
        pytest.param(AWS, AWS_NODE, id="aws"),
        pytest.param(AZURE, AZURE_NODE, id="azure"),
        pytest.param(GCP, GCP_NODE, id="gcp"),
    ],
)
def test_ray_takes_what_is_written_for_it(provider: dict[str, Any], node: dict[str, Any], tmp_path: Path) -> None:
    document = generate(tmp_path, provider, node=node, setupCommands=["pip install lockstep-train"])
    validate_config(document)
    assert prepare_config(document)["head_node_type"] == "lockstep.head"  # what `ray up` makes of it
    types = document["available_node_types"]
    assert list(types) == ["lockstep.head", "cpu", "v100x2"]
    assert types["lockstep.head"]["resources"] == {"CPU": 0}
    assert types["v100x2"]["resources"] == {"CPU": 8, "GPU": 2, "accelerator_type:V100": 1}
    assert (types["cpu"]["min_workers"], types["cpu"]["max_workers"], document["max_workers"]) == (1, 3, 7)
    spot = {"SPOT", "Spot", "spot"}
    assert [bool(spot & set(str(kind["node_config"]).replace("'", " ").split())) for kind in types.values()] == [
        *(False, False, True)
    ]


def test_rays_template_of_azures_machines_has_what_is_written_for_it(tmp_path: Path) -> None:
    file = Path(ray.__file__).parent / "autoscaler/_private/_azure/azure-vm-template.json"
    parameters = json.loads(file.read_text())["parameters"].keys()
    assert parameters >= NODE_KEYS
    for kind in generate(tmp_path, AZURE, node=AZURE_NODE)["available_node_types"].values():
        assert parameters >= kind["node_config"]["azure_arm_parameters"].keys()


def test_what_is_written_for_kuberay_is_a_ray_cluster(tmp_path: Path) -> None:
    node = {"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-tesla-v100"}}
    document = generate(tmp_path, KUBERNETES, node=node)
    jsonschema.validate(document, RAY_CLUSTER)
    spec = document["spec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    assert [groups["cpu"][key] for key in ("minReplicas", "replicas", "maxReplicas")] == [1, 1, 3]
    pod = groups["v100x2"]["template"]["spec"]
    assert pod["nodeSelector"] == node["nodeSelector"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "30720Mi", "nvidia.com/gpu": "2"}
    mounted = {volume["name"]: volume for volume in pod["volumes"]}["ray-token"]["secret"]
    assert mounted == {"secretName": "lab-ray-token", "defaultMode": 0o440}


@pytest.mark.parametrize(
    ("provider", "flags", "changes", "words"),
    [
        pytest.param(KUBERNETES, ("--format", "ray"), {}, "allowed: kuberay for a cluster of kubernetes", id="pods"),
        pytest.param(AWS, ("--format", "kuberay"), {}, "allowed: ray for a cluster of aws", id="no pods"),
        pytest.param({"type": "local"}, (), {}, r"provider\.type; received 'local'", id="local"),
        pytest.param({"type": "kubernetes"}, (), {}, "settings.image is missing", id="no image"),
        pytest.param(KUBERNETES, (), {"setupCommands": ["x"]}, "not support setupCommands", id="set up"),
    ],
)
def test_what_cannot_be_written_is_named(
    provider: dict[str, Any], flags: tuple[str, ...], changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        generate(tmp_path, provider, node={}, flags=flags, **changes)
