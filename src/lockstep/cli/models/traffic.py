"""``lockstep models traffic``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect
from lockstep.cli.traffic import read_split, traffic_of, traffic_text


def traffic(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    shares: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VERSION=PERCENT]...",
            help="The new traffic: whole percents that sum to 100. The versions must be READY. Without it, the traffic "
            "is shown.",
            show_default=False,
        ),
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Show or change which versions answer the requests to a model that name no version."""
    split = read_split(shares) if shares else None
    with connect(project) as client:
        if split is not None:
            client.split_traffic(model, split=split)
        OUTPUT.print(f"traffic of {model}: {traffic_text(traffic_of(client.model(model)))}")
