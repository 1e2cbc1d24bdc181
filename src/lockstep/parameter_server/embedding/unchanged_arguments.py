"""Finds ids that a program takes unchanged from its arguments: these can be read without running the program."""

# JAX is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

_KEEPS_VALUES: Final = frozenset({"convert_element_type", "reshape", "copy"})


@final
@dataclass(frozen=True, kw_only=True)
class UnchangedArgument:
    """A result of a program that is one of its arguments.

    Attributes:
        argument: the index of the argument among the leaves of all arguments.
        shape: the shape of the result.
    """

    argument: int
    shape: tuple[int, ...]

    def read(self, leaves: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Returns the result in the dtype of the argument, so that a large id is not truncated.

        Args:
            leaves: the program's arguments.
        """
        return np.asarray(leaves[self.argument]).reshape(self.shape)


def find_unchanged_arguments(jaxpr: Any) -> list[UnchangedArgument] | None:
    """Returns the arguments that are a program's results; None if any result is computed.

    Args:
        jaxpr: the program. Each of its arguments is a leaf.
    """
    producers = {result: equation for equation in jaxpr.eqns for result in equation.outvars}
    indices = {argument: index for index, argument in enumerate(jaxpr.invars)}
    found: list[UnchangedArgument] = []
    for result in jaxpr.outvars:
        source = result
        while not hasattr(source, "val") and source in producers:  # a literal has a value and no index
            equation = producers[source]
            if equation.primitive.name not in _KEEPS_VALUES or equation.params.get("dimensions"):
                return None  # a reshape with dimensions reads the values in another order
            (source,) = equation.invars
            if not np.can_cast(source.aval.dtype, equation.outvars[0].aval.dtype):
                return None
        if hasattr(source, "val") or source not in indices:
            return None
        found.append(UnchangedArgument(argument=indices[source], shape=tuple(result.aval.shape)))
    return found
