"""The two stages of a script: first training by ``fit``, then by closures of a `ClusterCoordinator`.

A worker stays in its first ``fit`` while the coordinator trains by ``fit``. When the coordinator begins to train by
closures, the worker follows: its calls of ``fit`` return the coordinator's histories, its variables get the values that
the coordinator's had at that time, and its script runs up to the first closure.
"""

# Keras is only partly typed, so the checks below are off in this file.
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
    """The stage that the script of this process is in.

    Attributes:
        number: 0 for ``fit``, or for closures alone; 1 for closures after ``fit``.
        stage_results: the message with the results of the first stage, for workers; None while that stage lasts.
    """

    def __init__(self) -> None:
        self.number = 0
        self.stage_results: Message | None = None
        self._histories: list[dict[str, Any]] = []
        self._num_passed = 0

    def note(self, history: Any) -> None:
        """In the coordinator, records the history that a ``fit`` returned."""
        numbers = {name: [float(np.asarray(one)) for one in own] for name, own in history.history.items()}
        self._histories.append({"epoch": list(history.epoch), "history": numbers})

    def end_stage(self, variables: Sequence[Any]) -> Message:
        """In the coordinator, goes on to the second stage.

        Args:
            variables: the variables that the servers kept, with the values that workers should continue with.

        Returns:
            The message for the workers.
        """
        values = {str(index): np.asarray(variable.value) for index, variable in enumerate(variables)}
        self.number = 1
        self.stage_results = Message(kind=GO_ON, fields={"histories": self._histories}, arrays=values)
        return self.stage_results

    def enter(self, stage_results: Message, variables: Sequence[Any]) -> None:
        """In a worker, goes on to the second stage.

        Args:
            stage_results: the message of the coordinator.
            variables: this process's variables that the servers kept.
        """
        for index, variable in enumerate(variables):
            variable.assign(np.array(stage_results.arrays[str(index)]))
        self.number = 1
        self._histories = stage_results.fields["histories"]

    def next_history(self, model: Any) -> Any:
        """In a worker, returns the history of the coordinator's next ``fit``.

        Raises:
            WrongStateError: the coordinator has called ``fit`` fewer times than this worker.
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
