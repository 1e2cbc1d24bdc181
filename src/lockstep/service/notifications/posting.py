"""Posts messages to webhooks: to the operator's as they are, to those of jobs only where they may lead.

For jobs, the addresses that were checked are the ones that are connected to: a second lookup of a name may give others.
No proxy is used, which would look names up itself. Redirections are not followed for either.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

import httpx

from lockstep.jobs.notifications.webhook_targets import WebhookTargets

LOGGER: Final = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""For all of a message: a receiver that answers a byte now and then would otherwise hold a thread for ever."""
CONNECT_TIMEOUT_S: Final = 3.0
MAX_ADDRESSES: Final = 4
"""How many of a name's addresses are tried."""
MAX_SAID: Final = 1000
"""How many lines of the log are remembered, so that they are not written again."""
NOWHERE: Final = "its name leads to no address that webhooks may reach"
"""Says neither which address it was nor whether there is one: the operator's names are nobody else's business."""

Post = Callable[[str, bytes, Mapping[str, str]], str | None]
"""Sends a body with headers to a URL; returns why it was not accepted, None if it was."""

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host; raises OSError where it has none."""


def post(url: str, body: bytes, headers: Mapping[str, str]) -> str | None:
    """Sends a message to a URL of the operator's choice. Nothing of the answer but its status is read."""
    try:
        with (
            httpx.Client(timeout=TIMEOUT_S) as client,
            client.stream("POST", url, content=body, headers=headers) as got,
        ):
            return None if got.is_success else f"it answered {got.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # the last two: certificates, odd hosts
        return type(error).__name__  # its text may hold the URL


def resolve(host: str, port: int) -> Sequence[str]:
    """Returns the addresses of a host, in the order in which they are to be tried.

    Raises:
        OSError: it has none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


@final
class GuardedPost:
    """Posts to URLs that were not the operator's to choose. Thread-safe.

    Args:
        targets: where they may lead.
        resolve: looks names up.
        timeout_s: how long a message may take in all, once its address is known.
    """

    def __init__(self, targets: WebhookTargets, *, resolve: Resolve = resolve, timeout_s: float = TIMEOUT_S) -> None:
        self._targets = targets
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._said: set[str] = set()

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str]) -> str | None:
        """Sends a message; returns why it was not taken, None if it was. Nothing but the status is read."""
        try:
            target = httpx.URL(url)
            addresses = self._addresses(target)
            if not addresses:
                return NOWHERE
            status = asyncio.run(self._send(target, addresses=addresses, body=body, headers=headers))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:  # the last: odd hosts
            return type(error).__name__  # its text may hold the URL
        return None if 200 <= status < 300 else f"it answered {status}"

    def _addresses(self, target: httpx.URL) -> Sequence[str]:
        host, is_plain = target.raw_host.decode(), target.scheme != "https"
        try:
            found = self._resolve(host, target.port or (80 if is_plain else 443))
        except (OSError, UnicodeError) as error:  # the latter: a part of the name is too long, or empty
            self._say_once(f"a job's webhook: {host} cannot be looked up: {type(error).__name__}")
            return ()
        allowed = [address for address in found if self._targets.allows(address, host=host, is_plain=is_plain)]
        if not allowed:
            self._say_once(f"a job's webhook: {host} leads to {', '.join(found)}, which is not allowed")
        return allowed[:MAX_ADDRESSES]

    def _say_once(self, text: str) -> None:
        """Tells the operator what nobody else is told; not with each try, of which there may be hundreds."""
        if text in self._said:
            return
        if len(self._said) >= MAX_SAID:
            self._said.clear()
        self._said.add(text)
        LOGGER.warning("%s", text)

    async def _send(
        self, target: httpx.URL, *, addresses: Sequence[str], body: bytes, headers: Mapping[str, str]
    ) -> int:
        """Returns the status of the answer of the first address that can be connected to."""
        timeouts = {"connect": CONNECT_TIMEOUT_S, "read": self._timeout_s, "write": self._timeout_s}
        # Host and certificate are those of the URL; the address takes the name's place in the connection alone.
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
    """Returns whom to trust: reading it anew for each message would take longer than the message."""
    return httpx.create_ssl_context()
