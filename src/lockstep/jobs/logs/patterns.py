"""Compiles regular expressions with RE2, as Cloud Logging does: matching takes time linear in the text's length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lockstep.errors import InvalidInputError

MEMORY_BYTES: Final = 1024 * 1024
"""The memory limit of one pattern while it is matched. Beyond it, RE2 is slower, but still linear."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Returns a function that tells whether a text contains a match of a pattern, respecting case.

    Raises:
        InvalidInputError: If RE2 rejects the pattern.
    """
    # re2 has no types. It is imported here because the import would add 10 ms to the start of every command, and few
    # filters have patterns.
    import re2  # pyright: ignore

    library: Any = re2
    options = library.Options()
    options.max_mem = MEMORY_BYTES
    options.log_errors = False
    try:
        search: Callable[[str], object] = library.compile(pattern, options).search
    except library.error as error:
        reason = error.args[0].decode(errors="replace") if error.args else "it is too large"
        raise InvalidInputError(
            f"not a regular expression: {reason}", received=pattern, allowed="RE2's syntax, which has no look-around"
        ) from None
    return lambda text: search(text) is not None
