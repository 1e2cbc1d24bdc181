"""Removes secrets from a program's output."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, final

STAND_IN: Final = b"***"
MIN_BYTES: Final = 8
"""The minimum size of a redacted line, in bytes: a shorter line of a secret, such as a brace, is not secret."""


@final
class Redactor:
    """Replaces each secret with three stars; for a secret of several lines, each of its lines.

    Only the exact bytes are found, and not what a program encodes or splits.

    Args:
        secrets: the values of the secrets.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        lines = {line.strip().encode() for secret in secrets for line in (secret, *secret.splitlines())}
        # The longest first, so that a secret that is the beginning of another one does not leave the other's end.
        kept = sorted((line for line in lines if len(line) >= MIN_BYTES), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(line) for line in kept)) if kept else None
        self.longest_bytes = len(kept[0]) if kept else 0

    def redact(self, data: bytes) -> bytes:
        """Returns data without the secrets."""
        return data if self._pattern is None else self._pattern.sub(STAND_IN, data)

    def redact_text(self, text: str) -> str:
        """Returns text without the secrets."""
        return text if self._pattern is None else self.redact(text.encode()).decode()
