"""Opens the HTTP connections to a service."""

from __future__ import annotations

import httpx

from lockstep.client.addresses import ServiceAddress
from lockstep.client.tls import ssl_context
from lockstep.errors import ConfigError


def open_connections(address: ServiceAddress, *, timeout_s: float) -> httpx.Client:
    """Returns an HTTP client that sends the key of an address. It connects when it is first used.

    Args:
        address: the service's address.
        timeout_s: how long the service may take to connect, or to send the next part of an answer, in seconds.

    Raises:
        ConfigError: the certificates to verify the service with cannot be read, or a proxy cannot be used.
    """
    verify = ssl_context(address) if address.url.startswith("https:") else False  # plain HTTP is for loopback only
    try:
        return httpx.Client(
            base_url=address.url,
            headers={"authorization": f"Bearer {address.token}"},
            timeout=timeout_s,
            verify=verify,
            trust_env=not address.is_on_this_machine,  # a service on this machine is reached without a proxy
        )
    except (ImportError, ValueError):  # a SOCKS proxy needs a package that httpx does not install
        raise ConfigError(
            "the proxy that HTTPS_PROXY or ALL_PROXY names cannot be used",
            allowed="http://HOST:PORT, or socks5://HOST:PORT with the package httpx[socks]",
            action="change it, or name the service's host in NO_PROXY",
        ) from None
