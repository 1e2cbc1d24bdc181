"""Checks and binds the address of the REST interface, and reads its certificate."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import ssl
import stat
from pathlib import Path
from typing import Final

from lockstep.client import ServiceAddress
from lockstep.client.tls import ssl_context
from lockstep.errors import InvalidInputError, PortInUseError
from lockstep.home import Home

LOOPBACK: Final = "127.0.0.1"

_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


def is_loopback(host: str) -> bool:
    """Whether an IP address can be reached only from this machine.

    Raises:
        InvalidInputError: If `host` is not an IP address.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InvalidInputError(
            "--host",
            received=host,
            allowed="an IP address: 127.0.0.1, 0.0.0.0 for all of this machine's, or one of them",
        ) from None


def check_binding(host: str, *, has_tls: bool, has_keys: bool) -> None:
    """Checks that the REST interface may listen at an address.

    Args:
        host: the IP address.
        has_tls: whether the interface has a certificate.
        has_keys: whether there are valid API keys, which clients on other machines need.

    Raises:
        InvalidInputError: If the address is more than loopback and there is no certificate (others could read the
            traffic) or no key (the home's token is valid only on this machine).
    """
    if is_loopback(host):
        return
    if not has_tls:
        raise InvalidInputError(
            f"--host {host} is reachable from other machines: keys would travel unencrypted",
            action="name a certificate with --tls-certificate and --tls-key",
        )
    if not has_keys:
        raise InvalidInputError(
            f"--host {host} is reachable from other machines, and there is no valid API key",
            action="make one first with `lockstep keys create`, while the service listens on loopback",
        )


def bind(host: str, *, port: int, home: Home) -> socket.socket:
    """Returns a socket that is bound to the REST interface's port, but does not listen yet.

    Args:
        host: the IP address.
        port: the port; 0 for the port that was used last if it is free, else any free port.
        home: the home, which records the port that was used last.

    Raises:
        PortInUseError: If the port cannot be bound.
    """
    reason = ""
    for candidate in [port] if port else [_last_port(home), 0]:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
        except OSError as error:
            listener.close()
            reason = error.strerror or type(error).__name__
        else:
            return listener
    if port:
        raise PortInUseError(
            f"port {port} of {host} cannot be bound: {reason}",
            action="choose another with --port, or leave it out for a free one",
        )
    raise PortInUseError(f"no port of {host} can be bound: {reason}")


def _last_port(home: Home) -> int:
    try:
        return int(json.loads((home.path / "port.json").read_text()))
    except (FileNotFoundError, ValueError):
        return 0


def local_url(host: str, *, port: int, has_tls: bool) -> str:
    """Returns the URL by which this machine reaches a server that listens at an address."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        address = ipaddress.ip_address(LOOPBACK if address.version == 4 else "::1")
    shown = f"[{address}]" if address.version == 6 else str(address)
    return f"{'https' if has_tls else 'http'}://{shown}:{port}"


def read_certificate(certificate: Path, *, key: Path) -> str:
    """Returns the first certificate of a file, in PEM, after a test handshake in memory.

    Args:
        certificate: the file with the certificate and its intermediate certificates, in PEM.
        key: the file with its private key, without a passphrase.

    Raises:
        InvalidInputError: If the files cannot be read, if everybody can read the key, or if a handshake with them
            fails.
    """
    try:
        if stat.S_IMODE(key.stat().st_mode) & 0o007:
            raise InvalidInputError(f"--tls-key: everybody can read {key}", action=f"chmod 600 {key}")
        found = _CERTIFICATE.search(certificate.read_text("ascii"))
        key.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"--tls-certificate, --tls-key: {error.filename}: {error.strerror}") from None
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise InvalidInputError(f"--tls-certificate: {certificate} holds no certificate", allowed="a file in PEM")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
        _test_handshake(context, ssl_context(ServiceAddress(url="https://", token="", certificate=found[0])))
    except ssl.SSLCertVerificationError as error:
        raise InvalidInputError(f"--tls-certificate: {certificate}: {error.verify_message}") from None
    except ssl.SSLError as error:
        reason = error.reason or "not usable"
        raise InvalidInputError(
            f"--tls-certificate {certificate} and --tls-key {key}: {reason.replace('_', ' ').lower()}"
        ) from None
    return found[0]


def _refuse_passphrase() -> str:
    """Raises an error, so that OpenSSL does not ask for a passphrase at the terminal, which a service does not have."""
    raise InvalidInputError("--tls-key has a passphrase", allowed="a key without one, in a file of its owner's alone")


def _test_handshake(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> None:
    """Performs a TLS handshake between a server and a client in memory.

    Raises:
        ssl.SSLError: If the handshake fails.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    waiting = [client, server]
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
