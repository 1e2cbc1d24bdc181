"""Reading ``cluster.yaml``, and which nodes hold which replica."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from lockstep.errors import ConfigError
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import ClusterDefinition, parse_cluster

CATALOGUE = load_catalogue()
V100S = AcceleratorConfig(type=AcceleratorType("NVIDIA_TESLA_V100"), count=2)


def read(**changes: Any) -> ClusterDefinition:
    document = {
        "name": "lab",
        "provider": {"type": "local"},
        "nodeTypes": {
            "cpu": {"machineType": "n1-standard-4", "maxNodes": 2},
            "big": {"machineType": "n1-standard-16", "maxNodes": 1, "minNodes": 1, "region": "us-east1"},
            "gpu": {
                "machineType": "n1-standard-8",
                "acceleratorConfig": {"type": "NVIDIA_TESLA_V100", "count": 2},
                "maxNodes": 3,
                "spot": True,
                "usdPerHour": "2.10",
            },
        },
        **changes,
    }
    return parse_cluster(document, source="cluster.yaml", catalogue=CATALOGUE)


def test_a_definition_is_read_and_written() -> None:
    lab = read()
    assert lab.node_types["gpu"].usd_per_hour == Decimal("2.10")
    assert (lab.idle_timeout_s, lab.join_timeout_s, lab.retry_after_s) == (300.0, 600.0, 60.0)
    assert parse_cluster(lab.to_json(), source="again", catalogue=CATALOGUE) == lab


def test_places_are_named_by_type_and_number() -> None:
    lab = read()
    assert [slot for slot, _ in lab.slots()] == ["cpu-0", "cpu-1", "big-0", "gpu-0", "gpu-1", "gpu-2"]
    assert list(lab.kept_slots()) == ["big-0"]
    specs = {spec.name: spec for spec in lab.specs(CATALOGUE, up=frozenset({"gpu-1"}))}
    assert [name for name, spec in specs.items() if spec.is_up] == ["gpu-1"]
    assert dict(specs["gpu-0"].resources) == {"NVIDIA_TESLA_V100": 2, "vcpus": 8, "memory_mib": 30 * 1024}


@pytest.mark.parametrize(
    ("machine", "accelerator", "region", "types"),
    [
        pytest.param("n1-standard-4", None, None, ("cpu",), id="its own machine"),
        pytest.param("n1-standard-8", None, None, ("big", "gpu"), id="whatever is large enough"),
        pytest.param("n1-standard-8", V100S, None, ("gpu",), id="with accelerators"),
        pytest.param("n1-standard-16", None, "europe-west4", (), id="in no region that it is in"),
        pytest.param("n1-standard-4", None, "europe-west4", ("cpu",), id="a type that is anywhere"),
        pytest.param("n1-standard-32", None, None, (), id="too large"),
    ],
)
def test_which_node_types_hold_a_replica(
    machine: str, accelerator: AcceleratorConfig | None, region: str | None, types: tuple[str, ...]
) -> None:
    assert read().types_for(machine, accelerator=accelerator, region=region, catalogue=CATALOGUE) == types


CPU = {"machineType": "n1-standard-4", "maxNodes": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"name": "Lab_1"}, "cluster.yaml: name", id="name"),
        pytest.param({"nodeTypes": {}}, "cluster.yaml: nodeTypes", id="no node types"),
        pytest.param({"nodeTypes": {"cpu": {**CPU, "machineType": "n1-standart-4"}}}, "n1-standard-4", id="machine"),
        pytest.param({"nodeTypes": {"cpu": {**CPU, "minNodes": 3}}}, "at most maxNodes, 2", id="more kept than had"),
        pytest.param({"nodeTypes": {"cpu": {**CPU, "usdPerHour": 0.19}}}, "US dollars in quotes", id="price"),
        pytest.param({"nodeTypes": {"cpu": {**CPU, "max": 2}}}, "unknown key nodeTypes.cpu.max", id="unknown key"),
        pytest.param({"provider": {"type": "gcp"}}, "headAddress is missing", id="where its nodes find the head"),
        pytest.param({"provider": {"type": "ovh"}}, "local, gcp, aws, azure, kubernetes", id="provider"),
        pytest.param({"idleTimeout": 300}, "seconds with an", id="duration"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
