"""Signs webhooks according to Standard Webhooks (https://www.standardwebhooks.com), whose libraries verify them."""

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
    """Returns the signing key in a secret.

    Args:
        secret: ``whsec_`` followed by the key in base64.
        what: the name of the secret in error messages, which do not repeat its value.

    Raises:
        InvalidInputError: If the secret has another form.
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
    """Returns the value of the ``webhook-signature`` header.

    Args:
        body: the body of the message.
        message_id: the value of the ``webhook-id`` header.
        timestamp: the value of the ``webhook-timestamp`` header, in seconds since 1970 UTC.
        key: the signing key, as `parse_key` returns it.
    """
    digest = hmac.digest(key, b"%s.%d.%s" % (message_id.encode(), timestamp, body), hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"
