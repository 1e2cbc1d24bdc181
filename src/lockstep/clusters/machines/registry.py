"""Opens the provider of a cluster's machines."""

from __future__ import annotations

from pathlib import Path

from lockstep.clusters.machines.base import AbstractMachines
from lockstep.clusters.machines.clouds import open_cloud
from lockstep.clusters.machines.kubeconfig import find_access
from lockstep.clusters.machines.kubernetes import KubernetesMachines
from lockstep.clusters.machines.kubernetes_api import KubernetesApi
from lockstep.clusters.machines.local import LocalMachines
from lockstep.clusters.machines.pods import Pods
from lockstep.clusters.machines.ray_provider import RayProviderMachines
from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.errors import EngineError
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import ClusterDefinition, Provider


def check_machines(definition: ClusterDefinition, *, catalogue: Catalogue) -> None:
    """Checks that a definition has all settings that its provider needs. Sends no request to the provider.

    Args:
        definition: the cluster's definition.
        catalogue: the catalogue of machine types.

    Raises:
        ConfigError: a setting is missing or unknown, or this version does not support the provider.
    """
    match definition.provider.type:
        case Provider.LOCAL:
            pass
        case Provider.KUBERNETES:
            Pods(definition, catalogue=catalogue)
        case _:
            open_cloud(definition, catalogue=catalogue)


def open_machines(
    definition: ClusterDefinition, *, home: Home, head: EmbeddedHead, catalogue: Catalogue
) -> AbstractMachines:
    """Returns the machines of a cluster.

    Args:
        definition: the cluster's definition.
        home: the home that keeps the records of local machines.
        head: the head that the machines' nodes join.
        catalogue: the catalogue of machine types.

    Raises:
        ConfigError: a setting is missing or unknown, or this version does not support the provider.
    """
    if definition.provider.type is Provider.LOCAL:
        return LocalMachines(folder=home.machines / definition.name, head=head)

    def head_address() -> str:
        record = head.find()
        if record is None:
            raise EngineError("the head that machines join is not running")
        return record.address

    token = Path(head.environment()["RAY_AUTH_TOKEN_PATH"]).read_text()
    if definition.provider.type is Provider.KUBERNETES:
        pods = Pods(definition, catalogue=catalogue)
        return KubernetesMachines(
            pods,
            connect=lambda: KubernetesApi(find_access(pods.kubeconfig)),
            token=token,
            head_address=head_address,
        )
    cloud = open_cloud(definition, catalogue=catalogue)
    return RayProviderMachines(cloud, token=token, head_address=head_address)
