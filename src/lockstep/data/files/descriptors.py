"""How many files this process may have open: each one that is mapped into memory counts, as long as it is mapped."""

from __future__ import annotations

import os
import sys
import threading

from lockstep.errors import StorageError

_lock = threading.Lock()


def allow_more_files(num_more: int) -> None:
    """Raises how many files this process may have open, if need be: most systems begin low and allow far more.

    Args:
        num_more: how many it has to be able to open beside those that are open.

    Raises:
        StorageError: the system does not allow so many.
    """
    if sys.platform == "win32":
        return  # it counts no files
    import resource  # is not there on Windows

    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _first_free(soft) + num_more
        if wanted <= soft or soft == resource.RLIM_INFINITY:
            return
        try:  # macOS has a bound that it does not state, and raises
            if hard != resource.RLIM_INFINITY and wanted > hard:
                raise ValueError
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            raise StorageError(
                "this process may not have so many files open",
                received=f"{wanted} files",
                allowed=f"{soft if hard == resource.RLIM_INFINITY else hard}",
                action="raise the limit (ulimit -n), or pack the data into fewer files",
            ) from None


def _first_free(limit: int) -> int:
    """Returns the lowest number that no open file has: about as many are open."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return limit
    os.close(descriptor)
    return descriptor
