"""Raises the limit of this process on open files. A file that is mapped into memory counts as open."""

from __future__ import annotations

import os
import sys
import threading

from lockstep.errors import StorageError

_lock = threading.Lock()


def raise_open_file_limit(num_more: int) -> None:
    """Raises the soft limit on open files if necessary. Most systems have a low soft limit and a far higher hard limit.

    Args:
        num_more: the number of files that the process must be able to open in addition to those that are open.

    Raises:
        StorageError: the system does not allow that many open files.
    """
    if sys.platform == "win32":
        return  # Windows has no such limit
    import resource  # does not exist on Windows

    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _first_free(soft) + num_more
        if wanted <= soft or soft == resource.RLIM_INFINITY:
            return
        try:  # macOS has a lower limit than it reports, and raises beyond it
            if hard != resource.RLIM_INFINITY and wanted > hard:
                raise ValueError
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            raise StorageError(
                "this process may not open that many files",
                received=f"{wanted} files",
                allowed=f"{soft if hard == resource.RLIM_INFINITY else hard}",
                action="raise the limit (ulimit -n), or pack the data into fewer files",
            ) from None


def _first_free(limit: int) -> int:
    """Returns the lowest unused file descriptor, which is about the number of open files."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return limit
    os.close(descriptor)
    return descriptor
