"""``lockstep data``: packing data sets into a bucket, and looking at what is packed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lockstep.cli.console import OUTPUT
from lockstep.errors import UnavailableError

# The rooms that do the work are imported by the verbs: every other verb of the command line starts without NumPy.
if TYPE_CHECKING:
    from lockstep.data.examples.features import AbstractFeature
    from lockstep.data.inspection import FoundSet
    from lockstep.data.sources import AbstractSource

app = typer.Typer(help="Pack data sets into a bucket, and look at what is packed.", no_args_is_help=True)


@app.command()
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


@app.command()
def inspect(
    target: Annotated[str, typer.Argument(help="A file, a pattern, or a bucket.")],
    limit: Annotated[int, typer.Option(help="How many records to show of each data set.", min=0)] = 3,
    check: Annotated[bool, typer.Option("--check", help="Read every record and check it.")] = False,
) -> None:
    """Show packed files: shards, counts, features, the first records."""
    from lockstep.data.inspection import describe_value, find_sets

    for found in find_sets(target):
        _show_set(found)
        for number, values in enumerate(found.first_records(limit)):
            OUTPUT.print(f"record {number}")
            for name, value in values.items():
                OUTPUT.print(f"  {name}: {describe_value(value)}")
        if check:
            found.check()
            OUTPUT.print("every checksum matches")
        OUTPUT.print()


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


def _show_set(found: FoundSet) -> None:
    num_records = sum(file.num_records for file in found.files)
    size_bytes = sum(file.size_bytes for file in found.files)
    OUTPUT.print(f"{found.name}: {num_records:,} records in {len(found.files)} files, {decimal(size_bytes)}")
    if found.manifest is None:
        OUTPUT.print("no manifest")
    else:
        source = f" from {found.manifest.source}" if found.manifest.source else ""
        OUTPUT.print(f"packed {found.manifest.created:%Y-%m-%d %H:%M:%S %Z}{source}")
        for name, feature in found.manifest.features.items():
            OUTPUT.print(f"feature {name}: {_describe_feature(feature)}")
    table = Table("file", box=None, pad_edge=False)
    table.add_column("records", justify="right")
    table.add_column("size", justify="right")
    for file in found.files:
        table.add_row(file.url.rsplit("/", 1)[-1], f"{file.num_records:,}", decimal(file.size_bytes))
    OUTPUT.print(table)


def _describe_feature(feature: AbstractFeature) -> str:
    document = feature.to_json()
    if "shape" not in document:
        return f"{document['dtype']}, any number of values"
    shape = " x ".join(map(str, document["shape"])) or "one value"
    return f"{document['dtype']}, {shape}{', kept as its bytes' if document['type'] == 'raw' else ''}"


@contextmanager
def _bar(what: str, total: int) -> Generator[Callable[[int], None]]:
    """Shows a bar on a terminal, and nothing in a file."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=OUTPUT, transient=True, disable=not OUTPUT.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda num_records: progress.advance(task, num_records)
