"""``lockstep bucket mb``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.console import OUTPUT
from lockstep.storage import open_bucket


def mb(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="gs://NAME, s3://NAME, or a folder.")],
) -> None:
    """Create buckets, with the store's default settings."""
    for url in urls:
        bucket = open_bucket(url)
        bucket.create()
        OUTPUT.print(f"created {bucket.url}")
