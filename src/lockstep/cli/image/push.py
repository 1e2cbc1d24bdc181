"""``lockstep image push``: pushes an image to its registry."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from lockstep.cli.console import OUTPUT
from lockstep.containers import check_reference, image_id, open_engine, pull_error, registry_of
from lockstep.containers import push as push_arguments
from lockstep.errors import InvalidInputError, MissingInputError

PUSH_TIMEOUT_S: Final = 3600.0


def push(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The image's name, which begins with its registry.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without doing it.")] = False,
) -> None:
    """Push an image to its registry, with podman or docker, so that the nodes of a cluster can pull it."""
    check_reference(name, what="NAME")
    registry = registry_of(name)
    if registry is None:
        raise InvalidInputError(
            "NAME has no registry", received=name, allowed=f"registry.example.com/team/{name.rpartition('/')[2]}"
        )
    engine = open_engine()
    if image_id(engine, name) is None:
        raise MissingInputError(
            f"{engine.kind} has no image {name}", action=f"build it with `lockstep image build --tag {name}`"
        )
    arguments = push_arguments(engine, name)
    if dry_run:
        OUTPUT.print(f"would push {name} to {registry}: {engine.kind} {' '.join(arguments)}")
        return
    OUTPUT.print(f"pushing {name} to {registry} with {engine.describe()}")
    answer = engine.call(arguments, timeout_s=PUSH_TIMEOUT_S)
    if answer.code:
        raise pull_error(engine, name, answer=answer)
    OUTPUT.print(f"pushed {name}; `lockstep submit --master-image-uri {name}` runs it")
