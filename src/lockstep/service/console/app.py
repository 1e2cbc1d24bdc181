"""The ASGI application of the console: its paths, who may open them, and errors as pages."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, final
from urllib.parse import quote

import htpy as h
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockstep.errors import AuthenticationError, LockstepError, NotFoundError, UnavailableError
from lockstep.service.console.asking import Ask, Asking
from lockstep.service.console.assets_served import serve_asset
from lockstep.service.console.event_streams import EventStreams, Growth
from lockstep.service.console.forms import Form, read_form
from lockstep.service.console.layout import page
from lockstep.service.console.live import LivePart, LiveParts, is_kept_while_unchanged, shared_view
from lockstep.service.console.pages.signin import signin_page
from lockstep.service.console.paths import (
    ASKS,
    CHANGES,
    PARTS,
    STAMPS,
    STREAMS,
    VIEWS,
    WITH_FILES,
    Follow,
    Render,
    Stamp,
)
from lockstep.service.console.signing_in import (
    COOKIE,
    CSRF_FIELD,
    CSRF_HEADER,
    Session,
    SignIns,
    check_csrf,
    check_origin,
    delete_cookie,
    set_cookie,
)
from lockstep.service.context import ServiceContext
from lockstep.service.problems import Part
from lockstep.service.security.keys import Authenticator
from lockstep.service.store import DATABASE_FAULTS, describe_fault
from lockstep.service.threads import Pool, pool_of, run_in

HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@final
class Console:
    """Serves the pages.

    Args:
        context: the parts of the service.
        api: the application of the REST interface.
    """

    def __init__(self, context: ServiceContext, *, api: FastAPI) -> None:
        self._context = context
        self._api = api
        authenticator = Authenticator(home_token=context.token, keys=context.keys)
        self._sign_ins = SignIns(authenticator=authenticator, sessions=context.sessions, links=context.sign_in_links)
        self._parts = LiveParts()
        self._streams = EventStreams(is_ending=context.ending.is_set)
        own = (
            Route("/", _to_jobs),
            Route("/assets/{digest}/{name}", serve_asset),
            Route("/signin", self._show_signin),
            Route("/signin", self._sign_in, methods=["POST"]),
            Route("/enter", self._enter),
            Route("/signout", self._sign_out, methods=["POST"]),
        )
        views = (Route(path, self._page(render), methods=["GET"]) for path, render in VIEWS.items())
        parts = (
            Route(path, self._part(render, fresh_s, stamp_of=STAMPS.get(path)), methods=["GET"])
            for path, (render, fresh_s) in PARTS.items()
        )
        streams = (Route(path, self._stream(follow), methods=["GET"]) for path, follow in STREAMS.items())
        changes = (
            Route(path, self._page(render, takes_files=path in WITH_FILES), methods=["POST"])
            for path, render in CHANGES.items()
        )
        asks = (Route(path, self._asks(ask, method=method), methods=[method]) for path, (method, ask) in ASKS.items())
        self.app: ASGIApp = _Headers(
            Starlette(
                routes=[*own, *views, *parts, *streams, *changes, *asks],
                exception_handlers={LockstepError: _on_error, 404: _on_missing},
            )
        )

    async def _run(self, function: Callable[..., Any], *arguments: Any, pool: Pool = Pool.SIGN_IN) -> Any:
        """Runs a function in a thread of a pool.

        Raises:
            UnavailableError: If the database cannot be used.
        """
        try:
            return await run_in(pool, function, *arguments)
        except DATABASE_FAULTS as error:
            fault = describe_fault(error)
            self._context.problems.note(Part.DATABASE, fault)
            raise UnavailableError(f"the database cannot be used: {fault}", action="try again") from error

    def _page(self, render: Render, *, takes_files: bool = False) -> Callable[[Request], Awaitable[Response]]:
        """Returns what serves a page, or changes something, to those who are signed in."""
        pool = pool_of(render) or Pool.CONSOLE

        async def serve(request: Request) -> Response:
            try:
                session = await self._run(self._sign_ins.find, request)
                if request.method == "POST":  # the form is read after this, because it may be large
                    await self._admit_form(request, session, takes_files=takes_files)
                return await self._run(lambda: _respond(render(request, session, self._context)), pool=pool)
            except AuthenticationError:
                return _to_signin(request)

        return serve

    async def _admit_form(self, request: Request, session: Session, *, takes_files: bool) -> Form:
        """Reads the form of a signed-in person, checks that it is of this console, and puts it into the request."""
        check_origin(request)
        form: Form = await read_form(request, takes_files=takes_files)
        check_csrf(session, request.headers.get(CSRF_HEADER) or form.fields.get(CSRF_FIELD, ""))
        request.state.form = form
        return form

    def _part(
        self, render: Render, fresh_s: float, *, stamp_of: Stamp | None
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns what serves a live part of a page. Most looks end without a thread and without the database."""
        pool = pool_of(render) or Pool.CONSOLE

        async def serve(request: Request) -> Response:
            try:
                session = self._sign_ins.recall(request) or await self._run(self._sign_ins.find, request)
            except AuthenticationError:
                return _to_signin(request)
            view = shared_view(session)

            def render_part(before: LivePart | None) -> LivePart:
                stamp = None if stamp_of is None else stamp_of(request, view, self._context)
                if before is not None and before.stamp == stamp:
                    return before
                made = _respond(render(request, view, self._context))
                return LivePart.of(made, stamp=stamp if is_kept_while_unchanged(request) else None)

            async def make(before: LivePart | None) -> LivePart:
                return await self._run(render_part, before, pool=pool)

            key = (view.principal, request.url.path, request.url.query)
            return (await self._parts.get(key, make, fresh_s=fresh_s)).answer(request)

        return serve

    def _stream(self, follow: Follow) -> Callable[[Request], Awaitable[Response]]:
        """Returns what serves a stream of what grows, to those who are signed in."""
        pool = pool_of(follow) or Pool.CONSOLE

        async def serve(request: Request) -> Response:
            try:
                view = shared_view(await self._run(self._sign_ins.find, request))
            except AuthenticationError:
                return _to_signin(request)

            async def look(position: str) -> Growth:
                return await self._run(follow, request, view, self._context, position, pool=pool)

            async def admit() -> None:
                if self._sign_ins.recall(request) is None:
                    await self._run(self._sign_ins.find, request)

            shown = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
            return self._streams.respond(
                (view.principal, request.url.path, tuple(shown)),
                look,
                position=request.headers.get("last-event-id") or request.query_params.get("cursor", ""),
                session=request.cookies[COOKIE],
                admit=admit,
            )

        return serve

    def _asks(self, ask: Ask, *, method: str) -> Callable[[Request], Awaitable[Response]]:
        """Returns what serves a page that waits for a prediction server, to those who are signed in."""

        async def serve(request: Request) -> Response:
            try:
                session = await self._run(self._sign_ins.find, request)
            except AuthenticationError:
                return _to_signin(request)
            form = await self._admit_form(request, session, takes_files=True) if method == "POST" else Form()
            asking = Asking(request=request, session=session, context=self._context, form=form, api=self._api)
            try:
                render = await ask(asking)
            except DATABASE_FAULTS as error:
                raise UnavailableError(f"the database cannot be used: {describe_fault(error)}") from error
            return await self._run(lambda: _respond(render()), pool=Pool.CONSOLE)

        return serve

    async def _show_signin(self, request: Request) -> Response:
        return HTMLResponse(str(signin_page(then=_own_path(request.query_params.get("then", "/")))))

    async def _sign_in(self, request: Request) -> Response:
        form = (await read_form(request)).fields
        then = _own_path(form.get("then", "/"))
        try:
            check_origin(request)
            token = await self._run(self._sign_ins.begin_with_key, request, form.get("key", ""))
        except LockstepError as error:
            return HTMLResponse(str(signin_page(then=then, error=str(error))), error.http_status)
        return _signed_in(token, request, then=then)

    async def _enter(self, request: Request) -> Response:
        """Opens a link that signs in. The browser forgets its code, because it is sent on at once."""
        then = _own_path(request.query_params.get("then", "/"))
        try:
            token = await self._run(self._sign_ins.begin_with_link, request, request.query_params.get("code", ""))
        except LockstepError as error:
            return HTMLResponse(str(signin_page(then=then, error=str(error))), error.http_status)
        return _signed_in(token, request, then=then)

    async def _sign_out(self, request: Request) -> Response:
        form = (await read_form(request)).fields

        def end() -> None:
            session = self._sign_ins.find(request)
            check_origin(request)
            check_csrf(session, form.get(CSRF_FIELD, ""))
            self._sign_ins.end(request)

        with contextlib.suppress(AuthenticationError):
            await self._run(end)
        response = RedirectResponse("/signin", 303)
        delete_cookie(response)
        return response


def _respond(made: h.Node | Response) -> Response:
    return made if isinstance(made, Response) else HTMLResponse(str(h.fragment[made]))


async def _to_jobs(_request: Request) -> Response:
    return RedirectResponse("/jobs")


def _signed_in(token: str, request: Request, *, then: str) -> Response:
    response = RedirectResponse(then, 303)
    set_cookie(response, token, has_tls=request.url.scheme == "https")
    return response


def _to_signin(request: Request) -> Response:
    """Asks for a key, and then goes on with the page. A part of a page has the whole page do so."""
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"hx-redirect": "/signin"})
    target = "/signin" if request.method != "GET" or here == "/" else f"/signin?then={quote(here, safe='')}"
    return RedirectResponse(target, 303)


def _own_path(path: str) -> str:
    """Returns a path of the console, never the address of another site."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_own else "/"


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LockstepError)
    if "hx-request" in request.headers:
        return HTMLResponse(str(h.p(".error", role="alert")[str(error)]), error.http_status)
    shown = page(h.p(".error", role="alert")[str(error)], h.p[h.a(href="/")["To the jobs"]], title="This did not work")
    return HTMLResponse(str(shown), error.http_status)


async def _on_missing(request: Request, _error: Exception) -> Response:
    return await _on_error(request, NotFoundError("there is no such page"))


@final
class _Headers:
    """Adds what a browser may do with a page to each response that does not say it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["scheme"] == "https":
                    headers.setdefault("strict-transport-security", "max-age=31536000")
            await send(message)

        await self._app(scope, receive, send_with_headers)
