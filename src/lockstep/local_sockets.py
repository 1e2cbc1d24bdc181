"""Addresses of Unix sockets, however long their paths are."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MAX_ADDRESS_BYTES: Final = 107
"""What a socket's address has room for on Linux; elsewhere it is about as much."""


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Gives an address by which a socket can be bound or reached within the block.

    A path that is too long is replaced by one through an open descriptor of its folder, which Linux alone has.

    Args:
        path: where the socket lies.

    Raises:
        OSError: the folder is not there, or may not be entered; the path is too long, and this system has no other way.
    """
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        yield str(path)
        return
    if not hasattr(os, "O_PATH"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
    # A path alone: a folder that one may pass through need not be one that one may read.
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
