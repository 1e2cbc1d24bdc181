"""Connections to the service, and the names in its paths."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import httpx

from lockstep.client.addresses import ServiceAddress
from lockstep.client.tls import ssl_context
from lockstep.errors import ConfigError, InvalidInputError

TIMEOUT_S: Final = 30.0


def connect(address: ServiceAddress) -> httpx.Client:
    """Returns a pool of connections to a service.

    Args:
        address: the service's address.

    Raises:
        ConfigError: the certificates to verify the service with cannot be read, or a proxy cannot be used.
    """
    verify = ssl_context(address) if address.url.startswith("https:") else False  # plain HTTP is for loopback only
    try:
        return httpx.Client(
            base_url=address.url,
            headers={"authorization": f"Bearer {address.token}"},
            timeout=TIMEOUT_S,
            verify=verify,
            trust_env=not address.is_on_this_machine,  # a service on this machine is reached without a proxy
        )
    except (ImportError, ValueError):  # a SOCKS proxy needs a package that httpx does not install
        raise ConfigError(
            "the proxy that HTTPS_PROXY or ALL_PROXY names cannot be used",
            allowed="http://HOST:PORT, or socks5://HOST:PORT with the package httpx[socks]",
            action="change it, or name the service's host in NO_PROXY",
        ) from None


def segment(name: str, *, what: str) -> str:
    """Returns a name, quoted as one segment of a URL's path.

    Args:
        name: the name.
        what: what it is the name of, for the error.

    Raises:
        InvalidInputError: it cannot be one segment.
    """
    if name in ("", ".", "..") or "/" in name:  # quoting does not make one segment of these
        raise InvalidInputError(f"not the name of a {what}", received=name, allowed="letters, digits and underscores")
    return quote(name, safe="")
