"""Ray's client of Azure, with what it lacks. Needs the extra ``azure``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self, final

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.polling import LROPoller
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.compute.models import VirtualMachine
from azure.mgmt.resource import ResourceManagementClient
from ray.autoscaler._private._azure.node_provider import AzureNodeProvider
from ray.autoscaler._private.constants import AUTOSCALER_NODE_START_WAIT_S
from ray.autoscaler.tags import TAG_RAY_CLUSTER_NAME
from typing_extensions import override

from lockstep.clusters.machines.clouds.azure_deployment import deployment
from lockstep.clusters.machines.clouds.base import MACHINE_TAG

POLL_INTERVAL_S: Final = 5
"""Pause between two looks at what Azure is doing; its library's own, 30 s, would let a stock-out wait as long."""

for _name in ("azure", "ray.autoscaler._private._azure"):  # they tell of each client that is made; errors are raised
    logging.getLogger(_name).setLevel(logging.ERROR)


@final
class AzureProvider(AzureNodeProvider):
    """Ray's client of Azure.

    What is another way here, and why:

    - Machines are deployed by a template of ours (`azure_deployment`), under the ledger's name: asked for twice, there
      is one.
    - To list them is one request. Ray asks twice more for each machine in the resource group, other people's too, of
      which Azure allows 12 in a minute.
    - To delete a machine is one request, and its error is raised. Ray deletes in a thread of its own, and forgets
      errors; a process that dies in between leaves disks and interfaces that nothing names.

    Args:
        provider_config: what Ray calls it.
        cluster_name: the cluster.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        resources: Any = self.resource_client  # whose type would be that of its replacement
        self.resource_client = ScriptedDeployments(resources=resources, compute=self.compute_client)

    @override
    def _get_filtered_nodes(self, tag_filters: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        wanted = {**tag_filters, TAG_RAY_CLUSTER_NAME: self.cluster_name}
        name = tag_filters.get(MACHINE_TAG)
        group: str = self.provider_config["resource_group"]
        machines = self.compute_client.virtual_machines
        found: Iterable[VirtualMachine] = machines.list(group) if name is None else _got(machines, group, name)
        self.cached_nodes = {
            str(machine.name): {"name": machine.name, "tags": dict(machine.tags or {}), "status": ""}
            for machine in found
            if machine.provisioning_state != "Deleting"  # asked for by us, or evicted
        }
        return {name: node for name, node in self.cached_nodes.items() if wanted.items() <= node["tags"].items()}

    @override
    def terminate_node(self, node_id: str) -> None:
        _delete(self.compute_client, self.provider_config["resource_group"], node_id)


@final
class ScriptedDeployments:
    """Stands where Ray looks for Azure's client of deployments, and has them made by our template.

    Args:
        resources: that client.
        compute: Azure's client of virtual machines.
    """

    def __init__(self, *, resources: ResourceManagementClient, compute: ComputeManagementClient) -> None:
        self._resources = resources
        self._compute = compute

    @property
    def deployments(self) -> Self:
        """What Ray asks it for."""
        return self

    def create_or_update(
        self, *, resource_group_name: str, deployment_name: str, parameters: Mapping[str, Any]
    ) -> LROPoller[Any]:
        """Deploys a machine; returns when it runs, or Ray has no more patience.

        Args:
            resource_group_name: where.
            deployment_name: what Ray would call it; not used.
            parameters: the deployment that Ray would make.

        Raises:
            HttpResponseError: Azure does not have the machine.
        """
        values = {name: item["value"] for name, item in parameters["properties"]["parameters"].items()}
        name: str = values["vmTags"][MACHINE_TAG]
        asked: Any = {"properties": deployment({**values, "vmName": name})}  # a model of Azure's, as JSON
        poller = self._resources.deployments.begin_create_or_update(
            resource_group_name, name, asked, polling_interval=POLL_INTERVAL_S
        )
        try:
            poller.wait(AUTOSCALER_NODE_START_WAIT_S)
        except HttpResponseError:
            self._clear(resource_group_name, name)
            raise
        return poller

    def _clear(self, group: str, name: str) -> None:
        """Asks for the removal of a machine for which there was no room: Azure keeps it, as one that failed."""
        for machine in _got(self._compute.virtual_machines, group, name):
            if machine.provisioning_state == "Failed":
                _delete(self._compute, group, name)


def _got(machines: Any, group: str, name: str) -> list[VirtualMachine]:
    """Returns a machine by its name, if it is there."""
    try:
        return [machines.get(group, name)]
    except ResourceNotFoundError:
        return []


def _delete(compute: ComputeManagementClient, group: str, name: str) -> None:
    """Asks for the end of a machine, its disk and its interface, at once: what a job has left is in the bucket."""
    compute.virtual_machines.begin_delete(group, name, force_deletion=True, polling=False)
