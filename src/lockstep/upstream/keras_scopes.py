"""Keras's stateless and symbolic scopes: which one is entered, and which variables still need initial values."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import initialize_all_variables

__all__ = [
    "enclosing_scope",
    "has_uninitialized_variables",
    "in_stateless_scope",
    "in_symbolic_scope",
    "initialize_all_variables",
    "stateless_scope",
]


def stateless_scope() -> Any:
    """Returns the innermost `keras.StatelessScope` that this thread has entered, or None."""
    return get_stateless_scope()


def enclosing_scope(scope: Any) -> Any:
    """Returns the stateless scope that was current when `scope` was entered, or None."""
    return scope.original_scope


def has_uninitialized_variables() -> bool:
    """Whether variables were created within a stateless scope and still need their initial values."""
    return bool(global_state.get_global_attribute("uninitialized_variables"))
