"""``lockstep data pack``: a data set into sharded record files in a bucket."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lockstep.cli.console import OUTPUT
from lockstep.errors import UnavailableError

# The rooms that do the work are imported by the verbs: every other verb of the command line starts without NumPy.
if TYPE_CHECKING:
    from lockstep.data.sources import AbstractSource


def pack(
    source: Annotated[str, typer.Argument(help="The data set: fashion-mnist or digits.")],
    bucket: Annotated[str, typer.Argument(help="Where the files go: a folder, gs://bucket/path or s3://bucket/path.")],
    name: Annotated[str | None, typer.Option(help="The name to pack it under; its own by default.")] = None,
    shards: Annotated[int, typer.Option(help="How many files each of its parts is packed into.", min=1)] = 8,
    folder: Annotated[str | None, typer.Option(help="Where the data set's own files are.")] = None,
    or_digits: Annotated[
        bool, typer.Option("--or-digits", help="Take scikit-learn's digits where the data set cannot be reached.")
    ] = False,
) -> None:
    """Pack a data set into sharded TFRecord files of tf.train.Example."""
    from lockstep.data.packing.packer import pack as pack_examples
    from lockstep.data.sources.base import IMAGE_FEATURES

    found = _open(source, folder=folder, or_digits=or_digits)
    OUTPUT.print(f"{found.name}: from {found.origin}")
    for split, examples in found.splits().items():
        with _bar(f"packing {split}", len(examples)) as advance:
            manifest = pack_examples(
                examples,
                bucket,
                name=name or found.name,
                split=split,
                num_shards=shards,
                features=IMAGE_FEATURES,
                source=found.origin,
                progress=advance,
            )
        OUTPUT.print(
            f"{split}: {manifest.num_records:,} records in {len(manifest.shards)} shards, "
            f"{decimal(manifest.size_bytes)}, in {bucket}"
        )


def _open(source: str, *, folder: str | None, or_digits: bool) -> AbstractSource:
    from lockstep.data.sources import open_source

    try:
        with OUTPUT.status(f"looking for {source}"):
            return open_source(source, folder=folder)
    except UnavailableError as error:
        if not or_digits:
            raise
        OUTPUT.print(f"{error.what}; going on with the handwritten digits of scikit-learn")
        return open_source("digits")


@contextmanager
def _bar(what: str, total: int) -> Generator[Callable[[int], None]]:
    """Shows a bar on a terminal, and nothing in a file."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=OUTPUT, transient=True, disable=not OUTPUT.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda num_records: progress.advance(task, num_records)
