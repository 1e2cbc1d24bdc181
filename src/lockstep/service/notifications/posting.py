"""Posts messages to webhooks: to any URL for the operator's webhooks, and only to allowed targets for those of jobs.

For jobs' webhooks, connections use the addresses that were checked, because a second lookup of a name may return
others. They use no proxy, which would look up names itself. Redirects are not followed for either kind.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import httpx

from lockstep.jobs.notifications.webhook_targets import WebhookTargets

LOGGER: Final = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""The timeout for a whole message: otherwise, a receiver that answers slowly could block a thread forever."""
CONNECT_TIMEOUT_S: Final = 3.0
MAX_ADDRESSES: Final = 4
"""The maximum number of a host's addresses that are tried."""
MAX_WARNINGS: Final = 1000
"""The number of warnings that are remembered, so that they are not logged again."""
NO_ALLOWED_ADDRESS: Final = "its name resolves to no address that webhooks may reach"
"""The error for a job's owner. It does not tell whether the name has addresses: the operator's network is private."""


@final
@dataclass(frozen=True, kw_only=True)
class PostResult:
    """What came of a message.

    Attributes:
        status: the HTTP status of the response; None if there was none.
        problem: the reason why the message was not accepted; None if it was.
    """

    status: int | None = None
    problem: str | None = None


Post = Callable[[str, bytes, Mapping[str, str]], PostResult]
"""Sends a body with headers to a URL."""

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host and port; raises OSError if there are none."""


def post(url: str, body: bytes, headers: Mapping[str, str]) -> PostResult:
    """Sends a message to a URL of the operator. Only the status of the response is read."""
    try:
        with (
            httpx.Client(timeout=TIMEOUT_S, verify=_certificates()) as client,
            client.stream("POST", url, content=body, headers=headers) as got,
        ):
            return _answered(got.status_code)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # the last two: certificates, odd hosts
        return PostResult(problem=type(error).__name__)  # its text may hold the URL


def _answered(status: int) -> PostResult:
    return PostResult(status=status, problem=None if 200 <= status < 300 else f"it answered {status}")


def resolve(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host, in the order in which to try them.

    Raises:
        OSError: If the host has no address.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


@final
class RestrictedPost:
    """Posts to URLs that jobs specify, not the operator. Thread-safe.

    Args:
        targets: the allowed targets.
        resolve: looks up the addresses of a host.
        timeout_s: the timeout for a whole message, after its address is known.
    """

    def __init__(self, targets: WebhookTargets, *, resolve: Resolve = resolve, timeout_s: float = TIMEOUT_S) -> None:
        self._targets = targets
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._warned: set[str] = set()

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str]) -> PostResult:
        """Sends a message. Only the status of the response is read."""
        try:
            target = httpx.URL(url)
            addresses = self._addresses(target)
            if not addresses:
                return PostResult(problem=NO_ALLOWED_ADDRESS)
            status = asyncio.run(self._send(target, addresses=addresses, body=body, headers=headers))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # the last: odd hosts
            return PostResult(problem=type(error).__name__)  # its text may hold the URL
        return _answered(status)

    def _addresses(self, target: httpx.URL) -> Sequence[str]:
        host, is_plain = target.raw_host.decode(), target.scheme != "https"
        try:
            found = self._resolve(host, target.port or (80 if is_plain else 443))
        except (OSError, UnicodeError) as error:  # the latter: a part of the name is too long, or empty
            self._warn_once(f"a job's webhook: {host} cannot be looked up: {type(error).__name__}")
            return ()
        allowed = [address for address in found if self._targets.allows(address, host=host, is_plain=is_plain)]
        if not allowed:
            self._warn_once(f"a job's webhook: {host} resolves to {', '.join(found)}, which is not allowed")
        return allowed[:MAX_ADDRESSES]

    def _warn_once(self, text: str) -> None:
        """Logs a warning that only the operator may see, once and not for each of perhaps hundreds of retries."""
        if text in self._warned:
            return
        if len(self._warned) >= MAX_WARNINGS:
            self._warned.clear()
        self._warned.add(text)
        LOGGER.warning("%s", text)

    async def _send(
        self, target: httpx.URL, *, addresses: Sequence[str], body: bytes, headers: Mapping[str, str]
    ) -> int:
        """Sends the message to the first address that accepts a connection; returns the status of the response."""
        timeouts = {"connect": CONNECT_TIMEOUT_S, "read": self._timeout_s, "write": self._timeout_s}
        # Host header and certificate check use the URL's name. Only the connection uses the address.
        named = {**headers, "host": target.netloc.decode()}
        extensions = {"sni_hostname": target.raw_host.decode(), "timeout": timeouts}
        async with asyncio.timeout(self._timeout_s), httpx.AsyncHTTPTransport(verify=_certificates()) as transport:
            for number, address in enumerate(addresses, start=1):
                pinned = target.copy_with(host=address)
                request = httpx.Request("POST", pinned, headers=named, content=body, extensions=extensions)
                try:
                    answer = await transport.handle_async_request(request)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    if number == len(addresses):
                        raise
                else:
                    await answer.aclose()
                    return answer.status_code
        raise AssertionError("there is an address, and its failure was raised")


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Returns the trusted certificates. Cached, because loading them takes longer than sending a message."""
    return httpx.create_ssl_context()
