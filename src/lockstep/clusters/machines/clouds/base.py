"""What has to be known of a cloud to have machines of it through Ray's client of it."""

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
"""Tag of a machine with the ledger's name of it. The cloud's own name of a machine may be changed by people."""

TAGS: Final = "tags"
"""The setting with what the user's machines are tagged with, of every cloud."""


class AbstractCloud(abc.ABC):
    """One cloud, for one cluster. Nothing here blocks but `open` and `stopped`; all may be called from any thread.

    Args:
        definition: the cluster.
        catalogue: machines, which its node types name.

    Attributes:
        extra: the extra of this package that has the cloud's client.
        before_off: what a machine runs, in bash, before it turns itself off.
    """

    extra: str
    before_off: tuple[str, ...] = ()

    def __init__(self, definition: ClusterDefinition, *, catalogue: Catalogue) -> None:
        self.definition = definition
        self.catalogue = catalogue
        self.settings: Mapping[str, Any] = definition.provider.settings

    def check(self) -> None:
        """Looks whether all is there that the cloud has to be told.

        Raises:
            ConfigError: something is missing, or is not known.
        """
        self.provider_config()
        for name in self.definition.node_types:
            self.node_config(name)

    @property
    def tags(self) -> dict[str, str]:
        """What the user's machines are tagged with beside what we tag them with."""
        return dict(self.settings.get(TAGS, {}))

    @abc.abstractmethod
    def provider_config(self) -> dict[str, Any]:
        """Returns what Ray calls the provider's configuration.

        Raises:
            ConfigError: a setting is missing, or is not known.
        """

    @abc.abstractmethod
    def node_config(self, node_type: str) -> dict[str, Any]:
        """Returns what the cloud is told of one machine of a type, but for what makes it join.

        Raises:
            ConfigError: something is missing that cannot be derived.
        """

    @abc.abstractmethod
    def named(self, config: Mapping[str, Any], *, name: str, script: str) -> dict[str, Any]:
        """Returns a node's configuration with what it runs when it comes up.

        Args:
            config: what `node_config` gave.
            name: the machine's name.
            script: its start-up script.
        """

    @abc.abstractmethod
    def open(self) -> NodeProvider:
        """Returns Ray's client of the cloud.

        Raises:
            ImportError: the cloud's own library is not installed.
        """

    @abc.abstractmethod
    def stopped(self, provider: NodeProvider) -> list[str]:
        """Returns the ids of the cluster's machines that are turned off and still kept, which Ray does not list."""

    def _check_region(self, node_type: str, *, region: str, what: str) -> None:
        """Refuses a node type of another region than the provider's, which `what` names."""
        asked = self.definition.node_types[node_type].region
        if asked not in (None, region):
            raise ConfigError(f"nodeTypes.{node_type}.region", received=asked, allowed=f"{what}, {region}")

    def _check_settings(self, *, required: Iterable[str], optional: Iterable[str] = ()) -> None:
        """Refuses unknown settings, and says which are missing."""
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
                    allowed=f"text: what {self.definition.provider.type.value} calls {key}",
                )
        tags = self.settings.get(TAGS, {})
        if not isinstance(tags, dict) or not all(
            isinstance(key, str) and isinstance(value, str) and not key.startswith(("ray-", "lockstep"))
            for key, value in tags.items()
        ):
            raise ConfigError(
                "provider.settings.tags", received=tags, allowed="text by text, without names of ray- and lockstep"
            )


def own_config(name: str, kind: NodeType, *, reserved: Collection[str], hint: str) -> dict[str, Any]:
    """Returns what the user says of a node type in the cloud's words.

    Args:
        name: the node type's name.
        kind: the node type.
        reserved: keys that are not theirs to set.
        hint: what to do instead.

    Raises:
        ConfigError: one of them is set.
    """
    for key in reserved:
        if key in kind.node_config:
            raise ConfigError(f"nodeTypes.{name}.nodeConfig.{key} is set by Lockstep", action=hint)
    return dict(kind.node_config)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns mappings laid over each other; what is no mapping is replaced as a whole."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        is_deep = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if is_deep else value  # pyright: ignore[reportArgumentType]  # both are
    return result
