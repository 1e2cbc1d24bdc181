"""Addresses of processes, "host:port", and the hosts in them."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

ALLOWED: Final = "host:port, a port of 1 to 65535, such as 10.0.0.1:2222, node1:2222 or [fe80::1]:2222"

MAX_PORT: Final = 65535

_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_host(text: str) -> bool:
    """Whether it is a host's name, an IPv4 address, or an IPv6 address with or without its brackets."""
    return _NAME.fullmatch(text) is not None or _is_ipv6(text.removeprefix("[").removesuffix("]"))


def is_address(text: str) -> bool:
    """Whether it is "host:port" that a process can be reached at; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    return is_port(port) and (_is_ipv6(host[1:-1]) if in_brackets else _NAME.fullmatch(host) is not None)


def is_port(text: str) -> bool:
    """Whether it is a port that somebody can connect to: 0 only asks a system to choose one."""
    return re.fullmatch(r"[0-9]{1,5}", text) is not None and 1 <= int(text) <= MAX_PORT


def join(host: str, port: int) -> str:
    """Returns "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def advice(text: str) -> str | None:
    """Says what to write instead, where an address is a URL."""
    scheme = _SCHEME.match(text)
    return None if scheme is None else f"leave {scheme[0]} out"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
