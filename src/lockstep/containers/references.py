"""Parses names of images, as far as Lockstep needs it: ``[registry/]name[:tag][@digest]``."""

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
    """Returns the name of an image, after checking that it is valid.

    Args:
        image: the name of the image.
        what: the field or flag that contains it, for the message.

    Raises:
        ImageError: the text is not the name of an image. If it began with "-", the engine would take it for an option.
    """
    if len(image) > 1024 or not _REFERENCE.fullmatch(image):
        raise ImageError(
            what,
            received=image,
            allowed="an image's name, such as registry.example.com/team/trainer:1, in lowercase",
        )
    return image


def registry_of(image: str) -> str | None:
    """Returns the registry in an image's name, such as ``gcr.io`` or ``localhost:5000``; None if it has none.

    ``localhost`` without a port is not a registry: podman gives this prefix to images that were built on the machine.
    """
    first, slash, _ = image.partition("/")
    is_host = bool(slash) and (":" in first or "." in first)
    return first if is_host else None


def is_pinned(image: str) -> bool:
    """Returns whether a name contains the digest of the image, so that it always means the same image."""
    return "@sha256:" in image


def is_on_loopback(registry: str) -> bool:
    """Returns whether a registry is on this machine's loopback interface."""
    return _LOOPBACK.fullmatch(registry) is not None
