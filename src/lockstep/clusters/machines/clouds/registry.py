"""The registry of clouds by the provider's name."""

from __future__ import annotations

from lockstep.clusters.machines.clouds.aws import AwsCloud
from lockstep.clusters.machines.clouds.azure import AzureCloud
from lockstep.clusters.machines.clouds.base import AbstractCloud
from lockstep.clusters.machines.clouds.gcp import GoogleCloud
from lockstep.errors import ConfigError
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import ClusterDefinition, Provider


def open_cloud(definition: ClusterDefinition, *, catalogue: Catalogue) -> AbstractCloud:
    """Returns the cloud of a cluster. Sends no request to the cloud.

    Args:
        definition: the cluster's definition.
        catalogue: the catalogue of machine types.

    Raises:
        ConfigError: a setting that the cloud needs is missing, or this version does not support the cloud.
    """
    match definition.provider.type:
        case Provider.AWS:
            cloud: AbstractCloud = AwsCloud(definition, catalogue=catalogue)
        case Provider.GCP:
            cloud = GoogleCloud(definition, catalogue=catalogue)
        case Provider.AZURE:
            cloud = AzureCloud(definition, catalogue=catalogue)
        case other:
            raise ConfigError("provider.type", received=other.value, allowed="aws, azure or gcp")
    cloud.check()
    return cloud
