"""Downloads the user's code from the bucket to the node and unpacks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.jobs.running.packages import Code, unpack_package
from lockstep.storage import read_url


def unpack(packages: Sequence[str], *, folder: Path) -> list[Code]:
    """Downloads packages and unpacks each into a folder.

    Args:
        packages: the bucket URLs of the packages.
        folder: the folder to unpack into; created if it does not exist.

    Returns:
        The unpacked packages, in the same order.

    Raises:
        MissingInputError: If a package does not exist.
        StorageError: If a package could not be read.
        InvalidInputError: If a package is neither a source archive nor a wheel, or if it is a wheel with compiled
            parts.
        CorruptDataError: If a package is damaged, or contains a path outside the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [unpack_package(url, data=read_url(url), folder=folder) for url in packages]
