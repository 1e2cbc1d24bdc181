"""The traffic of a model: percents by the names of its versions, as the commands read, compute and show them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lockstep.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from lockstep.client import Client

MAX_TRIES: Final = 5
"""How often a change is tried that depends on the traffic as it is, while others change it."""

_SHARE: Final = re.compile(r"([^=]+)=([0-9]{1,3})%?")


def traffic_of(model: Mapping[str, Any]) -> dict[str, int]:
    """Returns the percents of a model that the service has sent, the default version first."""
    return dict(model.get("lockstep", {}).get("trafficSplit", {}))


def traffic_text(split: Mapping[str, int]) -> str:
    """Returns percents as text, such as ``v1 90%, v2 10%``."""
    return ", ".join(f"{version} {percent}%" for version, percent in split.items()) or "none"


def read_split(texts: Sequence[str]) -> dict[str, int]:
    """Reads percents, such as ``v1=90 v2=10``.

    Raises:
        InvalidInputError: If a text has another form, or names a version again, or the percents do not sum to 100.
    """
    split: dict[str, int] = {}
    for text in texts:
        match = _SHARE.fullmatch(text)
        if match is None or match[1] in split:
            raise InvalidInputError(
                "the traffic", received=text, allowed="VERSION=PERCENT, once for each version, such as v1=90 v2=10"
            )
        split[match[1]] = int(match[2])
    if sum(split.values()) != 100:
        raise InvalidInputError(
            "the traffic",
            received=" ".join(texts),
            allowed=f"percents that sum to 100; these sum to {sum(split.values())}",
        )
    return split


def with_version(split: Mapping[str, int], *, version: str, percent: int) -> dict[str, int]:
    """Returns a traffic in which one version has a given percent, and the others share the rest as they did.

    The percents are whole: the largest remainders are rounded up. If no other version has traffic, it has all of it.

    Args:
        split: the percents so far, which sum to 100; none if no version has traffic.
        version: the name of the version.
        percent: its new percent, 0 to 100.
    """
    others = {name: share for name, share in split.items() if name != version}
    total, rest = sum(others.values()), 100 - percent
    if not total:
        return {version: 100}
    shares = {name: rest * share // total for name, share in others.items()}
    by_remainder = sorted(others, key=lambda name: -(rest * others[name] % total))
    for name in by_remainder[: rest - sum(shares.values())]:
        shares[name] += 1
    return {name: share for name, share in {**shares, version: percent}.items() if share}


def give_traffic(client: Client, model: str, *, version: str, percent: int) -> dict[str, int]:
    """Gives a version a percent of a model's traffic; see `with_version`. Returns the traffic.

    Raises:
        ConflictError: If others have changed the model each time.
    """
    for _ in range(MAX_TRIES - 1):
        try:
            return _give_traffic(client, model, version=version, percent=percent)
        except ConflictError:
            continue
    return _give_traffic(client, model, version=version, percent=percent)


def _give_traffic(client: Client, model: str, *, version: str, percent: int) -> dict[str, int]:
    found = client.model(model)
    split = with_version(traffic_of(found), version=version, percent=percent)
    client.split_traffic(model, split=split, etag=found["etag"])
    return split
