"""What every provider of machines can do."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import final

from lockstep.jobs.provisioning import ClusterDefinition


class AbstractMachines(abc.ABC):
    """Machines of one cluster at a provider, by the names that the ledger gives them.

    A machine that was created starts a node of the engine, which carries its name. Only machines of this cluster are
    ever seen or touched. All methods may be called from any thread, and may block for as long as the provider takes.
    """

    @abc.abstractmethod
    def names(self) -> frozenset[str]:
        """Returns the machines that the provider has, those that are still coming up too; maybe those that are going.

        Raises:
            EngineError: the provider does not answer.
        """

    @abc.abstractmethod
    def create(self, name: str, *, node_type: str) -> None:
        """Asks for a machine. Idempotent by its name; returns when the provider has taken the request.

        Args:
            name: the machine's name.
            node_type: its type, a name of the cluster's definition.

        Raises:
            EngineError: the provider refused, in its words: it has none, or a limit of the account is reached.
        """

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Gives a machine back. Idempotent; returns when the provider has taken the request.

        Raises:
            EngineError: the provider does not answer.
        """

    @abc.abstractmethod
    def words(self, name: str) -> str:
        """Returns why a machine is not up yet, as the provider said when `names` looked last; "" if it said nothing.

        Does not block.
        """


@final
@dataclass(frozen=True, kw_only=True)
class Provisioning:
    """What a cluster whose machines come and go is made of.

    Attributes:
        definition: which nodes there may be.
        machines: where they come from.
    """

    definition: ClusterDefinition
    machines: AbstractMachines
