"""Where a job's webhooks may lead: a submitter must not have the service call into its operator's own network.

A name in a URL says nothing: whoever owns it decides what it stands for, and may say something else a moment later. So
addresses are judged, those that are connected to.
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
from lockstep.jobs.notifications.webhook_urls import place_of

TARGETS_FLAG: Final = "--allow-webhooks-to"

_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.(?!-)[a-z0-9_-]{1,63})*")
_LOCALHOST: Final = "localhost"
_LOOPBACKS: Final = ("127.0.0.1", "::1")
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_AZURE: Final = IPv4Network("168.63.129.16/32")
"""What a machine of Azure is told by its host; the address is a public one by its number alone."""
_NEVER_BY_NAME: Final[Sequence[IPv4Network | IPv6Network]] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("169.254.0.0/16"),  # link-local: the metadata services of clouds
    IPv4Network("100.100.100.200/32"),  # and others of their addresses
    IPv4Network("192.0.0.0/24"),
    _AZURE,
    IPv4Network("224.0.0.0/3"),
    IPv6Network("::/128"),
    IPv6Network("fd00:ec2::/32"),
    IPv6Network("fd20:ce::/32"),
    IPv6Network("fe80::/10"),
    IPv6Network("ff00::/8"),
)
"""What no host's name opens: these are asked for as networks."""
_NOT_PUBLIC: Final[Sequence[IPv4Network | IPv6Network]] = (
    _AZURE,
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv4Network("224.0.0.0/3"),
    # Ways from IPv6 to any IPv4 address.
    IPv6Network("2001::/23"),
    IPv6Network("2002::/16"),
)
"""Beside what Python's table of the IANA's registries says, which differs from version to version."""


@final
@dataclass(frozen=True, kw_only=True)
class WebhookTargets:
    """Where jobs' webhooks may lead.

    Attributes:
        hosts: names that may lead to private addresses and to loopback.
        networks: networks that any host may be in.
        is_local: whether the service listens on loopback alone: what http:// to loopback takes.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    is_local: bool = True

    def allows(self, address: str, *, host: str, is_plain: bool) -> bool:
        """Whether a message may go to an address.

        Args:
            address: the address, as the resolver gave it.
            host: the host that it was found for, as the URL has it.
            is_plain: whether it would go unencrypted.
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
        """Refuses a URL that no message would ever go to. Names are not looked up: that is for when one is sent.

        Args:
            url: the URL, which `check_hook_url` has passed.
            what: the field's name, for errors.

        Raises:
            InvalidInputError: it leads nowhere that it may, or is not whole.
        """
        parts = urlsplit(url)
        if parts.path == HIDDEN_PATH:
            raise InvalidInputError(
                f"{what}: {place_of(url)}{HIDDEN_PATH} is what is shown of a URL", action="give the whole URL"
            )
        host = parts.hostname or ""
        addresses = _LOOPBACKS if host == _LOCALHOST else _written_addresses(host)
        is_plain = parts.scheme == "http"
        if addresses and not any(self.allows(address, host=host, is_plain=is_plain) for address in addresses):
            local = "; http:// where the service itself is on loopback" if is_plain else ""
            raise InvalidInputError(
                f"{what}: this service sends jobs' webhooks to no {place_of(url)}",
                allowed=f"https:// to public addresses, and what `lockstep up {TARGETS_FLAG}` names{local}",
            )


def parse_targets(texts: Iterable[str], *, is_local: bool) -> WebhookTargets:
    """Reads what an operator allows beside public addresses: hosts' names, addresses, networks.

    Raises:
        InvalidInputError: one is none of these.
    """
    hosts: set[str] = set()
    networks: list[IPv4Network | IPv6Network] = []
    for text in texts:
        name = text.lower().rstrip(".")
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError:
            # A last part of digits is a misspelt address, not a name.
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
    """Returns where packets to an address end: some of IPv6 stand for one of IPv4."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_in(address: IPv4Address | IPv6Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(address in network for network in networks)  # one of another version has none of its addresses


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not _is_in(address, _NOT_PUBLIC)
