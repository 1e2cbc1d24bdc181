"""Optimizers for rows of a table. They update only the rows that have gradients, and keep state for each row."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from numbers import Real
from typing import Annotated, Any, Final, Literal, TypeAlias, final

import numpy as np
from pydantic import Field
from typing_extensions import override

from lockstep.errors import InvalidInputError

Array: TypeAlias = np.ndarray[Any, Any]
"""float32[rows, columns], or float32[rows, width] for state."""


class AbstractRowOptimizer(abc.ABC):
    """Updates rows. Has no state of its own: the caller passes the state, which is changed in place."""

    @abc.abstractmethod
    def state_widths(self, num_columns: int) -> dict[str, int]:
        """Returns the number of float32 values per row of each kind of state."""

    @abc.abstractmethod
    def update(self, values: Array, state: dict[str, Array], gradients: Array, *, step: int) -> None:
        """Updates rows and their state in place.

        Args:
            values: float32[rows, columns], the rows.
            state: float32[rows, width] for each kind of state.
            gradients: float32[rows, columns], the gradients of the rows.
            step: the number of pushes that the table has received, including this one.
        """


@final
@dataclass(frozen=True, kw_only=True)
class RowSGD(AbstractRowOptimizer):
    """Stochastic gradient descent.

    Attributes:
        kind: its name in messages.
        learning_rate: the learning rate, above 0.
    """

    kind: Literal["sgd"] = "sgd"
    learning_rate: float = 0.01

    @override
    def state_widths(self, num_columns: int) -> dict[str, int]:
        return {}

    @override
    def update(self, values: Array, state: dict[str, Array], gradients: Array, *, step: int) -> None:
        values -= np.float32(self.learning_rate) * gradients


@final
@dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad(AbstractRowOptimizer):
    """Adagrad with one accumulator per row: the sum, over updates, of the mean of its gradients' squares.

    The same as FBGEMM's row-wise Adagrad, which recommender systems use because it needs only one number of state per
    row (Mudigere et al. 2021).

    Attributes:
        kind: its name in messages.
        learning_rate: the learning rate, above 0.
        initial_accumulator: the initial value of each row's accumulator, 0 or above.
        epsilon: the number that prevents a division by zero in a row without gradients.
    """

    kind: Literal["adagrad"] = "adagrad"
    learning_rate: float = 0.01
    initial_accumulator: float = 0.0
    epsilon: float = 1e-8

    @override
    def state_widths(self, num_columns: int) -> dict[str, int]:
        return {"accumulator": 1}

    @override
    def update(self, values: Array, state: dict[str, Array], gradients: Array, *, step: int) -> None:
        sums = state["accumulator"]
        sums += np.einsum("ij,ij->i", gradients, gradients)[:, None] / np.float32(gradients.shape[1])
        root = np.sqrt(sums + np.float32(self.initial_accumulator)) + np.float32(self.epsilon)
        values -= np.float32(self.learning_rate) * gradients / root


@final
@dataclass(frozen=True, kw_only=True)
class LazyAdam(AbstractRowOptimizer):
    """Adam that updates the moments of the rows in a push only. Bias correction counts the pushes to the table.

    This is not the same algorithm as Adam: the moments of a row do not decay while the row is not met. TensorFlow
    Addons' LazyAdam does the same.

    Attributes:
        kind: its name in messages.
        learning_rate: the learning rate, above 0.
        beta_1: the decay of the first moment.
        beta_2: the decay of the second moment.
        epsilon: the number that is added to the square root of the second moment.
    """

    kind: Literal["adam"] = "adam"
    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    @override
    def state_widths(self, num_columns: int) -> dict[str, int]:
        return {"momentum": num_columns, "velocity": num_columns}

    @override
    def update(self, values: Array, state: dict[str, Array], gradients: Array, *, step: int) -> None:
        first, second = state["momentum"], state["velocity"]
        first += (gradients - first) * np.float32(1.0 - self.beta_1)
        second += (np.square(gradients) - second) * np.float32(1.0 - self.beta_2)
        rate = self.learning_rate * np.sqrt(1.0 - self.beta_2**step) / (1.0 - self.beta_1**step)
        values -= np.float32(rate) * first / (np.sqrt(second) + np.float32(self.epsilon))


RowOptimizer: TypeAlias = Annotated[RowSGD | RowwiseAdagrad | LazyAdam, Field(discriminator="kind")]
"""Any of the row optimizers. In a message, `kind` tells which one."""

_KINDS: Final = {kind.kind: kind for kind in (RowSGD, RowwiseAdagrad, LazyAdam)}


def row_optimizer(kind: str, **options: float) -> RowOptimizer:
    """Returns a row optimizer by its name.

    Raises:
        InvalidInputError: there is no optimizer of that name, it has no such option, or an option is out of range.
    """
    if kind not in _KINDS:
        raise InvalidInputError("an optimizer of rows", received=kind, allowed=sorted(_KINDS))
    try:
        made: RowOptimizer = _KINDS[kind](**options)  # type: ignore[arg-type]  # unknown options are found here
    except TypeError:
        allowed = sorted(_KINDS[kind].__dataclass_fields__.keys() - {"kind"})
        raise InvalidInputError(f"options of {kind}", received=sorted(options), allowed=allowed) from None
    numbers: dict[str, float] = {}
    for name, value in vars(made).items():
        if name == "kind":
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InvalidInputError(
                f"{name} of {kind}",
                received=type(value).__name__,
                allowed="a number: rows have no schedules",
                action="for a rate that changes give the layer no optimizer: its rows follow the rate of the model's, "
                "which a callback may set",
            )
        number = numbers[name] = float(value)  # NumPy's number types cannot be sent
        least_is_allowed = name in {"initial_accumulator", "beta_1", "beta_2"}
        most = 1.0 if name.startswith("beta") else float("inf")
        if not (number > 0.0 or (least_is_allowed and number == 0.0)) or not number < most:
            raise InvalidInputError(f"{name} of {kind}", received=value, allowed="a positive number")
    return replace(made, **numbers)
