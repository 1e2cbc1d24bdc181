"""Addresses of Unix sockets, however long their paths are."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MAX_ADDRESS_BYTES: Final = 107
"""The maximum length of a socket's path on Linux, in bytes; it is about the same elsewhere."""


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yields an address with which a socket can be bound or reached within the block.

    If the path is too long, the address goes through an open descriptor of its folder. Only Linux has such paths.

    Args:
        path: the path of the socket.

    Raises:
        OSError: the folder does not exist or may not be entered, or the path is too long on a system other than Linux.
    """
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        yield str(path)
        return
    if not hasattr(os, "O_PATH"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    # O_PATH needs no read permission: a folder that may be entered need not be readable.
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
