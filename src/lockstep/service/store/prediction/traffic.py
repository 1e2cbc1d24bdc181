"""Which versions of a model answer the requests that name no version, and in which shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from pydantic import TypeAdapter

WHOLE: Final = 100
"""The sum of all shares, in percent."""


@final
@dataclass(frozen=True, kw_only=True)
class Share:
    """The share of one version.

    Attributes:
        version: the name of the version.
        uid: the uid of the version. Another version may get its name later, but never its share.
        percent: the share of the requests, in percent, 1 to 100.
    """

    version: str
    uid: str
    percent: int


Traffic = tuple[Share, ...]
"""The shares of a model, which sum to 100; or none, if no version answers. The first is that of the default version."""
TRAFFIC: Final = TypeAdapter(Traffic)
"""Reads and writes a `Traffic` as JSON."""


@final
@dataclass(frozen=True, kw_only=True)
class TrafficChange:
    """A change of a model's traffic.

    Attributes:
        time_s: when it was made, in seconds since 1970 UTC.
        changed_by: the label of who made it.
        traffic: the traffic since then.
    """

    time_s: float
    changed_by: str
    traffic: Traffic


def make_traffic(split: Mapping[str, int], *, uids: Mapping[str, str], default: str | None) -> Traffic:
    """Returns a traffic, whose default version is the one with the largest share.

    Among equal shares, the default stays; if it is not among them, the first by name becomes the default.

    Args:
        split: the percent of each version, by name. Versions with 0 are left out.
        uids: the uids of these versions.
        default: the name of the default version so far; None if there is none.
    """
    names = sorted(split, key=lambda name: (-split[name], name != default, name))
    return tuple(Share(version=name, uid=uids[name], percent=split[name]) for name in names if split[name])


def split_of(traffic: Traffic) -> dict[str, int]:
    """Returns the percent of each version by its name, the default version first."""
    return {share.version: share.percent for share in traffic}
