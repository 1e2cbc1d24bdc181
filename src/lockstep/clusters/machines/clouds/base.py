"""The interface of a cloud: all that is needed to manage its machines through Ray's client of the cloud."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lockstep.errors import ConfigError, closest
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import ClusterDefinition, NodeType

if TYPE_CHECKING:
    from ray.autoscaler.node_provider import NodeProvider

MACHINE_TAG: Final = "lockstep-machine"
"""Tag whose value is a machine's name in the ledger. (People may change the machine's name at the cloud.)"""

TAGS: Final = "tags"
"""The setting with the user's own tags for machines; every cloud has it."""


class AbstractCloud(abc.ABC):
    """One cloud, for one cluster. Only `open` and `stopped` block. All methods may be called from any thread.

    Args:
        definition: the cluster's definition.
        catalogue: the catalogue of the machine types that node types name.

    Attributes:
        extra: the extra of this package that installs the cloud's client.
        before_off: the Bash commands that a machine runs before it turns itself off.
    """

    extra: str
    before_off: tuple[str, ...] = ()

    def __init__(self, definition: ClusterDefinition, *, catalogue: Catalogue) -> None:
        self.definition = definition
        self.catalogue = catalogue
        self.settings: Mapping[str, Any] = definition.provider.settings

    def check(self) -> None:
        """Checks that the definition has all settings that the cloud needs.

        Raises:
            ConfigError: a setting is missing or unknown.
        """
        self.provider_config()
        for name in self.definition.node_types:
            self.node_config(name)

    @property
    def tags(self) -> dict[str, str]:
        """The user's own tags for machines, in addition to Lockstep's tags."""
        return dict(self.settings.get(TAGS, {}))

    @abc.abstractmethod
    def provider_config(self) -> dict[str, Any]:
        """Returns the provider's configuration, in Ray's form.

        Raises:
            ConfigError: a setting is missing or unknown.
        """

    @abc.abstractmethod
    def node_config(self, node_type: str) -> dict[str, Any]:
        """Returns the configuration of a machine of this node type, without the startup script by which it joins.

        Raises:
            ConfigError: a value is missing that cannot be derived.
        """

    @abc.abstractmethod
    def named(self, config: Mapping[str, Any], *, name: str, script: str) -> dict[str, Any]:
        """Returns a machine's configuration with its startup script.

        Args:
            config: the result of `node_config`.
            name: the machine's name.
            script: the startup script.
        """

    @abc.abstractmethod
    def open(self) -> NodeProvider:
        """Returns Ray's client of the cloud.

        Raises:
            ImportError: the cloud's own library is not installed.
        """

    @abc.abstractmethod
    def stopped(self, provider: NodeProvider) -> list[str]:
        """Returns the ids of the cluster's machines that are turned off but not deleted. Ray does not list these."""

    def _check_region(self, node_type: str, *, region: str, what: str) -> None:
        """Raises a ConfigError if a node type's region is not the provider's region, which `what` describes."""
        asked = self.definition.node_types[node_type].region
        if asked not in (None, region):
            raise ConfigError(f"nodeTypes.{node_type}.region", received=asked, allowed=f"{what}, {region}")

    def _check_settings(self, *, required: Iterable[str], optional: Iterable[str] = ()) -> None:
        """Raises a ConfigError if a setting is unknown, missing or of the wrong type."""
        allowed = [*required, *optional, TAGS]
        for key in self.settings:
            if key not in allowed:
                raise ConfigError(
                    f"provider.settings.{key} is not known", allowed=sorted(allowed), action=closest(key, allowed)
                )
        for key in required:
            if not isinstance(self.settings.get(key), str) or not self.settings[key]:
                raise ConfigError(
                    f"provider.settings.{key}",
                    received=self.settings.get(key),
                    allowed=f"a string: {self.definition.provider.type.value}'s {key}",
                )
        tags = self.settings.get(TAGS, {})
        if not isinstance(tags, dict) or not all(
            isinstance(key, str) and isinstance(value, str) and not key.startswith(("ray-", "lockstep"))
            for key, value in tags.items()
        ):
            raise ConfigError(
                "provider.settings.tags",
                received=tags,
                allowed="a map of strings; keys must not start with ray- or lockstep",
            )


def user_config(name: str, kind: NodeType, *, reserved: Collection[str], hint: str) -> dict[str, Any]:
    """Returns the user's ``nodeConfig`` of a node type, which is in the cloud's own form.

    Args:
        name: the node type's name.
        kind: the node type.
        reserved: the keys that Lockstep sets and users may not set.
        hint: the error's advice on what to do instead.

    Raises:
        ConfigError: a reserved key is set.
    """
    for key in reserved:
        if key in kind.node_config:
            raise ConfigError(f"nodeTypes.{name}.nodeConfig.{key} is set by Lockstep", action=hint)
    return dict(kind.node_config)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two mappings recursively. Values of ``over`` win; a value that is not a mapping is replaced as a whole."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        is_deep = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if is_deep else value  # pyright: ignore[reportArgumentType]  # both are
    return result
