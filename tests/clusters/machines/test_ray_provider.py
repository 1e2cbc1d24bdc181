"""Machines of a cloud: what is made of its errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import pytest
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.node_provider import NodeProvider
from typing_extensions import override

from lockstep.clusters.machines import AbstractMachines
from lockstep.clusters.machines.clouds import AbstractCloud
from lockstep.clusters.machines.ray_provider import MAX_MESSAGE_CHARS, RayProviderMachines, error_message
from lockstep.errors import EngineError, InvalidInputError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import parse_cluster
from lockstep.testing.machines import AbstractMachinesConformance

TOKEN = "0123456789abcdef" * 4


@final
class ListProvider(NodeProvider):
    """A client of Ray's whose cloud is a mapping."""

    def __init__(self, nodes: dict[str, dict[str, str]]) -> None:
        super().__init__({}, "test")
        self._nodes = nodes

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        return [node for node, tags in self._nodes.items() if tag_filters.items() <= tags.items()]

    def node_tags(self, node_id: str) -> dict[str, str]:
        return self._nodes[node_id]

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        self._nodes[f"i-{len(self._nodes)}"] = tags

    def terminate_node(self, node_id: str) -> None:
        del self._nodes[node_id]


@final
class ListCloud(AbstractCloud):
    """A cloud that is a mapping; `faults` are what is raised when it is opened next."""

    extra = "list"

    def __init__(self, *, faults: list[Exception]) -> None:
        types = {"cpu": {"machineType": "n1-standard-4", "maxNodes": 2}}
        document = {"name": "test", "provider": {"type": "aws"}, "headAddress": "10.0.0.5", "nodeTypes": types}
        super().__init__(
            parse_cluster(document, source="cluster.yaml", catalogue=load_catalogue()), catalogue=load_catalogue()
        )
        self.faults = faults
        self.nodes: dict[str, dict[str, str]] = {}

    @override
    def provider_config(self) -> dict[str, Any]:
        return {}

    @override
    def node_config(self, node_type: str) -> dict[str, Any]:
        return {}

    @override
    def named(self, config: Mapping[str, Any], *, name: str, script: str) -> dict[str, Any]:
        return {"script": script}

    @override
    def open(self) -> NodeProvider:
        if self.faults:
            raise self.faults.pop()
        return ListProvider(self.nodes)

    @override
    def stopped(self, provider: NodeProvider) -> list[str]:
        return []


def machines_of(cloud: ListCloud) -> RayProviderMachines:
    return RayProviderMachines(cloud, token=TOKEN, head_address=lambda: "10.0.0.5:6379")


class TestRayProvider(AbstractMachinesConformance):
    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self._machines = machines_of(ListCloud(faults=[]))

    def machines(self) -> AbstractMachines:
        return self._machines


def test_what_is_raised_is_said_in_one_line_without_the_token_and_the_next_request_is_made_anew() -> None:
    cloud = ListCloud(faults=[RuntimeError(f"no way\nwith {TOKEN}")])
    machines = machines_of(cloud)
    with pytest.raises(EngineError, match=r"^could not list the machines: RuntimeError: no way with \*\*\*$"):
        machines.names()
    assert machines.names() == frozenset()


def test_words_that_are_cut_show_no_part_of_the_token() -> None:
    machines = machines_of(ListCloud(faults=[RuntimeError("x" * (MAX_MESSAGE_CHARS - 40) + TOKEN)]))
    with pytest.raises(EngineError) as caught:
        machines.names()
    assert TOKEN[:8] not in str(caught.value)


def test_a_library_that_is_not_installed_is_named_with_the_extra_that_has_it() -> None:
    machines = machines_of(ListCloud(faults=[ModuleNotFoundError("No module named 'boto3'", name="boto3")]))
    with pytest.raises(InvalidInputError, match=r"not installed: boto3; run: pip install 'lockstep-train\[list\]'"):
        machines.names()


def test_machines_that_are_not_lockstep_s_are_not_seen() -> None:
    cloud = ListCloud(faults=[])
    cloud.nodes["i-7"] = {"ray-cluster-name": "test"}
    assert machines_of(cloud).names() == frozenset()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(
            NodeLaunchException("InsufficientInstanceCapacity", "We currently do not\nhave enough", None),
            "InsufficientInstanceCapacity: We currently do not have enough",
            id="aws",
        ),
        pytest.param(
            Exception({"errors": [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "try later"}]}),
            "ZONE_RESOURCE_POOL_EXHAUSTED: try later",
            id="gcp",
        ),
        pytest.param(ValueError("x" * 999), f"ValueError: {'x' * (MAX_MESSAGE_CHARS - 13)}…", id="long"),
    ],
)
def test_words_of_errors(error: Exception, words: str) -> None:
    assert error_message(error, secret=TOKEN) == words
