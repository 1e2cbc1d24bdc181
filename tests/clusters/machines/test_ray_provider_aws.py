"""Machines of AWS: Ray's own client, against a server that acts as EC2."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from ray.autoscaler._private.aws import utils

from lockstep.clusters.machines import AbstractMachines
from lockstep.clusters.machines.clouds import open_cloud
from lockstep.clusters.machines.clouds.aws import INSTANCES
from lockstep.clusters.machines.ray_provider import RayProviderMachines
from lockstep.errors import EngineError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import ClusterDefinition, parse_cluster
from lockstep.testing.machines import AbstractMachinesConformance

TOKEN = "0123456789abcdef" * 4
REGION = "us-east-1"

pytestmark = pytest.mark.heavy  # the server takes 15 s to come up


@pytest.fixture(scope="module", autouse=True)
def _ec2() -> Iterator[None]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "no secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
    server.stop()


@pytest.fixture(scope="module")
def ec2(_ec2: None) -> Any:
    return boto3.client("ec2", region_name=REGION)


@pytest.fixture(scope="module")
def image(ec2: Any) -> str:
    return ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]


@pytest.fixture(scope="module")
def subnet(ec2: Any) -> str:
    return ec2.describe_subnets()["Subnets"][0]["SubnetId"]


def machines_of(name: str, *, image: str, subnet: str, **changes: Any) -> RayProviderMachines:
    node = {"ImageId": image, "SubnetIds": [subnet]}
    types = {
        "cpu": {"machineType": "n1-standard-4", "maxNodes": 2, "nodeConfig": node},
        "spot": {"machineType": "n1-standard-8", "maxNodes": 2, "nodeConfig": node, "spot": True},
        "odd": {"machineType": "n1-standard-8", "maxNodes": 2, "nodeConfig": {**node, "SubnetIds": ["subnet-none"]}},
    }
    document = {
        "name": name,
        "provider": {"type": "aws", "settings": {"region": REGION, "tags": {"team": "vision"}}},
        "headAddress": "10.0.0.5",
        "setupCommands": ["echo ready"],
        "nodeTypes": types,
        **changes,
    }
    definition: ClusterDefinition = parse_cluster(document, source="cluster.yaml", catalogue=load_catalogue())
    cloud = open_cloud(definition, catalogue=load_catalogue())
    return RayProviderMachines(cloud, token=TOKEN, head_address=lambda: "10.0.0.5:6379")


def instances(ec2: Any, name: str) -> list[dict[str, Any]]:
    found = ec2.describe_instances(Filters=[{"Name": "tag:lockstep-machine", "Values": [name]}])
    return [instance for reservation in found["Reservations"] for instance in reservation["Instances"]]


class TestAws(AbstractMachinesConformance):
    @pytest.fixture(autouse=True)
    def _made(self, image: str, subnet: str) -> None:
        self._machines = machines_of("test", image=image, subnet=subnet)

    def machines(self) -> AbstractMachines:
        return self._machines


def test_a_machine_is_what_its_type_says_and_starts_a_node(ec2: Any, image: str, subnet: str) -> None:
    machines = machines_of("told", image=image, subnet=subnet)
    name = "told-spot-0-0a1b2c"
    machines.create(name, node_type="spot")
    (instance,) = instances(ec2, name)
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert tags["team"] == "vision"
    assert (tags["Name"], tags["ray-cluster-name"]) == (name, "told")
    assert (instance["InstanceType"], instance["InstanceLifecycle"]) == ("m5.2xlarge", "spot")
    asked = {"InstanceId": instance["InstanceId"]}
    data = ec2.describe_instance_attribute(Attribute="userData", **asked)["UserData"]["Value"]
    script = base64.b64decode(data).decode()
    assert f"lockstep.io/node={name},lockstep.io/node-type=spot" in script
    assert "eval 'echo ready'" in script
    behaviour = ec2.describe_instance_attribute(Attribute="instanceInitiatedShutdownBehavior", **asked)
    assert behaviour["InstanceInitiatedShutdownBehavior"] == {"Value": "terminate"}
    machines.remove(name)
    assert instances(ec2, name)[0]["State"]["Name"] == "terminated"


def test_all_machines_of_a_name_are_removed_and_none_of_others(ec2: Any, image: str, subnet: str) -> None:
    mine, other = (machines_of(name, image=image, subnet=subnet) for name in ("mine", "other"))
    mine.create("mine-cpu-0-0a1b2c", node_type="cpu")
    other.create("other-cpu-0-0a1b2c", node_type="cpu")
    (first,) = instances(ec2, "mine-cpu-0-0a1b2c")
    ec2.run_instances(  # as when a request was answered by nothing, and made again
        ImageId=image,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": first["Tags"]}],
    )
    assert mine.names() == {"mine-cpu-0-0a1b2c"}
    mine.remove("mine-cpu-0-0a1b2c")
    assert mine.names() == frozenset()
    assert {instance["State"]["Name"] for instance in instances(ec2, "mine-cpu-0-0a1b2c")} == {"terminated"}
    mine.remove("other-cpu-0-0a1b2c")
    assert other.names() == {"other-cpu-0-0a1b2c"}
    other.remove("other-cpu-0-0a1b2c")


def test_a_refusal_is_said_in_the_clouds_words(image: str, subnet: str) -> None:
    machines = machines_of("test", image=image, subnet=subnet)
    name = "test-odd-0-0a1b2c"
    with pytest.raises(EngineError, match=f"^could not create machine {name}: InvalidSubnetID.NotFound: .*subnet-none"):
        machines.create(name, node_type="odd")


def test_looking_says_nothing_on_the_output(image: str, subnet: str, capsys: pytest.CaptureFixture[str]) -> None:
    utils.resource_cache.cache_clear()  # Ray would tell of each client that it makes
    machines_of("quiet", image=image, subnet=subnet).names()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", list(INSTANCES))
def test_instance_types_have_what_the_table_says(name: str, ec2: Any) -> None:
    size = INSTANCES[name]
    (found,) = ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"]
    assert found["VCpuInfo"]["DefaultVCpus"] == size.vcpus
    assert found["MemoryInfo"]["SizeInMiB"] == size.memory_gib * 1024
    gpus = [(gpu["Name"], gpu["Count"]) for gpu in found.get("GpuInfo", {}).get("Gpus", [])]
    kind = None if size.accelerator is None else size.accelerator.value.rpartition("_")[2]
    assert gpus == ([] if kind is None else [(kind, size.num_accelerators)])
