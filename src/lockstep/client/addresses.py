"""Finds the address of a service and the key for it, from environment variables or from this machine's home."""

from __future__ import annotations

import ipaddress
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final
from urllib.parse import urlsplit

from lockstep.errors import ConfigError, CorruptDataError, StorageError, UnavailableError
from lockstep.home import HOME_VARIABLE, Home
from lockstep.processes import ProcessIdentity

URL_VARIABLE: Final = "LOCKSTEP_URL"
TOKEN_VARIABLE: Final = "LOCKSTEP_TOKEN"  # noqa: S105 - the variable's name
TOKEN_FILE_VARIABLE: Final = "LOCKSTEP_TOKEN_FILE"  # noqa: S105 - the variable's name
AUTHORITY_VARIABLE: Final = "LOCKSTEP_CA_CERT"
PROJECT_VARIABLE: Final = "LOCKSTEP_PROJECT"
DEFAULT_PROJECT: Final = "local"

CLIENT_VARIABLES: Final = frozenset({URL_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, AUTHORITY_VARIABLE})
"""The environment variables of clients; a service and its jobs do not use them."""


@final
@dataclass(frozen=True, kw_only=True)
class ServiceAddress:
    """The address of a service, with the key and the trusted certificates to connect to it.

    Attributes:
        url: the base URL of the service's REST paths.
        token: the home's token, or an API key.
        certificate: the only trusted certificate, in PEM, as a service on this machine writes it to its home; None to
            verify the service's certificate by authorities.
        authority_file: a file with the certificates of the trusted authorities; None for the system's.
    """

    url: str
    token: str = field(repr=False)
    certificate: str | None = field(repr=False, default=None)
    authority_file: Path | None = None

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the service runs on this machine: its host is loopback, or a home's file has its certificate."""
        return self.certificate is not None or _is_loopback(urlsplit(self.url).hostname or "")


@final
@dataclass(frozen=True, kw_only=True)
class RunningService:
    """The running service of a home.

    Attributes:
        address: the service's address.
        process: the service's process.
    """

    address: ServiceAddress
    process: ProcessIdentity

    @property
    def pid(self) -> int:
        """The service's process id."""
        return self.process.pid


def find_service(home: Home) -> RunningService | None:
    """Returns the running service of a home, or None if there is none.

    Raises:
        StorageError: the home's files exist, but cannot be read.
    """
    try:
        document = json.loads(home.address.read_text())
        certificate = document.get("certificate")
        service = RunningService(
            address=ServiceAddress(
                url=str(document["url"]),
                token=home.token.read_text().strip(),
                certificate=None if certificate is None else str(certificate),
            ),
            process=ProcessIdentity.from_json(document["process"]),
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError, CorruptDataError):
        return None
    except OSError as error:
        raise StorageError(
            f"the home {home.path} cannot be read: {error.strerror}",
            action=f"set {HOME_VARIABLE} to a folder of your own",
        ) from error
    return service if service.process.is_alive else None


def find_address(home: Home, *, env: Mapping[str, str]) -> ServiceAddress:
    """Returns the address of the service that the environment names, by default the service of the home.

    Args:
        home: the home whose running service is the default.
        env: the environment variables. ``LOCKSTEP_URL`` is the URL of a service. ``LOCKSTEP_TOKEN`` is a key, and
            ``LOCKSTEP_TOKEN_FILE`` a file with one; the home's service accepts such a key, too. ``LOCKSTEP_CA_CERT`` is
            a file with the certificates of the authorities to trust instead of the system's.

    Raises:
        ConfigError: a variable is not valid, or one is missing.
        UnavailableError: no service is named, and none runs on the home.
    """
    key = _read_key(env)
    if env.get(URL_VARIABLE):
        if key is None:
            raise ConfigError(f"{URL_VARIABLE} is set, but no key", action=f"set {TOKEN_VARIABLE}")
        authority = env.get(AUTHORITY_VARIABLE)
        return ServiceAddress(
            url=_read_url(env[URL_VARIABLE]), token=key, authority_file=Path(authority) if authority else None
        )
    running = find_service(home)
    if running is None:
        raise UnavailableError(f"no service runs on {home.path}", action="start one with `lockstep up`")
    return running.address if key is None else replace(running.address, token=key)


def _read_key(env: Mapping[str, str]) -> str | None:
    value, file = env.get(TOKEN_VARIABLE), env.get(TOKEN_FILE_VARIABLE)
    if value and file:
        raise ConfigError(f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set", action="unset one of them")
    if file:
        path = Path(file).expanduser()
        try:
            mode, value = path.stat().st_mode, path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"{TOKEN_FILE_VARIABLE}: {path} cannot be read: {reason}") from None
        if stat.S_IMODE(mode) & 0o077:
            raise ConfigError(
                f"{TOKEN_FILE_VARIABLE}: {path} gives access to users other than its owner: "
                f"its mode is {stat.S_IMODE(mode):04o}",
                action=f"chmod 600 {path}",
            )
    if not value and not file:
        return None
    value = (value or "").strip()
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        # The message must not show the value, because it may contain a key.
        raise ConfigError(
            f"{TOKEN_FILE_VARIABLE if file else TOKEN_VARIABLE} does not contain a key", allowed="exactly one key"
        )
    return value


def _read_url(text: str) -> str:
    form = "https://HOST, https://HOST:PORT, or http:// on loopback"
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        _ = parts.port  # raises ValueError if it is not a number
    except ValueError:
        raise ConfigError(f"{URL_VARIABLE} is not a URL", allowed=form) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{URL_VARIABLE} contains a user or password", allowed=form, action=f"set {TOKEN_VARIABLE}")
    if parts.scheme not in ("http", "https") or not host or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(URL_VARIABLE, received=text, allowed=form)
    if parts.scheme == "http" and not _is_loopback(host):
        raise ConfigError(f"{URL_VARIABLE}: a key would travel unencrypted", received=text, allowed=form)
    return f"{parts.scheme}://{parts.netloc}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
