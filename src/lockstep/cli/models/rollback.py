"""``lockstep models rollback``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect
from lockstep.cli.traffic import traffic_of, traffic_text


def rollback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Restore a model's traffic as it was before its last change. A second rollback takes the first one back."""
    with connect(project) as client:
        restored = client.rollback(model)
    OUTPUT.print(f"traffic of {model}: {traffic_text(traffic_of(restored))}")
