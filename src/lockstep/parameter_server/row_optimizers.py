"""How rows of a table are updated by gradients for these rows alone, each with its state beside it."""

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
"""float32[rows, columns], or as many values of state a row."""


class AbstractRowOptimizer(abc.ABC):
    """Updates rows. Pure: all state is given and changed in place."""

    @abc.abstractmethod
    def state_widths(self, num_columns: int) -> dict[str, int]:
        """Returns how many float32 values of each kind of state a row has."""

    @abc.abstractmethod
    def update(self, values: Array, state: dict[str, Array], gradients: Array, *, step: int) -> None:
        """Updates rows and their state in place.

        Args:
            values: float32[rows, columns].
            state: float32[rows, width] of each kind.
            gradients: float32[rows, columns].
            step: how many pushes the table has had, this one included.
        """


@final
@dataclass(frozen=True, kw_only=True)
class RowSGD(AbstractRowOptimizer):
    """Stochastic gradient descent.

    Attributes:
        kind: its name, as it travels.
        learning_rate: positive.
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
    """Adagrad with one accumulator for each row: the mean of its gradients' squares.

    As FBGEMM's row-wise Adagrad, which recommenders use for a state of one number a row (Mudigere et al. 2021).

    Attributes:
        kind: its name, as it travels.
        learning_rate: positive.
        initial_accumulator: what each row's accumulator begins with, not negative.
        epsilon: keeps a row without gradients from dividing by zero.
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
    """Adam whose moments move for the rows of a push alone; the correction of bias counts the table's pushes.

    Another algorithm than Adam: a row's moments do not decay while it is not met. As TensorFlow Addons' LazyAdam.

    Attributes:
        kind: its name, as it travels.
        learning_rate: positive.
        beta_1: the first moment's decay.
        beta_2: the second moment's decay.
        epsilon: added to the root of the second moment.
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
"""One of them, told apart by its kind where it has travelled."""

_KINDS: Final = {kind.kind: kind for kind in (RowSGD, RowwiseAdagrad, LazyAdam)}


def row_optimizer(kind: str, **options: float) -> RowOptimizer:
    """Returns an optimizer by its name.

    Raises:
        InvalidInputError: there is none of that name, or with these options; or a number is not what it may be.
    """
    if kind not in _KINDS:
        raise InvalidInputError("an optimizer of rows", received=kind, allowed=sorted(_KINDS))
    try:
        made: RowOptimizer = _KINDS[kind](**options)  # type: ignore[arg-type]  # what they take is found out here
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
        number = numbers[name] = float(value)  # NumPy's own do not travel
        least_is_allowed = name in {"initial_accumulator", "beta_1", "beta_2"}
        most = 1.0 if name.startswith("beta") else float("inf")
        if not (number > 0.0 or (least_is_allowed and number == 0.0)) or not number < most:
            raise InvalidInputError(f"{name} of {kind}", received=value, allowed="a positive number")
    return replace(made, **numbers)
