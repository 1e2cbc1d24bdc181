"""Who asks for a page: a session in a cookie, begun with a key or with a link that is opened once."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from lockstep.errors import AuthenticationError, PermissionDeniedError
from lockstep.jobs.security.access import HOME_PRINCIPAL, Principal, Scope
from lockstep.service.api.gate import is_on_this_machine
from lockstep.service.security.keys import Authenticator
from lockstep.service.security.sign_in_links import SignInLinks
from lockstep.service.store import SessionStore

COOKIE: Final = "lockstep_session"
LASTS_S: Final = 12 * 3600.0
"""How long a session is valid, in seconds."""
RECALLED_S: Final = 5.0
"""How long a session that was found is used without looking it up again, in seconds. Then a revoked key is noticed."""
MAX_RECALLED: Final = 1000
CSRF_HEADER: Final = "x-csrf-token"
CSRF_FIELD: Final = "csrf_token"


@final
@dataclass(frozen=True, kw_only=True)
class Session:
    """The session of a request.

    Attributes:
        principal: who asks.
        csrf_token: what a request that changes something has to contain; "" in parts of pages that many readers share.
    """

    principal: Principal
    csrf_token: str


@final
class SignIns:
    """Begins, finds and ends sessions. Thread-safe. Its methods read the database, and block.

    Args:
        authenticator: the authenticator of keys.
        sessions: the store of sessions.
        links: the links that open the console.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        sessions: SessionStore,
        links: SignInLinks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authenticator = authenticator
        self._sessions = sessions
        self._links = links
        self._clock = clock
        self._recalled: dict[tuple[str, bool], tuple[Session, float]] = {}

    def find(self, request: Request) -> Session:
        """Returns the session of a request.

        Raises:
            AuthenticationError: If it has none, or one that is not valid any more.
        """
        token = request.cookies.get(COOKIE, "")
        record = self._sessions.find(token) if token else None
        if record is None:
            raise AuthenticationError("you are not signed in")
        principal = self._principal(request, key_id=record.key_id)
        session = Session(principal=principal, csrf_token=_csrf_token(token))
        if len(self._recalled) >= MAX_RECALLED:
            self._recalled.clear()
        self._recalled[token, is_on_this_machine(request.scope)] = (session, self._clock() + RECALLED_S)
        return session

    def recall(self, request: Request) -> Session | None:
        """Returns the session of a request if it was found within the last `RECALLED_S` seconds. Does not block."""
        found = self._recalled.get((request.cookies.get(COOKIE, ""), is_on_this_machine(request.scope)))
        return None if found is None or found[1] < self._clock() else found[0]

    def begin_with_key(self, request: Request, key: str) -> str:
        """Begins a session with a key, or the home's token, and returns its token.

        Raises:
            AuthenticationError: If the key is not valid.
            PermissionDeniedError: If the key is only for requests for predictions.
        """
        is_here = is_on_this_machine(request.scope)
        principal = self._authenticator.authenticate(f"Bearer {key.strip()}", is_on_this_machine=is_here)
        return self._begin(principal)

    def begin_with_link(self, request: Request, code: str) -> str:
        """Begins a session with the code of a link, and returns its token.

        Raises:
            AuthenticationError: If the code is not valid, or its key is not any more.
        """
        is_valid, key_id = self._links.use(code)
        if not is_valid:
            raise AuthenticationError(
                "this link was opened before, or is too old", action="make another one with `lockstep open`"
            )
        return self._begin(self._principal(request, key_id=key_id))

    def end(self, request: Request) -> None:
        """Ends the session of a request."""
        token = request.cookies.get(COOKIE, "")
        if token:
            self._sessions.end(token)
            for is_here in (True, False):
                self._recalled.pop((token, is_here), None)

    def _begin(self, principal: Principal) -> str:
        if principal.scope is Scope.CALLER:
            raise PermissionDeniedError(
                f"the key of {principal.label} is for requests for predictions alone",
                action="sign in with a key of scope viewer, submitter or operator",
            )
        token = secrets.token_urlsafe(32)
        self._sessions.begin(token, key_id=principal.key_id, lasts_s=LASTS_S)
        return token

    def _principal(self, request: Request, *, key_id: str | None) -> Principal:
        if key_id is not None:
            return self._authenticator.principal_of_key(key_id)
        if not is_on_this_machine(request.scope):
            raise AuthenticationError("the home's token is for the service's own machine", action="sign in with a key")
        return HOME_PRINCIPAL


def check_origin(request: Request) -> None:
    """Checks that a request that changes something comes from a page of the console.

    Raises:
        PermissionDeniedError: If it comes from another site.
    """
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    fetched = request.headers.get("sec-fetch-site", "same-origin")
    if origin is None or urlsplit(origin).netloc != host or fetched != "same-origin":
        raise PermissionDeniedError("this request does not come from the console")


def check_csrf(session: Session, given: str) -> None:
    """Checks the token of a request that changes something.

    Raises:
        PermissionDeniedError: If it is not the session's.
    """
    if not hmac.compare_digest(session.csrf_token.encode(), given.encode()):
        raise PermissionDeniedError("this page is of another session", action="reload it, and try again")


def set_cookie(response: Response, token: str, *, has_tls: bool) -> None:
    """Has the browser keep a session's token, which no script can read."""
    response.set_cookie(COOKIE, token, max_age=int(LASTS_S), httponly=True, samesite="lax", secure=has_tls, path="/")


def delete_cookie(response: Response) -> None:
    """Has the browser forget the session."""
    response.delete_cookie(COOKIE, httponly=True, samesite="lax", path="/")


def _csrf_token(token: str) -> str:
    return hmac.new(token.encode(), b"csrf", "sha256").hexdigest()
