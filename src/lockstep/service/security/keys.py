"""Generates API keys, and authenticates requests by them."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, final

from sqlalchemy.exc import SQLAlchemyError

from lockstep.errors import AuthenticationError, UnavailableError
from lockstep.jobs.security.access import HOME_PRINCIPAL, Principal
from lockstep.service.store import KeyRecord, KeyStore

LOGGER: Final = logging.getLogger(__name__)

USE_INTERVAL_S: Final = 60.0
"""The precision of a key's time of last use, so that not every request writes to the database."""

_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(r"(lsk_[0-9a-f]{12})_[A-Za-z0-9_-]{43}")
"""The form of a key: its public name, by which it is found in the database, and 256 random bits."""


@final
@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A new key.

    Attributes:
        id: the public name of the key.
        secret: the whole key, which cannot be recovered later.
    """

    id: str
    secret: str = field(repr=False)


def make_key() -> NewKey:
    """Generates a key from the system's randomness, which tests cannot replace on purpose."""
    key_id = f"lsk_{secrets.token_hex(_ID_BYTES)}"
    return NewKey(id=key_id, secret=f"{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}")


def digest(secret: str) -> str:
    """Returns the stored digest of a key: its SHA-256. For 256 random bits, a slower hash would add no protection."""
    return hashlib.sha256(secret.encode()).hexdigest()


@final
class Authenticator:
    """Authenticates requests. Thread-safe. Each request looks up its key, so revoking a key has immediate effect.

    Args:
        home_token: the home's token.
        keys: the store of keys.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(self, *, home_token: str, keys: KeyStore, clock: Callable[[], float] = time.time) -> None:
        self._home_digest = digest(home_token)
        self._keys = keys
        self._clock = clock

    def authenticate(self, authorization: str, *, is_on_this_machine: bool) -> Principal:
        """Returns the principal of a request.

        Args:
            authorization: the value of the header ``Authorization``; "" if there is none.
            is_on_this_machine: whether the request comes from this machine. The home's token is valid only then.

        Raises:
            AuthenticationError: If the request has no key, or a key that is not valid.
            UnavailableError: If the database cannot be read.
        """
        home = self.authenticate_home(authorization, is_on_this_machine=is_on_this_machine)
        if home is not None:
            return home
        token = authorization.partition(" ")[2]
        found = digest(token)
        named = _KEY.fullmatch(token)
        record = None if named is None else self._find(named[1])
        if record is None or not hmac.compare_digest(found, record.digest):
            raise _no_key()
        now_s = self._clock()
        _check_valid(record, now_s=now_s)
        self._note_use(record, now_s=now_s)
        return record.principal

    def principal_of_key(self, key_id: str) -> Principal:
        """Returns the principal of a key that was shown before, by its public name.

        Raises:
            AuthenticationError: If the key is not valid any more.
            UnavailableError: If the database cannot be read.
        """
        record = self._find(key_id)
        if record is None:
            raise _no_key()
        _check_valid(record, now_s=self._clock())
        return record.principal

    def authenticate_home(self, authorization: str, *, is_on_this_machine: bool) -> Principal | None:
        """Returns the principal of a request that has the home's token, without reading the database.

        Args:
            authorization: as for `authenticate`.
            is_on_this_machine: as for `authenticate`.

        Returns:
            The principal; None if the request has something else, which may be a key.

        Raises:
            AuthenticationError: If the request has nothing that may be a key, or comes from elsewhere with the home's
                token.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.isascii():
            raise _no_key()
        if not hmac.compare_digest(digest(token), self._home_digest):
            return None
        if not is_on_this_machine:
            raise AuthenticationError(
                "the home's token is for the service's own machine", action="use a key; see `lockstep keys create`"
            )
        return HOME_PRINCIPAL

    def _find(self, key_id: str) -> KeyRecord | None:
        try:
            return self._keys.find(key_id)
        except SQLAlchemyError as error:
            raise UnavailableError(
                f"keys cannot be looked up: the database does not answer ({type(error).__name__})", action="try again"
            ) from error

    def _note_use(self, record: KeyRecord, *, now_s: float) -> None:
        if record.last_used_time_s is not None and now_s - record.last_used_time_s < USE_INTERVAL_S:
            return
        try:
            self._keys.note_use(record.id)
        except SQLAlchemyError as error:  # such as a full disk: the request may not need to write
            LOGGER.warning("the use of key %s could not be recorded: %s", record.id, type(error).__name__)


def _no_key() -> AuthenticationError:
    return AuthenticationError(
        "the request carries no valid key",
        action="send one as 'Authorization: Bearer KEY': the content of the home's token file, or an API key",
    )


def _check_valid(record: KeyRecord, *, now_s: float) -> None:
    """Checks that a key is valid.

    Raises:
        AuthenticationError: If the key was revoked or has expired; the message says when.
    """
    what, time_s = "was revoked", record.revoke_time_s
    if time_s is None and record.expire_time_s is not None and record.expire_time_s <= now_s:
        what, time_s = "expired", record.expire_time_s
    if time_s is not None:
        when = datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="seconds")
        raise AuthenticationError(f"key {record.id} of {record.label} {what} at {when}", action="ask for a new one")
