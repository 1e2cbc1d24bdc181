"""Two stages of a script: what ``fit`` trains, then what closures of a `ClusterCoordinator` train.

A worker stays in its first ``fit`` as long as the coordinator trains by ``fit``. Where the coordinator goes on to
closures, the worker goes on too: its calls of ``fit`` return what the coordinator's have returned, with the values that
the coordinator had when it went on, and its script runs up to the first closure.
"""

# Keras is partly without types: what comes from it is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import keras
import numpy as np

from lockstep.errors import WrongStateError
from lockstep.parameter_server.coordination.messages import GO_ON
from lockstep.parameter_server.links import Message


@final
class Stages:
    """Which stage the script of this process is at.

    Attributes:
        number: 0 for ``fit``, or closures alone; 1 for closures after ``fit``.
        left: what the first one has come to, for workers; None as long as it lasts.
    """

    def __init__(self) -> None:
        self.number = 0
        self.left: Message | None = None
        self._histories: list[dict[str, Any]] = []
        self._num_passed = 0

    def note(self, history: Any) -> None:
        """In the coordinator, notes what a ``fit`` has returned."""
        numbers = {name: [float(np.asarray(one)) for one in own] for name, own in history.history.items()}
        self._histories.append({"epoch": list(history.epoch), "history": numbers})

    def leave(self, variables: Sequence[Any]) -> Message:
        """In the coordinator, goes on to the second stage.

        Args:
            variables: those that the servers have kept, with the values that workers are to go on with.

        Returns:
            What workers are told.
        """
        values = {str(index): np.asarray(variable.value) for index, variable in enumerate(variables)}
        self.number = 1
        self.left = Message(kind=GO_ON, fields={"histories": self._histories}, arrays=values)
        return self.left

    def enter(self, left: Message, variables: Sequence[Any]) -> None:
        """In a worker, goes on to the second stage.

        Args:
            left: what the coordinator has said.
            variables: those that the servers have kept, in this process.
        """
        for index, variable in enumerate(variables):
            variable.assign(np.array(left.arrays[str(index)]))
        self.number = 1
        self._histories = left.fields["histories"]

    def next_history(self, model: Any) -> Any:
        """In a worker, returns what the coordinator's next ``fit`` has returned.

        Raises:
            WrongStateError: the coordinator has called it less often.
        """
        if self._num_passed == len(self._histories):
            raise WrongStateError(
                "fit was called in a worker more often than in the coordinator, which trains by closures since",
                action="have fit come before closures in a script, the same in every process",
            )
        found = self._histories[self._num_passed]
        self._num_passed += 1
        history = keras.callbacks.History()
        history.set_model(model)
        history.epoch, history.history = found["epoch"], found["history"]
        model.history = history
        return history
