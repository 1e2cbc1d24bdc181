"""Names of images, as far as Lockstep has to understand them: ``[registry/]name[:tag][@digest]``."""

from __future__ import annotations

import re
from typing import Final

from lockstep.errors import ImageError

_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST: Final = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_REFERENCE: Final = re.compile(
    rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::[a-zA-Z0-9_][a-zA-Z0-9_.-]{{0,127}})?(?:@sha256:[a-f0-9]{{64}})?"
)
_LOOPBACK: Final = re.compile(r"(?:localhost|127\.[0-9.]+|\[::1\])(?::[0-9]+)?")


def check_reference(image: str, *, what: str) -> str:
    """Returns an image's name if it is one.

    Args:
        image: the name.
        what: the field or flag that gives it, for the message.

    Raises:
        ImageError: it is not a name of an image. One that begins with "-" would be an option of the engine.
    """
    if len(image) > 1024 or not _REFERENCE.fullmatch(image):
        raise ImageError(
            what,
            received=image,
            allowed="an image's name, such as registry.example.com/team/trainer:1, in small letters",
        )
    return image


def registry_of(image: str) -> str | None:
    """Returns the registry that an image's name begins with, such as ``gcr.io`` or ``localhost:5000``; None for none.

    ``localhost`` without a port is what podman calls images that were built on the machine.
    """
    first, slash, _ = image.partition("/")
    is_host = bool(slash) and (":" in first or "." in first)
    return first if is_host else None


def is_pinned(image: str) -> bool:
    """Whether a name carries the digest of what it names, so that it can never mean anything else."""
    return "@sha256:" in image


def is_on_loopback(registry: str) -> bool:
    """Whether a registry is one of this machine's own."""
    return _LOOPBACK.fullmatch(registry) is not None
