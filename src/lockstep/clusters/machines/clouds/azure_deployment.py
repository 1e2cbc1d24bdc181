"""Builds the Azure deployment of one virtual machine that runs a script at startup.

Ray's own template has no parameter for a script. It also makes the network interface a separate resource, which
remains, with an address of the subnet, if Azure has no capacity for the machine. Here the network interface and the
disk are part of the machine, and are deleted with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

API_VERSION: Final = "2024-07-01"
"""The API version of Microsoft.Compute, the same as in Ray's template."""

_TYPES: Final[Mapping[str, str]] = {
    "vmName": "string",
    "vmSize": "string",
    "vmTags": "object",
    "location": "string",
    "zone": "string",
    "subnet": "string",
    "nsg": "string",
    "msi": "string",
    "imageId": "string",
    "imagePublisher": "string",
    "imageOffer": "string",
    "imageSku": "string",
    "imageVersion": "string",
    "osDiskSize": "int",
    "adminUsername": "string",
    "publicKey": "string",
    "customData": "securestring",  # contains the engine's token; Azure does not store secure values
    "enableAcceleratedNetworking": "bool",
    "priority": "string",
    "evictionPolicy": "string",
    "billingProfile": "object",
}


def deployment(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the properties of a deployment of one machine.

    Every value is a parameter of the template, never a part of it, because text that begins with a bracket would be
    evaluated.

    Args:
        values: the parameters that Ray gives to its own template, and our additional ones. Parameters that are not
            about a machine are ignored.
    """
    known = {name: value for name, value in values.items() if name in _TYPES}
    return {
        "mode": "Incremental",
        "template": {
            "$schema": "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#",
            "contentVersion": "1.0.0.0",
            "parameters": {name: {"type": _TYPES[name]} for name in known},
            "resources": [_machine(known)],
        },
        "parameters": {name: {"value": value} for name, value in known.items()},
    }


def _machine(values: Mapping[str, Any]) -> dict[str, Any]:
    value = {name: f"[parameters('{name}')]" for name in values}
    properties: dict[str, Any] = {
        "hardwareProfile": {"vmSize": value["vmSize"]},
        "storageProfile": {"imageReference": _image(value), "osDisk": _disk(value)},
        "networkProfile": _network(value),
        "osProfile": {
            "computerName": value["vmName"],
            "adminUsername": value["adminUsername"],
            "customData": value["customData"],
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {
                    "publicKeys": [
                        {
                            "path": f"/home/{values['adminUsername']}/.ssh/authorized_keys",
                            "keyData": value["publicKey"],
                        }
                    ]
                },
            },
        },
        **{name: value[name] for name in ("priority", "evictionPolicy", "billingProfile") if name in value},
    }
    zones = {"zones": [value["zone"]]} if "zone" in value else {}
    return {
        "type": "Microsoft.Compute/virtualMachines",
        "apiVersion": API_VERSION,
        "name": value["vmName"],
        "location": value["location"],
        "tags": value["vmTags"],
        **zones,
        "identity": {"type": "UserAssigned", "userAssignedIdentities": {value["msi"]: {}}},
        "properties": properties,
    }


def _image(value: Mapping[str, str]) -> dict[str, str]:
    if "imageId" in value:
        return {"id": value["imageId"]}
    return {
        "publisher": value["imagePublisher"],
        "offer": value["imageOffer"],
        "sku": value["imageSku"],
        "version": value["imageVersion"],
    }


def _disk(value: Mapping[str, str]) -> dict[str, Any]:
    size = {"diskSizeGB": value["osDiskSize"]} if "osDiskSize" in value else {}
    return {
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "managedDisk": {"storageAccountType": "StandardSSD_LRS"},
        **size,
    }


def _network(value: Mapping[str, str]) -> dict[str, Any]:
    fast = "enableAcceleratedNetworking"
    interface: dict[str, Any] = {
        "primary": True,
        "deleteOption": "Delete",
        "networkSecurityGroup": {"id": value["nsg"]},
        "ipConfigurations": [{"name": "inside", "properties": {"primary": True, "subnet": {"id": value["subnet"]}}}],
        **({fast: value[fast]} if fast in value else {}),
    }
    return {
        "networkApiVersion": "2022-11-01",
        "networkInterfaceConfigurations": [{"name": "inside", "properties": interface}],
    }
