"""Signs webhooks as Standard Webhooks says, so that its libraries verify them: https://www.standardwebhooks.com."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from lockstep.errors import InvalidInputError

PREFIX: Final = "whsec_"
MIN_BYTES: Final = 24
MAX_BYTES: Final = 64


def parse_key(secret: str, *, what: str) -> bytes:
    """Returns the key that a secret stands for.

    Args:
        secret: ``whsec_`` and the key in base64.
        what: names the secret in errors, which do not repeat it.

    Raises:
        InvalidInputError: it has another form.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not (secret.startswith(PREFIX) and MIN_BYTES <= len(key) <= MAX_BYTES):
        raise InvalidInputError(
            what,
            allowed=f"{PREFIX} and the base64 of {MIN_BYTES} to {MAX_BYTES} bytes",
            action=f'make one with `echo "{PREFIX}$(openssl rand -base64 32)"`',
        )
    return key


def sign(body: bytes, *, message_id: str, timestamp: int, key: bytes) -> str:
    """Returns the value of the header ``webhook-signature``.

    Args:
        body: what is sent.
        message_id: the header ``webhook-id``.
        timestamp: the header ``webhook-timestamp``, seconds since 1970 UTC.
        key: what `parse_key` returned.
    """
    digest = hmac.digest(key, b"%s.%d.%s" % (message_id.encode(), timestamp, body), hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"
