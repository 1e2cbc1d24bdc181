"""Decides which destinations a job's webhooks may have, so no submitter makes the service call its operator's network.

The host name in a URL proves nothing: its owner decides which address it resolves to, and can change that at any
    moment. The check is therefore made on the address that the service connects to.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, final
from urllib.parse import urlsplit

from lockstep.errors import InvalidInputError
from lockstep.jobs.notifications.job_webhooks import HIDDEN_PATH
from lockstep.jobs.notifications.webhook_urls import display_url

TARGETS_FLAG: Final = "--allow-webhooks-to"

_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.(?!-)[a-z0-9_-]{1,63})*")
_LOCALHOST: Final = "localhost"
_LOOPBACKS: Final = ("127.0.0.1", "::1")
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_AZURE: Final = IPv4Network("168.63.129.16/32")
"""The address at which Azure's host answers its virtual machines. By its number alone, it is a public address."""
_NEVER_BY_NAME: Final[Sequence[IPv4Network | IPv6Network]] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("169.254.0.0/16"),  # link-local: metadata services of clouds
    IPv4Network("100.100.100.200/32"),  # another metadata service
    IPv4Network("192.0.0.0/24"),
    _AZURE,
    IPv4Network("224.0.0.0/3"),
    IPv6Network("::/128"),
    IPv6Network("fd00:ec2::/32"),
    IPv6Network("fd20:ce::/32"),
    IPv6Network("fe80::/10"),
    IPv6Network("ff00::/8"),
)
"""Networks that allowing a host name does not open. They have to be allowed as networks."""
_NOT_PUBLIC: Final[Sequence[IPv4Network | IPv6Network]] = (
    _AZURE,
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("224.0.0.0/3"),
    # Prefixes of IPv6 that lead to arbitrary IPv4 addresses.
    IPv6Network("2001::/23"),
    IPv6Network("2002::/16"),
)
"""Networks that are not public, in addition to Python's table of IANA's registries, which varies with the version."""


@final
@dataclass(frozen=True, kw_only=True)
class WebhookTargets:
    """The destinations that jobs' webhooks may have, in addition to public addresses.

    Attributes:
        hosts: the names of hosts that may have private and loopback addresses.
        networks: the networks in which any host is allowed.
        is_local: whether the service listens on loopback only. Otherwise, http:// to loopback is not allowed.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    is_local: bool = True

    def allows(self, address: str, *, host: str, is_plain: bool) -> bool:
        """Returns whether a message may be sent to an address.

        Args:
            address: the address, as the resolver returned it.
            host: the host that resolved to this address, as written in the URL.
            is_plain: whether the message would be sent unencrypted.
        """
        found = _reached(ipaddress.ip_address(address))
        if is_plain and not (self.is_local and found.is_loopback):
            return False
        if _is_in(found, self.networks):
            return True
        if host.lower().rstrip(".") in self.hosts:
            return not _is_in(found, _NEVER_BY_NAME)
        return _is_public(found)

    def check(self, url: str, *, what: str) -> None:
        """Rejects a URL to which no message would ever be sent.

        Host names are not resolved here: that happens when a message is sent.

        Args:
            url: the URL, which `check_hook_url` has accepted.
            what: the field's name, for error messages.

        Raises:
            InvalidInputError: If the URL's destination is not allowed, or if the URL is the shortened form that is
                shown.
        """
        parts = urlsplit(url)
        if parts.path == HIDDEN_PATH:
            raise InvalidInputError(
                f"{what}: {display_url(url)}{HIDDEN_PATH} is the redacted form of a URL", action="give the whole URL"
            )
        host = parts.hostname or ""
        addresses = _LOOPBACKS if host == _LOCALHOST else _written_addresses(host)
        is_plain = parts.scheme == "http"
        if addresses and not any(self.allows(address, host=host, is_plain=is_plain) for address in addresses):
            local = "; http:// where the service itself is on loopback" if is_plain else ""
            raise InvalidInputError(
                f"{what}: this service does not send jobs' webhooks to {display_url(url)}",
                allowed=f"https:// to public addresses, and what `lockstep up {TARGETS_FLAG}` names{local}",
            )


def parse_targets(texts: Iterable[str], *, is_local: bool) -> WebhookTargets:
    """Parses the destinations that an operator allows in addition to public ones: host names, addresses, networks.

    Raises:
        InvalidInputError: If a text is none of these.
    """
    hosts: set[str] = set()
    networks: list[IPv4Network | IPv6Network] = []
    for text in texts:
        name = text.lower().rstrip(".")
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError:
            # A name whose last part is a number is a misspelt address.
            if not _HOST.fullmatch(name) or name.rpartition(".")[2].isdecimal():
                allowed = "a host's name, an address, or a network such as 10.1.0.0/16"
                raise InvalidInputError(TARGETS_FLAG, received=text, allowed=allowed) from None
            hosts.add(name)
    return WebhookTargets(hosts=frozenset(hosts), networks=tuple(networks), is_local=is_local)


def _written_addresses(host: str) -> tuple[str, ...]:
    try:
        return (str(ipaddress.ip_address(host)),)
    except ValueError:
        return ()


def _reached(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Returns the address that packets really reach: some IPv6 addresses stand for an IPv4 address."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_in(address: IPv4Address | IPv6Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)  # False if their IP versions differ


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not _is_in(address, _NOT_PUBLIC)
