"""Ray's client of Azure, with our changes. Needs the extra ``azure``."""

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
"""Interval of polling Azure's operations. The library's default of 30 s would report a stock-out that much later."""

for _name in ("azure", "ray.autoscaler._private._azure"):  # they log each new client; errors are raised anyway
    logging.getLogger(_name).setLevel(logging.ERROR)


@final
class AzureProvider(AzureNodeProvider):
    """Ray's client of Azure, changed in three ways.

    - Machines are deployed by our own template (`azure_deployment`), under the ledger's name, so a machine that is
      requested twice exists once.
    - Listing the machines is one request. Ray sends two more requests for each machine in the resource group, including
      other people's machines, and Azure allows 12 of them per minute.
    - Deleting a machine is one request, and its error is raised. Ray deletes in a background thread and drops errors;
      if its process dies meanwhile, disks and interfaces remain that belong to nothing.

    Args:
        provider_config: the provider's configuration, in Ray's form.
        cluster_name: the name of the cluster.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        resources: Any = self.resource_client  # Any, because the replacement has another type
        self.resource_client = ScriptedDeployments(resources=resources, compute=self.compute_client)

    @override
    def _get_filtered_nodes(self, tag_filters: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        wanted = {**tag_filters, TAG_RAY_CLUSTER_NAME: self.cluster_name}
        name = tag_filters.get(MACHINE_TAG)
        group: str = self.provider_config["resource_group"]
        machines = self.compute_client.virtual_machines
        found: Iterable[VirtualMachine] = machines.list(group) if name is None else _find_machine(machines, group, name)
        self.cached_nodes = {
            str(machine.name): {"name": machine.name, "tags": dict(machine.tags or {}), "status": ""}
            for machine in found
            if machine.provisioning_state != "Deleting"  # deleted by us, or evicted
        }
        return {name: node for name, node in self.cached_nodes.items() if wanted.items() <= node["tags"].items()}

    @override
    def terminate_node(self, node_id: str) -> None:
        _delete(self.compute_client, self.provider_config["resource_group"], node_id)


@final
class ScriptedDeployments:
    """Replaces Azure's resource client within Ray's client, and deploys machines by our own template.

    Args:
        resources: Azure's resource client.
        compute: Azure's client of virtual machines.
    """

    def __init__(self, *, resources: ResourceManagementClient, compute: ComputeManagementClient) -> None:
        self._resources = resources
        self._compute = compute

    @property
    def deployments(self) -> Self:
        """The client of deployments that Ray uses: this object."""
        return self

    def create_or_update(
        self, *, resource_group_name: str, deployment_name: str, parameters: Mapping[str, Any]
    ) -> LROPoller[Any]:
        """Deploys a machine. Returns when it runs, or when Ray's timeout for a node's start has passed.

        Args:
            resource_group_name: the resource group of the machine.
            deployment_name: Ray's name of the deployment; not used.
            parameters: the deployment that Ray would create.

        Raises:
            HttpResponseError: the deployment failed, for example because Azure has no capacity for the machine.
        """
        values = {name: item["value"] for name, item in parameters["properties"]["parameters"].items()}
        name: str = values["vmTags"][MACHINE_TAG]
        asked: Any = {"properties": deployment({**values, "vmName": name})}  # Azure's model, as JSON
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
        """Requests the deletion of a machine for which there was no capacity: Azure keeps it as a failed machine."""
        for machine in _find_machine(self._compute.virtual_machines, group, name):
            if machine.provisioning_state == "Failed":
                _delete(self._compute, group, name)


def _find_machine(machines: Any, group: str, name: str) -> list[VirtualMachine]:
    """Returns a list with the machine of this name; an empty list if there is none."""
    try:
        return [machines.get(group, name)]
    except ResourceNotFoundError:
        return []


def _delete(compute: ComputeManagementClient, group: str, name: str) -> None:
    """Requests the forced deletion of a machine with its disk and interface. A job's results are in the bucket."""
    compute.virtual_machines.begin_delete(group, name, force_deletion=True, polling=False)
