"""A synchronous step in a server: collects the pushes until there are enough, and computes their mean over rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.links import Request
from lockstep.parameter_server.protocol import GRADIENTS, IDS, ROWS, Push, gradients_for
from lockstep.parameter_server.server.ledger import PushId


@final
class SynchronousStep:
    """Collects the pushes of synchronous steps, one step after the other.

    Not thread-safe: the owner serializes calls.

    Args:
        summed_groups: the groups whose pushes are summed. The pushes of all other groups are averaged.

    Attributes:
        step: the step that is being collected, from 0.
    """

    def __init__(self, *, summed_groups: Iterable[int] = ()) -> None:
        self.step = 0
        self._summed = tuple(f"{gradients_for(group)}:" for group in summed_groups)
        self._num_expected: int | None = None
        self._pushes: list[tuple[Request, Push]] = []
        self._again: list[tuple[Request, Push]] = []
        self._arrays: list[dict[str, np.ndarray[Any, Any]]] = []

    @property
    def waiting(self) -> list[tuple[Request, Push]]:
        """The requests whose pushes make up this step. They wait for its end."""
        return list(self._pushes)

    @property
    def waiting_again(self) -> list[tuple[Request, Push]]:
        """The requests that also wait, with a push that this step already has."""
        return list(self._again)

    @property
    def pushes(self) -> tuple[PushId, ...]:
        """The ids of the pushes of this step."""
        return tuple(PushId(closure=push.closure, number=push.number) for _, push in self._pushes)

    @property
    def is_full(self) -> bool:
        """Whether enough pushes have arrived. False until the number of expected pushes is known."""
        return self._num_expected is not None and len(self._pushes) >= self._num_expected

    def expect(self, num_pushes: int) -> None:
        """Sets how many pushes make up a step from now on, including the current step.

        Raises:
            InvalidInputError: the number is below 1.
        """
        if num_pushes < 1:
            raise InvalidInputError("number of pushes in a step", received=num_pushes, allowed="a positive number")
        self._num_expected = num_pushes

    def check(self, push: Push) -> None:
        """Checks that a push is for the same variables as the others of the step.

        Raises:
            InvalidInputError: the push is for other variables.
        """
        for _, first in self._pushes[:1]:
            if first.parts != push.parts:
                raise InvalidInputError(
                    "two workers push gradients for different variables in one synchronous step",
                    action="run the same step in every worker",
                )

    def add(self, request: Request, push: Push, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Adds a checked push, and its arrays."""
        self._pushes.append((request, push))
        self._arrays.append(dict(arrays))

    def add_again(self, request: Request, push: Push) -> None:
        """Adds a request of a worker that runs a closure again whose push is already here. It waits too."""
        self._again.append((request, push))

    def mean(self) -> tuple[Push, Mapping[str, np.ndarray[Any, Any]]]:
        """Returns a single push that stands for all pushes of the step.

        Each push is weighted by the number of rows in its batch; one without rows counts as one row. The mean of a
        table's rows is over all pushes too, whether or not they met a row.
        """
        num_rows = [max(1, push.num_rows) for _, push in self._pushes]
        weights = [np.float32(own / sum(num_rows)) for own in num_rows]
        found: dict[str, np.ndarray[Any, Any]] = {}
        for name in self._arrays[0]:
            if name.startswith(self._summed):
                pushed = [arrays[name] for arrays in self._arrays]
                found[name] = np.sum(pushed, axis=0, dtype=pushed[0].dtype)
            elif name.startswith(GRADIENTS):
                weighed = zip(self._arrays, weights, strict=True)
                total = sum(arrays[name].astype(np.float32) * weight for arrays, weight in weighed)
                found[name] = np.asarray(total).astype(self._arrays[0][name].dtype)
            elif name.startswith(f"{IDS}:"):
                table = name.removeprefix(f"{IDS}:")
                ids, indices = np.unique(np.concatenate([arrays[name] for arrays in self._arrays]), return_inverse=True)
                weighed = zip(self._arrays, weights, strict=True)
                rows = np.concatenate([arrays[f"{ROWS}:{table}"] * weight for arrays, weight in weighed])
                total = np.zeros((len(ids), rows.shape[1]), np.float32)
                np.add.at(total, indices, rows)
                found[name], found[f"{ROWS}:{table}"] = ids, total
        return self._pushes[0][1], found

    def begin_next(self) -> None:
        """Begins the next step."""
        self.restart(step=self.step + 1)

    def restart(self, *, step: int, is_known: bool = True) -> None:
        """Begins a step, and forgets the pushes for any other one.

        Args:
            step: the step.
            is_known: whether it has as many pushes as the previous one; otherwise, `expect` is still to come.
        """
        self.step = step
        if not is_known:
            self._num_expected = None
        self._pushes, self._again, self._arrays = [], [], []
