"""Regular expressions by RE2, as Cloud Logging has them: no pattern takes longer than linear time in the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lockstep.errors import InvalidInputError

MEMORY_BYTES: Final = 1024 * 1024
"""What one pattern may take while it is applied; beyond it RE2 is slower, still in linear time."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Returns a function that says whether a pattern occurs in a text, in the text's own case.

    Raises:
        InvalidInputError: RE2 does not take the pattern.
    """
    # RE2 has no types. Imported here: it would add 10 ms to the start of every command, and few filters have patterns.
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
