"""Checks and formats the addresses of processes, "host:port"."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

ALLOWED: Final = "host:port, a port of 1 to 65535, such as 10.0.0.1:2222, node1:2222 or [fe80::1]:2222"

MAX_PORT: Final = 65535

_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_host(text: str) -> bool:
    """Returns whether a text is a host name, an IPv4 address, or an IPv6 address with or without brackets."""
    return _NAME.fullmatch(text) is not None or _is_ipv6(text.removeprefix("[").removesuffix("]"))


def is_address(text: str) -> bool:
    """Returns whether a text is "host:port" to which a process can connect. An IPv6 address must be in brackets."""
    host, _, port = text.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    return is_port(port) and (_is_ipv6(host[1:-1]) if in_brackets else _NAME.fullmatch(host) is not None)


def is_port(text: str) -> bool:
    """Returns whether a text is a port to connect to. 0 is not: it only asks the system to choose a port."""
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and 1 <= int(text) <= MAX_PORT


def join(host: str, port: int) -> str:
    """Returns "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def advice(text: str) -> str | None:
    """Returns advice on what to write instead if an address is a URL; otherwise None."""
    scheme = _SCHEME.match(text)
    return None if scheme is None else f"leave {scheme[0]} out"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
