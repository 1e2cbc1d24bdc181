"""Keys: made from fresh randomness, and recognised when a request carries one."""

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
"""How exactly it is recorded when a key was last used: not each request has to write."""

_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(r"(lsk_[0-9a-f]{12})_[A-Za-z0-9_-]{43}")
"""A key: its public name, which the database looks it up by, and 256 random bits."""


@final
@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A key that was just made.

    Attributes:
        id: its public name.
        secret: the whole key; nobody can find it out again.
    """

    id: str
    secret: str = field(repr=False)


def make_key() -> NewKey:
    """Makes a key, from the system's randomness: the one thing here that no test may choose."""
    key_id = f"lsk_{secrets.token_hex(_ID_BYTES)}"
    return NewKey(id=key_id, secret=f"{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}")


def digest(secret: str) -> str:
    """Returns what is kept of a key: its SHA-256. Of 256 random bits nothing slower would give less away."""
    return hashlib.sha256(secret.encode()).hexdigest()


@final
class Authenticator:
    """Says who a request comes from. Thread-safe; each key is looked up, so that a revoked one is over at once.

    Args:
        home_token: the home's own token.
        keys: the keys.
        clock: seconds since 1970 UTC.
    """

    def __init__(self, *, home_token: str, keys: KeyStore, clock: Callable[[], float] = time.time) -> None:
        self._home_digest = digest(home_token)
        self._keys = keys
        self._clock = clock

    def authenticate(self, authorization: str, *, is_on_this_machine: bool) -> Principal:
        """Returns who a request comes from.

        Args:
            authorization: the header of this name; "" if there is none.
            is_on_this_machine: whether the request does; the home's token is for this machine alone.

        Raises:
            AuthenticationError: it carries no key, or one that is not valid.
            UnavailableError: nobody can say, since the database cannot be read.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.isascii():
            raise _no_key()
        found = digest(token)
        if hmac.compare_digest(found, self._home_digest):
            if not is_on_this_machine:
                raise AuthenticationError(
                    "the home's token is for the service's own machine", action="use a key; see `lockstep keys create`"
                )
            return HOME_PRINCIPAL
        named = _KEY.fullmatch(token)
        record = None if named is None else self._find(named[1])
        if record is None or not hmac.compare_digest(found, record.digest):
            raise _no_key()
        now_s = self._clock()
        _check_valid(record, now_s=now_s)
        self._note_use(record, now_s=now_s)
        return record.principal

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
        except SQLAlchemyError as error:  # a full disk, say: what was asked for may need no writing
            LOGGER.warning("the use of key %s could not be recorded: %s", record.id, type(error).__name__)


def _no_key() -> AuthenticationError:
    return AuthenticationError(
        "the request carries no valid key",
        action="send one as 'Authorization: Bearer KEY': the content of the home's token file, or an API key",
    )


def _check_valid(record: KeyRecord, *, now_s: float) -> None:
    """Tells whoever holds a key that it is over.

    Raises:
        AuthenticationError: it is revoked, or expired.
    """
    what, time_s = "was revoked", record.revoke_time_s
    if time_s is None and record.expire_time_s is not None and record.expire_time_s <= now_s:
        what, time_s = "expired", record.expire_time_s
    if time_s is not None:
        when = datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="seconds")
        raise AuthenticationError(f"key {record.id} of {record.label} {what} at {when}", action="ask for a new one")
