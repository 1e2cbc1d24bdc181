"""Whom a client trusts."""

from __future__ import annotations

import ssl

import httpx

from lockstep.client.addresses import AUTHORITY_VARIABLE, ServiceAddress
from lockstep.errors import ConfigError


def ssl_context(address: ServiceAddress) -> ssl.SSLContext:
    """Returns what a connection to a service is verified with.

    A home's service says its own certificate in a file that its owner alone can write: that very one is trusted, and
    nothing else, whatever host it names. Another service has one of an authority, for its host.

    Raises:
        ConfigError: the file of authorities cannot be read.
    """
    if address.certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # the certificate is its own authority
        context.load_verify_locations(cadata=address.certificate)
        return context
    if address.authority_file is None:
        return httpx.create_ssl_context()  # SSL_CERT_FILE and SSL_CERT_DIR, or else certifi's
    try:
        return ssl.create_default_context(cafile=str(address.authority_file))
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it holds no certificate"
        raise ConfigError(f"{AUTHORITY_VARIABLE}: {address.authority_file} cannot be read: {reason}") from None


def untrusted(error: BaseException) -> str | None:
    """Returns why a certificate was not trusted, if that is what is behind an error of a connection."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            return found.verify_message
        found = found.__cause__ or found.__context__
    return None
