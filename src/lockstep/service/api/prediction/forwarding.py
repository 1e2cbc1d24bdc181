"""Sends requests for predictions on to prediction servers, over connections that stay open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import aiohttp

from lockstep.errors import ModelError, UnavailableError
from lockstep.service.prediction.routing import ServerAddress
from lockstep.serving.answers import MAX_ANSWER_BYTES, read_answer
from lockstep.tensors import HEADER_LENGTH

CONNECT_S: Final = 3.0
"""How long a connection to a prediction server may take, in seconds. Then another server is tried."""
SILENCE_S: Final = 60.0
"""How long a prediction server may send nothing, in seconds."""
_KEPT_HEADERS: Final = ("retry-after", HEADER_LENGTH)
KEEP_OPEN_S: Final = 2.0
"""How long an unused connection stays open, in seconds. A prediction server closes it after 5 s. A request that is sent
at that moment would be lost."""


class NotReceivedError(Exception):
    """A prediction server cannot be reached, so another one may be sent the request."""


@final
@dataclass(frozen=True, kw_only=True)
class ServerRequest:
    """A request to a prediction server.

    Attributes:
        method: the HTTP method.
        path: the path at the server.
        body: the body.
        headers: the headers of the client's request that the server gets.
    """

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """The response of a prediction server.

    Attributes:
        status: the HTTP status.
        content: the body.
        headers: the headers that the client gets.
    """

    status: int
    content: bytes
    headers: Mapping[str, str]


def connect_to_servers() -> aiohttp.ClientSession:
    """Returns a pool of connections to prediction servers. They are on the nodes, so proxy variables are ignored."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_OPEN_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


async def send_to_server(
    session: aiohttp.ClientSession, server: ServerAddress, request: ServerRequest, *, model: str
) -> Answer:
    """Sends a request to a prediction server, and returns its response.

    Args:
        session: the pool of connections.
        server: the server.
        request: the request.
        model: the name of the model, for messages.

    Raises:
        NotReceivedError: If the server cannot be reached. It has just ended, or its node has.
        UnavailableError: If the server ends or hangs before it has answered.
        ModelError: If the response is too long.
    """
    own = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
    try:
        async with session.request(
            request.method,
            f"{server.url}{request.path}",
            data=request.body,
            headers={**request.headers, **own},
            allow_redirects=False,
        ) as answer:
            content = await _read(answer, model=model)
            found = {name: answer.headers.get(name, "") for name in _KEPT_HEADERS}
            # A package in the server may answer with anything. Of these headers, it may only send numbers.
            kept = {name: value for name, value in found.items() if value.isascii() and value.isdigit()}
            return Answer(status=answer.status, content=content, headers=kept)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotReceivedError from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UnavailableError(
            f"a prediction server of model {model} ended or did not answer: {type(error).__name__}",
            action="try again; the service replaces it",
        ) from error


async def _read(answer: aiohttp.ClientResponse, *, model: str) -> bytes:
    content = await read_answer(answer)
    if content is None:
        raise ModelError(
            f"the answer of model {model} is too long",
            allowed=f"{MAX_ANSWER_BYTES} bytes",
            action="send fewer instances at a time",
        )
    return content
