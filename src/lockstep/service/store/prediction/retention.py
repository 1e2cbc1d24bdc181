"""Decides which versions of a model are deleted because it has too many."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from lockstep.service.store.prediction.records import VersionRecord, VersionState

_COUNTED: Final = (VersionState.READY, VersionState.FAILED)


def excess_versions(
    versions: Sequence[VersionRecord], *, max_versions: int, kept: Collection[str]
) -> list[VersionRecord]:
    """Returns the oldest versions beyond the number that a model keeps.

    READY and FAILED versions count. Versions that are kept in any case count too, so that the model may have more.

    Args:
        versions: the versions of the model, the oldest first.
        max_versions: how many are kept.
        kept: the uids of versions that are kept in any case.
    """
    counted = [version for version in versions if version.state in _COUNTED]
    num_excess = max(0, len(counted) - max_versions)
    return [version for version in counted if version.uid not in kept][:num_excess]
