"""Records in a home which engine it uses, so that every command that starts or stops it opens the same engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, final

from lockstep.errors import CorruptDataError
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.provisioning import ClusterDefinition, Provider, parse_cluster

EMBEDDED: Final = "embedded"
ATTACHED: Final = "attached"
PROVISIONED: Final = "provisioned"


@final
@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """The name of an engine, and the information that is needed to open it.

    Attributes:
        name: the engine's name in the registry.
        address: "host:port" of the control store, for an attached engine.
        definition: the cluster's definition, for a provisioned engine.
    """

    name: str = EMBEDDED
    address: str | None = None
    definition: ClusterDefinition | None = None

    @property
    def is_owned(self) -> bool:
        """Whether the engine ends when its service is shut down."""
        return self.name != ATTACHED

    @property
    def is_local(self) -> bool:
        """Whether the engine's nodes are on this machine."""
        if self.definition is not None:
            return self.definition.provider.type is Provider.LOCAL
        return self.name == EMBEDDED

    def identity(self, home: str) -> str:
        """Returns a text that identifies the engine uniquely.

        Args:
            home: a text that identifies the home uniquely.
        """
        return f"Ray at {self.address}" if self.name == ATTACHED else f"{self.name} in {home}"


def read_choice(home: Home, *, catalogue: Catalogue) -> EngineChoice:
    """Returns the engine of a home; the embedded engine if none is recorded.

    Raises:
        CorruptDataError: the record cannot be read.
        ConfigError: this version does not support the recorded cluster.
    """
    try:
        document: dict[str, Any] = json.loads(home.cluster.read_text())
        name, address, definition = document["name"], document["address"], document["definition"]
    except FileNotFoundError:
        return EngineChoice()
    except (ValueError, KeyError, TypeError) as error:
        problem = f"{home.cluster} cannot be read: {type(error).__name__}: {error}"
        raise CorruptDataError(problem, action="choose the cluster again") from None
    return EngineChoice(
        name=name,
        address=address,
        definition=None
        if definition is None
        else parse_cluster(definition, source=str(home.cluster), catalogue=catalogue),
    )


def write_choice(home: Home, choice: EngineChoice) -> None:
    """Records the engine of a home. No other engine of this home may be running."""
    document = {
        "name": choice.name,
        "address": choice.address,
        "definition": None if choice.definition is None else choice.definition.to_json(),
    }
    partial = home.cluster.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1))
    partial.chmod(0o600)
    partial.replace(home.cluster)
