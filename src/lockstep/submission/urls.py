"""URLs that a submitter gives, as the service can use them."""

from __future__ import annotations

import os


def absolute_url(url: str, *, what: str) -> str:
    """Returns the URL of a bucket or object, with an absolute path, because the service runs in another folder.

    Args:
        url: the URL, or a path of this machine.
        what: the flag or argument that the URL was given with, for error messages.

    Raises:
        InvalidInputError: the URL is not valid, or is one of ``memory://``, which only one process can access.
    """
    from lockstep.storage import check_shared_url  # here, because commands that give no URL start without storages

    absolute = os.path.abspath(url) if url and "://" not in url else url
    check_shared_url(absolute, what=what)
    return absolute
