"""The state of a compiled step of ``fit``, in a form that Keras does not wrap.

Keras's loop assigns the state to the model after each step. Keras wraps lists that are assigned to a model, and every
value in them, which takes longer than the step of a small model.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, final

import jax


@final
@jax.tree_util.register_pytree_node_class
class StateGroup:
    """The values of some of a model's variables: a list that JAX knows as a pytree.

    Args:
        values: the values.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """Returns the values, for JAX."""
        return self._values, None

    @classmethod
    def tree_unflatten(cls, aux_data: None, children: Iterable[Any]) -> StateGroup:
        """Returns a group of values, for JAX.

        Args:
            aux_data: always None.
            children: the values.
        """
        del aux_data
        return cls(children)
