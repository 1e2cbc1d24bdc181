"""``lockstep bucket rm``."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Final

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.bucket.objects import find_below, find_objects
from lockstep.cli.console import ERRORS, OUTPUT, confirm, size
from lockstep.errors import ExitCode, InvalidInputError, counted
from lockstep.storage import open_bucket, split_url

NUM_THREADS: Final = 8


@answers("ObjectsForm")
def rm(
    urls: Annotated[list[str], typer.Argument(metavar="URL", help="Objects, patterns; folders with --recursive.")],
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Delete everything in folders; asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> Answer:
    """Delete objects. The bucket of a store is not deleted."""
    # A program may have put symbolic links into its folder: delete the links, not their targets.
    find = partial(find_below if recursive else find_objects, follows_links=False)
    found = {one.url: one.item for url in urls for one in find(url)}
    total_bytes = sum(item.size_bytes for item in found.values())
    what = f"{counted(len(found), 'object')}, {size(total_bytes)}"
    if recursive and not yes:
        if not sys.stdin.isatty():
            raise InvalidInputError(
                f"this would delete {what}, and standard input is not a terminal", action="add --yes"
            )
        if not confirm(f"delete {what} in {', '.join(urls)}?"):
            ERRORS.print("nothing was deleted")
            raise typer.Exit(ExitCode.NO)
    with ThreadPoolExecutor(NUM_THREADS, "lockstep-delete") as executor:
        for _ in executor.map(_delete, found):
            pass
    return Answer(
        show=lambda: OUTPUT.print(f"deleted {what}"),
        document={"numObjects": len(found), "sizeBytes": total_bytes},
    )


def _delete(url: str) -> None:
    bucket_url, key = split_url(url)
    open_bucket(bucket_url).delete(key)
