"""The user's code on the node: packages fetched from the bucket and unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.jobs.running.packages import Code, unpack_package
from lockstep.storage import read_url


def unpack(packages: Sequence[str], *, folder: Path) -> list[Code]:
    """Fetches packages and unpacks each into the folder.

    Args:
        packages: bucket URLs.
        folder: where to unpack; made if absent.

    Returns:
        The packages, in this order.

    Raises:
        MissingInputError: a package does not exist.
        StorageError: one could not be read.
        InvalidInputError: one is of another kind, or a wheel with compiled parts.
        CorruptDataError: one is damaged, or reaches outside the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [unpack_package(url, data=read_url(url), folder=folder) for url in packages]
