"""Taking secrets out of what a program prints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, final

STAND_IN: Final = b"***"
MIN_BYTES: Final = 8
"""A line of a secret that is shorter stays: a brace of a key file is no secret."""


@final
class Redactor:
    """Puts three stars in the place of secrets; of a secret of several lines, in the place of each.

    Only the very bytes are found: what a program encodes or takes apart is not.

    Args:
        secrets: their values.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        lines = {line.strip().encode() for secret in secrets for line in (secret, *secret.splitlines())}
        # The longest first, so that one that another one begins with does not leave the other's end.
        kept = sorted((line for line in lines if len(line) >= MIN_BYTES), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(line) for line in kept)) if kept else None
        self.longest_bytes = len(kept[0]) if kept else 0

    def redact(self, data: bytes) -> bytes:
        """Returns output without the secrets."""
        return data if self._pattern is None else self._pattern.sub(STAND_IN, data)

    def redact_text(self, text: str) -> str:
        """Returns text without the secrets."""
        return text if self._pattern is None else self.redact(text.encode()).decode()
