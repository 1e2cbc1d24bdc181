"""``lockstep models delete``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.completing import complete_model
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect
from lockstep.cli.operations import short_name
from lockstep.errors import WrongStateError


@answers("DeletedModelForm")
def delete(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="The model's name. It must have no versions.", autocompletion=complete_model
        ),
    ],
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """Delete a model that has no versions. To delete its versions, too, use `lockstep undeploy`."""
    with connect(project) as client:
        if versions := client.versions(model, limit=4):
            names = ", ".join(short_name(version) for version in versions[:3]) + (" ..." if len(versions) > 3 else "")
            raise WrongStateError(
                f"model {model} has versions: {names}",
                action=f"`lockstep undeploy {model}` deletes it with all its versions",
            )
        client.delete_model(model)
    return Answer(show=lambda: OUTPUT.print(f"deleted model {model}"), document={"model": model, "versions": []})
