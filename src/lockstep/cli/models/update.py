"""``lockstep models update``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ModelArgument, ProjectOption, connect


@answers("ModelForm")
def update(
    model: ModelArgument,
    max_versions: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many versions the model keeps when another one becomes READY: the oldest ones without traffic "
            "are deleted. 0 keeps all.",
        ),
    ],
    project: ProjectOption = DEFAULT_PROJECT,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Change how many versions a model keeps."""
    with connect(project) as client:
        client.keep_versions(model, max_versions=max_versions)
        found = client.model(model) if output_format is Format.JSON else None
    return Answer(show=lambda: OUTPUT.print(f"model {model} keeps {max_versions or 'all'} versions"), document=found)
