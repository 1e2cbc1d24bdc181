"""``lockstep data inspect``: what is packed: shards, counts, features, the first records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.filesize import decimal
from rich.table import Table

from lockstep.cli.console import OUTPUT
from lockstep.cli.data.shown import printable
from lockstep.errors import InvalidInputError
from lockstep.storage import open_bucket, split_url

# The rooms that do the work are imported by the verbs: every other verb of the command line starts without NumPy.
if TYPE_CHECKING:
    from lockstep.data.examples.features import AbstractFeature
    from lockstep.data.inspection import FoundSet

_NUM_SHOWN: Final = 3
_NUM_DRAWN: Final = 60


def inspect(
    target: Annotated[str, typer.Argument(help="A file, a pattern, or a bucket.")],
    limit: Annotated[
        int | None, typer.Option(help="How many records to show of each data set: 3, or 60 in a picture.", min=0)
    ] = None,
    contact_sheet: Annotated[
        str | None, typer.Option(metavar="FILE.png", help="Draw images of records, with their labels, into a picture.")
    ] = None,
) -> None:
    """Show packed files: shards, counts, features, records."""
    from lockstep.data.images.contact_sheet import is_image
    from lockstep.data.inspection import describe_value, find_sets

    if contact_sheet is not None and not contact_sheet.endswith(".png"):
        raise InvalidInputError(
            "--contact-sheet draws a PNG", received=contact_sheet, allowed="a name that ends in .png"
        )
    has_images = False
    all_found = find_sets(target)
    for found in all_found:
        _show_set(found)
        if contact_sheet is None:
            for number, values in enumerate(found.first_records(_NUM_SHOWN if limit is None else limit)):
                has_images = has_images or any(is_image(value) for value in values.values())
                OUTPUT.print(f"record {number}")
                for name, value in values.items():
                    OUTPUT.print(f"  {printable(name)}: {describe_value(value)}")
        OUTPUT.print()
    if contact_sheet is not None:
        _draw(all_found, contact_sheet, _NUM_DRAWN if limit is None else limit)
    elif has_images and OUTPUT.is_terminal:
        OUTPUT.print("to see images: --contact-sheet FILE.png")


def _draw(all_found: Sequence[FoundSet], url: str, limit: int) -> None:
    from lockstep.data.images.contact_sheet import Section, make_contact_sheet

    sheet = make_contact_sheet(
        Section(
            heading=f"{found.name}: {sum(file.num_records for file in found.files):,} records",
            records=found.spread_records(limit),
            classes=() if found.manifest is None else found.manifest.classes,
        )
        for found in all_found
    )
    bucket_url, key = split_url(url)
    open_bucket(bucket_url).write(key, sheet)
    OUTPUT.print(f"images are in {url}")


def _show_set(found: FoundSet) -> None:
    num_records = sum(file.num_records for file in found.files)
    size_bytes = sum(file.size_bytes for file in found.files)
    OUTPUT.print(f"{found.name}: {num_records:,} records in {len(found.files)} files, {decimal(size_bytes)}")
    if found.manifest is None:
        OUTPUT.print("no manifest")
    else:
        source = f" from {found.manifest.source}" if found.manifest.source else ""
        OUTPUT.print(f"packed {found.manifest.created:%Y-%m-%d %H:%M:%S %Z}{printable(source)}")
        for name, feature in found.manifest.features.items():
            OUTPUT.print(printable(f"feature {name}: {_describe_feature(feature)}"))
    table = Table("file", box=None, pad_edge=False)
    table.add_column("records", justify="right")
    table.add_column("size", justify="right")
    for file in found.files:
        table.add_row(file.url.rsplit("/", 1)[-1], f"{file.num_records:,}", decimal(file.size_bytes))
    OUTPUT.print(table)


def _describe_feature(feature: AbstractFeature) -> str:
    document = feature.to_json()
    dtype, kind = document["dtype"], document["type"]
    if kind == "sparse":
        keys, sizes = document["index_key"], document["size"]
        keys, sizes = ([keys], [sizes]) if isinstance(keys, str) else (keys, sizes)
        return f"{dtype}, sparse, {_describe_shape(sizes)}: {document['value_key']} at {', '.join(keys)}"
    if kind == "fixed_sequence":
        return f"{dtype}, any number of steps, each {_describe_shape(document['step_shape'])}"
    if kind == "ragged":
        named = f" of {document['value_key']}" if "value_key" in document else ""
        parts = [f"{name} {argument}" for name, argument in document.get("partitions", ())]
        return f"{dtype}, any number of values{named}{', parted by ' if parts else ''}{', then '.join(parts)}"
    if "shape" not in document:
        return f"{dtype}, any number of values"
    return f"{dtype}, {_describe_shape(document['shape'])}{', kept as its bytes' if kind == 'raw' else ''}"


def _describe_shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one value"
