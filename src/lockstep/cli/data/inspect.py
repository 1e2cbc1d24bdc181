"""``lockstep data inspect``: shows packed files: counts, classes, features, options, first records and files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.filesize import decimal

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.console import OUTPUT
from lockstep.cli.data.shown import damage_documents, first_of, printable, show_damages, show_fields, show_notes
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError, counted
from lockstep.storage import open_bucket, split_url

# The commands import these rooms when they run, so that other commands start without NumPy.
if TYPE_CHECKING:
    from lockstep.data.finding import Damage
    from lockstep.data.inspection import FoundSet, Inspection
    from lockstep.data.packing.manifest import Manifest

_NUM_SHOWN: Final = 3
_NUM_DRAWN: Final = 60
_NUM_FILES: Final = 20
"""The number of files above which undamaged files in the middle of the list are not shown."""
_NUM_CHARACTERS: Final = 130
"""The number of characters of a list of names to show: about two lines."""
_OF_IMAGES: Final = ("image_size", "resize", "codec", "quality")


@answers("InspectionForm", hints=True)
def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A bucket or folder, a data set's split in it, a pattern of files, or a file."
        ),
    ],
    limit: Annotated[
        int | None, typer.Option(help="How many records to show of each data set: 3, or 60 in a picture.", min=0)
    ] = None,
    contact_sheet: Annotated[
        str | None, typer.Option(metavar="FILE.png", help="Draw images of records, with their labels, into a picture.")
    ] = None,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Show packed files: counts, classes, features, packing options and the first records.

    TARGET is a path, or a file://, gs:// or s3:// URL:

        lockstep data inspect gs://bucket/pets

        lockstep data inspect gs://bucket/pets/pets-train

        lockstep data inspect 'pets/pets-train-*.tfrec'

    Damaged and missing files are listed, and the others are shown.

    Exit codes: 0 no damage was found in the data that was read ("lockstep data verify" reads everything); 65 data is
    damaged; 66 a file is missing, or there are no files; 64 the target or an option is not valid; 20 there is no
    permission to read the bucket; 74 the bucket cannot be read.
    """
    from lockstep.data.finding import raise_damages
    from lockstep.data.inspection import inspect as inspect_files

    if contact_sheet is not None and not contact_sheet.endswith(".png"):
        raise InvalidInputError(
            "--contact-sheet draws a PNG", received=contact_sheet, allowed="a name that ends in .png"
        )
    inspection = inspect_files(target)
    damages = list(inspection.damages)
    if output_format is Format.JSON and contact_sheet is not None:
        _draw(inspection.sets, contact_sheet, _NUM_DRAWN if limit is None else limit)
    elif output_format is Format.TABLE:
        _show(inspection, damages, limit=limit, contact_sheet=contact_sheet)
    error: LockstepError | None = None
    try:
        raise_damages(damages, num_files=inspection.num_files)
    except LockstepError as found:
        error = found
    return Answer(
        show=lambda: None,
        document={
            "sets": [_set_document(found) for found in inspection.sets],
            "damages": damage_documents(damages),
            "notes": list(inspection.notes),
        },
        hint=f"to check every record: lockstep data verify {shlex.quote(target)}",
        error=error,
    )


def _show(inspection: Inspection, damages: list[Damage], *, limit: int | None, contact_sheet: str | None) -> None:
    """Prints what was found, and appends records that cannot be read to the damages."""
    has_images = False
    for found in inspection.sets:
        _show_set(found)
        if contact_sheet is None:
            has_images |= _show_records(found, _NUM_SHOWN if limit is None else limit, damages)
        _show_files(found)
        OUTPUT.print()
    if contact_sheet is not None:
        _draw(inspection.sets, contact_sheet, _NUM_DRAWN if limit is None else limit)
        OUTPUT.print(f"images are in {contact_sheet}")
    elif has_images and OUTPUT.is_terminal:
        OUTPUT.print("to see images: --contact-sheet FILE.png")
    show_damages(OUTPUT, damages)
    show_notes(OUTPUT, inspection.notes)


def _set_document(found: FoundSet) -> dict[str, Any]:
    from lockstep.data.examples.description import describe_feature

    manifest = found.manifest
    return {
        "url": found.url,
        "numRecords": sum(file.num_records for file in found.sound_files),
        "sizeBytes": sum(file.size_bytes for file in found.sound_files),
        "classes": [] if manifest is None else list(manifest.classes),
        "features": {}
        if manifest is None
        else {name: describe_feature(feature) for name, feature in manifest.features.items()},
        "source": None if manifest is None else manifest.source,
        "files": [
            {"file": name, "numRecords": num_records, "sizeBytes": size_bytes, "state": state or "sound"}
            for name, num_records, size_bytes, state in _files(found)
        ],
    }


def _draw(all_found: Sequence[FoundSet], url: str, limit: int) -> None:
    from lockstep.data.images.contact_sheet import Section, make_contact_sheet

    sheet = make_contact_sheet(
        Section(
            heading=f"{found.name}: {sum(file.num_records for file in found.sound_files):,} records",
            records=found.spread_records(limit),
            classes=() if found.manifest is None else found.manifest.classes,
        )
        for found in all_found
    )
    bucket_url, key = split_url(url)
    open_bucket(bucket_url).write(key, sheet)


def _show_set(found: FoundSet) -> None:
    others = [file for file in found.files if file.is_other]
    if len(others) == len(found.files) and not found.missing:  # all files are alike
        others = []
    stated = [part for part in (*found.files, *found.missing) if part not in others]
    sound = found.sound_files
    num_records = sum(file.num_records for file in sound)
    records, files = counted(num_records, "record"), counted(len(stated), "file")
    if len(sound) < len(stated):
        records = f"{num_records:,} of {counted(sum(part.num_records for part in stated), 'record')}"
        files = f"{len(sound):,} of {files}"
    size_bytes = sum(file.size_bytes for file in sound)
    beside = f"; beside them {counted(len(others), 'file')} of another packing" if others else ""
    OUTPUT.print(printable(f"{found.url}: {records} in {files}, {decimal(size_bytes)}{beside}"))
    if found.manifest is None:
        OUTPUT.print("no manifest")
    else:
        show_fields(OUTPUT, _describe_manifest(found.manifest))


def _describe_manifest(manifest: Manifest) -> dict[str, list[str]]:
    from lockstep.data.examples.description import describe_feature
    from lockstep.data.packing.leftovers import TIME_FORMAT

    options = dict(manifest.options)
    images = _describe_images(options)
    shares = options.pop("split") if isinstance(options.get("split"), Mapping) else {}
    by = f" by Lockstep {manifest.lockstep_version}" if manifest.lockstep_version else ""
    fields: dict[str, list[str]] = {}
    if manifest.classes:
        fields["classes"] = [f"{len(manifest.classes):,}: {first_of(manifest.classes, num_characters=_NUM_CHARACTERS)}"]
    if images:
        fields["images"] = [images]
    if manifest.skipped:
        keys = first_of([item.key for item in manifest.skipped], num_characters=_NUM_CHARACTERS)
        fields["left out"] = [f"{counted(len(manifest.skipped), 'damaged item')}: {keys}"]
    fields["features"] = [f"{name}: {describe_feature(feature)}" for name, feature in manifest.features.items()]
    if manifest.source:
        fields["source"] = [manifest.source]
    if shares:
        fields["split"] = [f"{manifest.split}, of {_describe_options(shares)}"]
    if options:
        fields["options"] = [_describe_options(options)]
    fields["packed"] = [f"{manifest.created:{TIME_FORMAT}}{by}"]
    return fields


def _describe_images(options: dict[str, Any]) -> str:
    """Removes the options for images from the options, and describes them; "" if images were kept unchanged."""
    from lockstep.data.examples.description import describe_shape

    size, resize, codec, quality = (options.pop(name, None) for name in _OF_IMAGES)
    parts: list[str] = []
    if isinstance(size, list):
        parts.append(f"{'within ' if resize == 'fit' else ''}{describe_shape(size)} ({resize})")
    if codec is not None:
        parts.append(f"{codec}".upper() + ("" if quality is None else f" of quality {quality}"))
    return ", ".join(parts)


def _describe_options(options: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in options.items()
    )


def _show_records(found: FoundSet, limit: int, damages: list[Damage]) -> bool:
    """Prints the first records, and appends an unreadable record to ``damages``; returns whether there are images."""
    from lockstep.data.finding import Damage
    from lockstep.data.images.contact_sheet import LABEL, is_image
    from lockstep.data.inspection import describe_value

    has_images = False
    classes = () if found.manifest is None else found.manifest.classes
    is_whole = len(found.sound_files) == len(found.files) + len(found.missing)
    try:
        for number, values in enumerate(found.first_records(limit)):
            OUTPUT.print(f"record {number}{'' if is_whole else ' of the sound files'}")
            for name, value in values.items():
                has_images = has_images or is_image(value)
                label = _name_of_class(value, classes) if name == LABEL else ""
                OUTPUT.print(f"  {printable(name)}: {describe_value(value)}{label}")
    except CorruptDataError as error:
        damages.append(Damage(url=found.url, error=error))
    return has_images


def _name_of_class(label: Any, classes: Sequence[str]) -> str:
    try:
        number = int(label)
    except (TypeError, ValueError):  # several values, or text
        return ""
    name = classes[number] if 0 <= number < len(classes) else ""
    return f" ({printable(name)})" if name not in ("", f"{number}") else ""


def _files(found: FoundSet) -> list[tuple[str, int, int, str]]:
    """Returns the name, the number of records, the size in bytes and the state of each file; "" for a sound one."""
    rows: list[tuple[str, int, int, str]] = []
    for file in found.files:
        state = "damaged" if file.error is not None else "of another packing" if file.is_other else ""
        rows.append((file.url.rsplit("/", 1)[-1], file.num_records, file.size_bytes, state))
    rows.extend((shard.file, shard.num_records, shard.size_bytes, "missing") for shard in found.missing)
    return sorted(rows)


def _show_files(found: FoundSet) -> None:
    from rich.table import Table  # here, because the JSON needs none

    rows = [(name, f"{num:,}", decimal(size_bytes), state) for name, num, size_bytes, state in _files(found)]
    shown = rows
    if len(rows) > _NUM_FILES:
        shown = [
            row for number, row in enumerate(rows) if row[3] or number < _NUM_FILES // 2 or number == len(rows) - 1
        ]
    table = Table("file", box=None, pad_edge=False)
    table.add_column("records", justify="right")
    table.add_column("size", justify="right")
    if any(row[3] for row in rows):
        table.add_column("")
    for row in shown:
        table.add_row(*map(printable, row[: len(table.columns)]))
    OUTPUT.print(table)
    if len(shown) < len(rows):
        OUTPUT.print(f"and {len(rows) - len(shown):,} more")
