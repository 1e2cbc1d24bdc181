"""What Azure is asked for a machine, and what is made of its errors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, final

import pytest
from tests.clusters.machines.azure_management import evaluated

from lockstep.clusters.machines.clouds.azure_deployment import deployment
from lockstep.clusters.machines.ray_provider import error_message

VALUES: dict[str, Any] = {
    "vmName": "lab-cpu-0-0a1b2c",
    "vmSize": "Standard_D8s_v5",
    "vmTags": {"team": "[vision]"},
    "location": "westeurope",
    "subnet": "/subnets/nodes",
    "nsg": "/nsg",
    "msi": "/node",
    "imageId": "[resourceGroup().id]",
    "adminUsername": "lockstep",
    "publicKey": "ssh-rsa AAAA",
    "customData": "IyEvYmluL2Jhc2g=",
}


def test_what_is_no_machine_s_is_left_out_and_what_is_secret_is_marked() -> None:
    asked = deployment({**VALUES, "vmCount": 1, "zones": [], "provisionPublicIp": False})
    assert asked["mode"] == "Incremental"  # what else there is in the resource group stays
    assert asked["parameters"].keys() == asked["template"]["parameters"].keys() == VALUES.keys()
    assert asked["template"]["parameters"]["customData"] == {"type": "securestring"}


def test_no_value_is_evaluated_as_an_expression() -> None:
    asked = deployment(VALUES)
    assert "vision" not in json.dumps(asked["template"])
    assert "resourceGroup" not in json.dumps(asked["template"])
    (machine,) = evaluated(asked["template"]["resources"], VALUES)
    assert machine["tags"] == {"team": "[vision]"}
    assert machine["properties"]["storageProfile"]["imageReference"] == {"id": "[resourceGroup().id]"}


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        pytest.param({}, set(), id="regular"),
        pytest.param({"priority": "Spot", "evictionPolicy": "Delete"}, {"priority", "evictionPolicy"}, id="spot"),
        pytest.param({"billingProfile": {"maxPrice": 0.1}}, {"billingProfile"}, id="with a price"),
    ],
)
def test_a_machine_has_what_was_said_of_it_and_nothing_empty(more: dict[str, Any], keys: set[str]) -> None:
    (machine,) = deployment({**VALUES, **more})["template"]["resources"]
    others = {"hardwareProfile", "storageProfile", "networkProfile", "osProfile"}
    assert machine["properties"].keys() - others == keys
    assert "zones" not in machine
    assert "diskSizeGB" not in machine["properties"]["storageProfile"]["osDisk"]


@final
@dataclass(frozen=True, kw_only=True)
class Told:
    """As Azure's library has an error that Azure sent."""

    code: str
    message: str
    details: list[Told] = field(default_factory=list)


@final
class AzureError(Exception):
    """As Azure's library raises it."""

    def __init__(self, error: Told | None) -> None:
        super().__init__("(Outer) many words")
        self.error = error


INNER = Told(code="SkuNotAvailable", message="The requested size\nis not available")
WRAPPED = json.dumps({"status": "Failed", "error": {"code": "X", "details": [{"code": "A", "message": "1"}]}})


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(INNER, "SkuNotAvailable: The requested size is not available", id="plain"),
        pytest.param(
            Told(code="Invalid", message="see", details=[INNER, Told(code="B", message="2")]),
            "SkuNotAvailable: The requested size is not available; B: 2",
            id="details",
        ),
        pytest.param(Told(code="Conflict", message=WRAPPED), "A: 1", id="in a message"),
        pytest.param(Told(code="Odd", message="[1]"), "Odd: [1]", id="a message that happens to be JSON"),
        pytest.param(None, "AzureError: (Outer) many words", id="no answer of Azure's"),
    ],
)
def test_what_azure_says_is_what_is_innermost(error: Told | None, words: str) -> None:
    assert error_message(AzureError(error), secret="the token") == words
