"""``lockstep models traffic``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ModelArgument, ProjectOption, connect
from lockstep.cli.traffic import read_split, traffic_of, traffic_text


@answers("ModelForm")
def traffic(
    model: ModelArgument,
    shares: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VERSION=PERCENT",
            help="The new traffic: whole percents that sum to 100. The versions must be READY. Without it, the traffic "
            "is shown.",
            show_default=False,
        ),
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """Show or change which versions answer the requests to a model that name no version."""
    split = read_split(shares) if shares else None
    with connect(project) as client:
        if split is not None:
            client.split_traffic(model, split=split)
        found = client.model(model)
    text = f"traffic of {model}: {traffic_text(traffic_of(found))}"
    return Answer(show=lambda: OUTPUT.print(text), document=found)
