"""Checks the URLs of webhooks, and returns the part of a URL that may be shown."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from lockstep.jobs.parsing.fields import rule_error


def check_hook_url(text: str) -> str:
    """Returns a URL unchanged if a webhook may have it.

    Raises:
        PydanticCustomError: If messages would be sent unencrypted over a network, or if the URL contains a user name.
    """
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    else:
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback_host(host or ""))
        if host and is_safe and parts.username is None and parts.password is None:
            return text
    raise rule_error(allowed="an https:// URL without a user name; http:// on loopback only", is_hidden=True)


def is_loopback_host(host: str) -> bool:
    """Returns whether a URL's host is this machine, judged by its text alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def display_url(url: str) -> str:
    """Returns the part of a URL that may be shown: its scheme, host and port. The path and query may be secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
