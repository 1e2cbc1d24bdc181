"""``lockstep bucket mb``."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import OUTPUT
from lockstep.errors import LockstepError
from lockstep.storage import open_bucket


@answers("BucketListForm", hints=True)
def mb(
    urls: Annotated[list[str], typer.Argument(metavar="URL", help="gs://NAME, s3://NAME, or a folder.")],
) -> Answer:
    """Create buckets, with the store's default settings."""
    created: list[str] = []
    failed: LockstepError | None = None
    for url in urls:
        try:
            bucket = open_bucket(url)
            bucket.create()
        except LockstepError as error:
            failed = error
            break
        created.append(bucket.url)
    return Answer(
        show=lambda: [OUTPUT.print(f"created {url}") for url in created],
        document={"buckets": created},
        hint=f"to fill it: lockstep bucket cp FOLDER {shlex.quote(created[0])} -r" if created else "",
        error=failed,
    )
