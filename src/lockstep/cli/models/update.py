"""``lockstep models update``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect


def update(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    max_versions: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many versions the model keeps when another one becomes READY: the oldest ones without traffic "
            "are deleted. 0 keeps all.",
        ),
    ],
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Change how many versions a model keeps."""
    with connect(project) as client:
        client.keep_versions(model, max_versions=max_versions)
    OUTPUT.print(f"model {model} keeps {max_versions or 'all'} versions")
