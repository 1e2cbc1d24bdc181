"""The prediction servers of a version as text: how many are ready, how many there should be, and by what load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lockstep.cli.operations import short_name
from lockstep.errors import NotFoundError

if TYPE_CHECKING:
    from lockstep.client import Client

_METRICS: Final = {"CPU_USAGE": "CPU usage", "GPU_DUTY_CYCLE": "GPU duty cycle"}


def with_servers(client: Client, model: str, version: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a version of a list with what lists do not have: what it waits for, and how many servers are ready.

    Args:
        client: the client of the service.
        model: the model's name.
        version: the version, as a list or a model has it.
    """
    try:
        return client.version(model, name=short_name(version))
    except NotFoundError:  # deleted since it was listed
        return version


def servers_text(version: Mapping[str, Any]) -> str:
    """Returns a version's prediction servers for a table: those that are ready, and those that it should have now.

    If the number follows the load, its bounds are added: ``1/2 (0-4)``.
    """
    number = f"{or_dash(num_ready(version))}/{or_dash(num_wanted(version))}"
    auto = version.get("autoScaling")
    return number if auto is None else f"{number} ({auto['minNodes']}-{auto['maxNodes']})"


def scaling_text(version: Mapping[str, Any]) -> str:
    """Returns what the number of a version's prediction servers follows: ``0 to 4, by CPU usage 60%, ...``."""
    auto = version.get("autoScaling")
    if auto is None:
        return "fixed"
    targets = [f"{_METRICS.get(metric['name'], metric['name'])} {metric['target']}%" for metric in auto["metrics"]]
    own = version.get("lockstep", {}).get("autoScaling", {})
    if "requestsPerServer" in own:  # missing from a service of another version
        targets.append(f"{own['requestsPerServer']:g} open requests for each")
    bounds = f"{auto['minNodes']} to {auto['maxNodes']} by load"
    return f"{bounds}: {', '.join(targets)}" if targets else bounds


def num_wanted(version: Mapping[str, Any]) -> int | None:
    """Returns how many prediction servers a version should have now; None if the service does not say it."""
    own = version.get("lockstep", {})
    return own.get("numServers", version.get("manualScaling", {}).get("nodes"))


def num_ready(version: Mapping[str, Any]) -> int | None:
    """Returns how many prediction servers of a version are ready; None if that was not read."""
    return version.get("lockstep", {}).get("numReadyServers")


def or_dash(number: int | None) -> str:
    """Returns a number as text, and "-" for one that is not known."""
    return "-" if number is None else str(number)
