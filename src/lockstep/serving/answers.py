"""Reads the responses of servers that run code of a user's own, which may make them arbitrarily long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import aiohttp

MAX_ANSWER_BYTES: Final = 512 * 2**20
"""The maximum size of a response, in bytes."""


async def read_answer(answer: aiohttp.ClientResponse) -> bytes | None:
    """Returns the body of a response; None if it is longer than `MAX_ANSWER_BYTES`."""
    parts: list[bytes] = []
    num_bytes = 0
    async for part in answer.content.iter_any():
        parts.append(part)
        num_bytes += len(part)
        if num_bytes > MAX_ANSWER_BYTES:
            return None
    return parts[0] if len(parts) == 1 else b"".join(parts)
