"""Separates the arguments of a call into arrays, and constants that become part of the program."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

from lockstep.errors import InvalidInputError


@final
@dataclass(frozen=True, kw_only=True)
class CallArguments:
    """The arguments of a call, separated into arrays and constants."""

    arrays: list[Any]
    positions: tuple[int, ...]
    constants: tuple[tuple[int, Any], ...]
    treedef: Any

    @property
    def key(self) -> Hashable:
        """The key of the compiled program; equal for calls that can run the same program."""
        specs = tuple((np.shape(array), array.dtype) for array in self.arrays)
        # 1, 1.0 and True are equal, but not the same constant.
        constants = tuple((position, type(value), value) for position, value in self.constants)
        return self.treedef, self.positions, specs, constants

    def rebuild(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and keyword arguments, with other arrays in place of the original ones."""
        leaves = [None] * (len(self.positions) + len(self.constants))
        for position, array in zip(self.positions, arrays, strict=True):
            leaves[position] = array
        for position, value in self.constants:
            leaves[position] = value
        return self.treedef.unflatten(leaves)


def split_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], *, name: str) -> CallArguments:
    """Separates the arguments of a call.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments.
        name: the function's name, for errors.

    Raises:
        InvalidInputError: an argument is neither an array nor hashable.
    """
    leaves, treedef = jax.tree.flatten((args, kwargs))
    arrays, positions, constants = [], [], []
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, np.ndarray | np.generic | jax.Array):
            arrays.append(leaf)
            positions.append(position)
            continue
        try:
            hash(leaf)
        except TypeError:
            raise InvalidInputError(
                f"an argument of {name} is neither an array nor a constant",
                received=type(leaf).__name__,
                allowed="arrays, PerReplica values, hashable objects, and containers of them",
                action="pass its arrays",
            ) from None
        constants.append((position, leaf))
    return CallArguments(arrays=arrays, positions=tuple(positions), constants=tuple(constants), treedef=treedef)
