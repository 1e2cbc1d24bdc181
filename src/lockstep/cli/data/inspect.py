"""``lockstep data inspect``: what is packed: shards, counts, features, the first records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from lockstep.cli.console import OUTPUT

# The rooms that do the work are imported by the verbs: every other verb of the command line starts without NumPy.
if TYPE_CHECKING:
    from lockstep.data.examples.features import AbstractFeature
    from lockstep.data.inspection import FoundSet


def inspect(
    target: Annotated[str, typer.Argument(help="A file, a pattern, or a bucket.")],
    limit: Annotated[int, typer.Option(help="How many records to show of each data set.", min=0)] = 3,
) -> None:
    """Show packed files: shards, counts, features, the first records."""
    from lockstep.data.inspection import describe_value, find_sets

    for found in find_sets(target):
        _show_set(found)
        for number, values in enumerate(found.first_records(limit)):
            OUTPUT.print(f"record {number}")
            for name, value in values.items():
                OUTPUT.print(f"  {name}: {describe_value(value)}")
        OUTPUT.print()


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
