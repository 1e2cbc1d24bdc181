"""The style sheet, the scripts and the icon of the console, under names that change with their content."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from lockstep.errors import NotFoundError

KINDS: Final = {
    "style.css": "text/css",
    "htmx.js": "text/javascript",
    "hx-sse.js": "text/javascript",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_YEAR_S: Final = 365 * 24 * 3600


@cache
def _content(name: str) -> bytes:
    return (files("lockstep.service.console") / "assets" / name).read_bytes()


@cache
def has_asset(name: str) -> bool:
    """Whether a file is there. Scripts of others are missing if npm could not be reached at the installation."""
    return (files("lockstep.service.console") / "assets" / name).is_file()


@cache
def asset_url(name: str) -> str:
    """Returns the path of a file, which browsers may keep for ever."""
    return f"/assets/{hashlib.sha256(_content(name)).hexdigest()[:16]}/{name}"


async def serve_asset(request: Request) -> Response:
    """Returns a file."""
    name = request.path_params["name"]
    if name not in KINDS or not has_asset(name):
        raise NotFoundError("there is no such file")
    return Response(
        _content(name),
        media_type=KINDS[name],
        headers={"cache-control": f"public, max-age={_YEAR_S}, immutable"},
    )
