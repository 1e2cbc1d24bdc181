"""One look at the service that the user reaches: whether it answers, its clock, its certificate, and the key."""

from __future__ import annotations

import email.utils
import socket
import ssl
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import urlsplit

import httpx
from cryptography import x509

from lockstep.client import Client, ServiceAddress, find_address, find_service
from lockstep.client.addresses import URL_VARIABLE
from lockstep.client.connections import open_connections
from lockstep.client.tls import ssl_context
from lockstep.doctor.surroundings import Surroundings
from lockstep.errors import LockstepError

LOOK_S: Final = 4.0


@final
@dataclass(frozen=True, kw_only=True)
class Look:
    """What was found of the service.

    Attributes:
        address: its address.
        about_key: the answer to ``whoami``; None if the service refused, or did not answer.
        problem: why it is None.
    """

    address: ServiceAddress
    about_key: dict[str, Any] | None = field(repr=False, default=None)
    problem: LockstepError | None = None


def is_expected(surroundings: Surroundings) -> bool:
    """Whether a service is named by the environment, or runs on the home.

    Raises:
        StorageError: the home's files exist, but cannot be read.
    """
    return bool(surroundings.env.get(URL_VARIABLE)) or find_service(surroundings.home) is not None


def look(surroundings: Surroundings) -> Look:
    """Asks the service who this user is.

    Raises:
        LockstepError: the variables name no service.
    """
    address = find_address(surroundings.home, env=surroundings.env)
    with Client(address) as client:
        try:
            return Look(address=address, about_key=client.whoami())
        except LockstepError as problem:
            return Look(address=address, problem=problem)


def address_of(surroundings: Surroundings) -> ServiceAddress | None:
    """Returns the address of the service; None if none can be found, which the check of credentials reports."""
    try:
        return find_address(surroundings.home, env=surroundings.env)
    except LockstepError:
        return None


def answered(surroundings: Surroundings) -> Look | None:
    """Returns a look at a service that accepts the key; None otherwise, which the check of credentials reports."""
    if address_of(surroundings) is None:
        return None
    found = look(surroundings)
    return None if found.about_key is None else found


def clock_difference_s(address: ServiceAddress) -> float | None:
    """Returns by how much this machine's clock is ahead of the service's, in seconds; None if it does not say.

    The service's clock is read from the ``Date`` of an answer, which counts whole seconds. Half a second, and half of
    the time that the answer took, are added.

    Raises:
        httpx.HTTPError: the service does not answer.
    """
    with open_connections(address, timeout_s=LOOK_S) as http:
        before = time.time()
        answer = http.get("/healthz")
        after = time.time()
    sent = answer.headers.get("date")
    if sent is None:
        return None
    try:
        return (before + after) / 2 - (email.utils.parsedate_to_datetime(sent).timestamp() + 0.5)
    except (ValueError, TypeError):
        return None


def certificate_end(address: ServiceAddress) -> datetime | None:
    """Returns until when the service's certificate is valid; None without TLS.

    Raises:
        OSError: the service does not answer, or its certificate is not trusted.
        ConfigError: the file of authorities cannot be read.
    """
    parts = urlsplit(address.url)
    if parts.scheme != "https" or parts.hostname is None:
        return None
    context = ssl_context(address)
    with (
        socket.create_connection((parts.hostname, parts.port or 443), timeout=LOOK_S) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname) as secured,
    ):
        data = secured.getpeercert(binary_form=True)
    return None if data is None else x509.load_der_x509_certificate(data).not_valid_after_utc


def file_end(certificate: Path) -> datetime:
    """Returns until when the first certificate of a file in PEM is valid.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no certificate.
    """
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def now() -> datetime:
    """Returns the time, in UTC."""
    return datetime.now(tz=UTC)


NETWORK_FAULTS: Final = (httpx.HTTPError, OSError, ssl.SSLError)
"""What a service that does not answer raises, beside the errors of Lockstep."""
