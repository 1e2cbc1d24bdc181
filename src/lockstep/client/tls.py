"""TLS for clients: which certificates of services are trusted."""

from __future__ import annotations

import ssl

import httpx

from lockstep.client.addresses import AUTHORITY_VARIABLE, ServiceAddress
from lockstep.errors import ConfigError


def ssl_context(address: ServiceAddress) -> ssl.SSLContext:
    """Returns the TLS context that verifies connections to a service.

    A home's service writes its certificate to a file that only the home's owner can write. Exactly this certificate is
    trusted, and no other, whatever host it is for. Any other service needs a certificate from a trusted authority for
    its host.

    Raises:
        ConfigError: the file of authorities cannot be read.
    """
    if address.certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # lets the certificate be its own authority
        context.load_verify_locations(cadata=address.certificate)
        return context
    if address.authority_file is None:
        return httpx.create_ssl_context()  # uses SSL_CERT_FILE and SSL_CERT_DIR, by default certifi
    try:
        return ssl.create_default_context(cafile=str(address.authority_file))
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it holds no certificate"
        raise ConfigError(f"{AUTHORITY_VARIABLE}: {address.authority_file} cannot be read: {reason}") from None


def untrusted(error: BaseException) -> str | None:
    """Returns why a certificate was not trusted, or None if a connection's error has another cause."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            return found.verify_message
        found = found.__cause__ or found.__context__
    return None
