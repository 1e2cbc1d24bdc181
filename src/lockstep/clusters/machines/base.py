"""The interface of all providers of machines."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import final

from lockstep.jobs.provisioning import ClusterDefinition


class AbstractMachines(abc.ABC):
    """Machines of one cluster at a provider, identified by their names in the ledger.

    A created machine starts a node of the engine, and the node carries the machine's name. Only machines of this
    cluster are listed or changed. All methods may be called from any thread, and may block for as long as the provider
    takes.
    """

    @abc.abstractmethod
    def names(self) -> frozenset[str]:
        """Returns the names of the provider's machines, including those that are still starting.

        Machines that are being deleted may be included.

        Raises:
            EngineError: the provider does not answer.
        """

    @abc.abstractmethod
    def create(self, name: str, *, node_type: str) -> None:
        """Requests a machine. Idempotent by the machine's name; returns when the provider has accepted the request.

        Args:
            name: the machine's name.
            node_type: its node type, a name from the cluster's definition.

        Raises:
            EngineError: the provider refused, for example because it has no such machine left or a limit of the account
                is reached. The message is the provider's.
        """

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Releases a machine. Idempotent; returns when the provider has accepted the request.

        Raises:
            EngineError: the provider does not answer.
        """

    @abc.abstractmethod
    def words(self, name: str) -> str:
        """Returns the provider's message about why a machine is not running yet; "" if there is none.

        The message is from the last call of `names`. Does not block.
        """


@final
@dataclass(frozen=True, kw_only=True)
class Provisioning:
    """The definition and the provider of a cluster whose machines are created and removed on demand.

    Attributes:
        definition: the cluster's definition, which says which nodes it may have.
        machines: the cluster's machines at the provider.
    """

    definition: ClusterDefinition
    machines: AbstractMachines
