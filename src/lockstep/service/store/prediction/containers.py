"""A version that a container of the user's own serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from pydantic import TypeAdapter

from lockstep.jobs.running.order_parts import ContainerRoutes


@final
@dataclass(frozen=True, kw_only=True)
class VersionContainer:
    """The container of a version's servers, as ``GoogleCloudMlV1__ContainerSpec`` has it.

    Attributes:
        image: the name of the image.
        image_id: the id of the image that the first server ran, which all later ones have to run; None until then.
        command: the command that replaces the image's entry point; if empty, the image's own is used.
        arguments: the arguments of the entry point.
        env: the environment variables, beside those that the contract has the service set.
        routes: the port and the paths that it answers.
    """

    image: str
    image_id: str | None = None
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    routes: ContainerRoutes


VERSION_CONTAINER: Final = TypeAdapter(VersionContainer)
"""Reads and writes a `VersionContainer` as JSON."""
