"""Whether and what JAX traces, and which inputs of a traced program are used."""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

from jax._src import core
from jax.interpreters import partial_eval


def is_tracing() -> bool:
    """Whether a function is being traced in this thread. JAX's public interface only tells it for values."""
    return not core.trace_state_clean()


def current_trace() -> Any:
    """Returns what tells traces apart: equal within one trace, and different within a loop's or a branch's own trace.

    It is public, but JAX moved it from `jax.core` to `jax.extend.core` in its version 0.10.
    """
    return core.get_opaque_trace_state(convention="flax")


def used_inputs(jaxpr: Any) -> list[bool]:
    """Returns, for each input of a program, whether any output depends on it.

    Args:
        jaxpr: a ``jax.extend.core.Jaxpr``.
    """
    _, is_used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return list(is_used)
