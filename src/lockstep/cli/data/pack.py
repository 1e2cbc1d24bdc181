"""``lockstep data pack``: packs a data set into sharded record files in a bucket."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.filesize import decimal

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.console import ERRORS, OUTPUT, duration
from lockstep.cli.data.flags import (
    check_fit,
    check_one_size,
    check_places,
    in_flags,
    read_columns,
    read_size,
    read_split,
    read_transcoding,
)
from lockstep.cli.data.progress import show_progress
from lockstep.cli.data.shown import printable, show_fields
from lockstep.errors import InvalidInputError, LockstepError, UnavailableError, counted

# The commands import these rooms when they run, so that other commands start without NumPy.
if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.data.packing.packer import Packed
    from lockstep.data.sources import AbstractSource


@answers("PackedForm", hints=True)
def pack(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="The data set: fashion-mnist, digits, a folder or .zip of images with one subfolder for each class, "
            ".csv, .tsv or .parquet files (one, or a pattern such as 'part-*.csv'), an .npy or .npz file. Paths and "
            "URLs, such as gs://bucket/path.",
        ),
    ],
    bucket: Annotated[
        str,
        typer.Argument(
            metavar="BUCKET", help="The bucket to write the files to: a folder, gs://bucket/path or s3://bucket/path."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The data set's name. Default: the source's name; for a path, its last part.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|SHARES",
            help="The name of the only split (default: train), or the fractions of several splits, such as "
            "train=0.8,val=0.1,test=0.1. A digest of a record's key assigns it to a split. Sources with splits of "
            "their own keep them.",
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            help="Number of files for each split. Default: at least 8, and more if a file would be longer than about "
            "128 MiB. Not for CSV files, whose rows are not counted in advance.",
            min=1,
        ),
    ] = None,
    records_per_shard: Annotated[
        int | None, typer.Option(help="Instead of --shards: the number of records in each file.", min=1)
    ] = None,
    shard_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Instead of --shards: the maximum size of each file before compression, with a unit: 64MiB, 500MB.",
        ),
    ] = None,
    image_size: Annotated[
        str | None, typer.Option(metavar="HxW", help="Height and width to resize images to, such as 224x224.")
    ] = None,
    resize: Annotated[
        Literal["crop", "fit"] | None,
        typer.Option(
            help="How to resize images: crop (the default: cut to the aspect ratio around the middle, then scaled) or "
            "fit (the whole image, scaled down)."
        ),
    ] = None,
    codec: Annotated[
        Literal["jpeg", "png"] | None,
        typer.Option(
            help="Format to encode images in. Default: jpeg with --image-size; otherwise the files are kept unchanged."
        ),
    ] = None,
    quality: Annotated[
        int | None, typer.Option(help="Quality of JPEG images that are encoded again. Default: 90.", min=1, max=100)
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="For a table: the column with the records' keys. Default: the row's number."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TYPE",
            help="For CSV files: the type of a column: int, float, text or bool. Default: inferred from the first "
            "rows. May be repeated.",
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="CHARACTER",
            help="For CSV files: the character between columns, such as ';' or tab. Default: detected.",
        ),
    ] = None,
    compression: Annotated[
        Literal["gzip", "zlib"] | None,
        typer.Option(help="Compress each file as a whole. It is smaller, but can be read only from its beginning."),
    ] = None,
    shuffle: Annotated[
        bool | None,
        typer.Option(
            "--shuffle/--no-shuffle",
            help="Whether to shuffle the records. Default: only for images in class folders.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed for shuffling. Default: 0.", min=0)] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Number of threads that read and encode. Default: one for each processor.", min=1, max=256),
    ] = None,
    on_error: Annotated[
        Literal["skip", "raise"] | None,
        typer.Option(
            help="For images: skip (the default) leaves out damaged images, and names and counts them; raise stops at "
            "the first one."
        ),
    ] = None,
    max_skipped: Annotated[
        int | None, typer.Option(help="Maximum number of damaged images to leave out. Default: 1000.", min=0)
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Start again from the beginning, instead of resuming an interrupted run or keeping a finished one.",
        ),
    ] = False,
    folder: Annotated[str | None, typer.Option(help="For fashion-mnist: the folder with its files.")] = None,
    or_digits: Annotated[
        bool,
        typer.Option(
            "--or-digits", help="For fashion-mnist: use the digits that come with Lockstep if it cannot be reached."
        ),
    ] = False,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Pack a data set into sharded TFRecord files of tf.train.Example.

    If the command is interrupted, run it again to resume it. After it has finished, running it again does nothing until
    the source or an option changes.
    """
    from lockstep.data.packing.options import DEFAULT_MAX_SKIPPED
    from lockstep.data.packing.packer import pack as pack_source

    console = OUTPUT if output_format is Format.TABLE else ERRORS  # what is printed before the answer
    check_places(source=source, bucket=bucket)
    check_one_size({"--shards": shards, "--records-per-shard": records_per_shard, "--shard-size": shard_size})
    try:
        arguments: dict[str, Any] = {
            "name": name,
            "split": read_split(split),
            "num_shards": shards,
            "records_per_shard": records_per_shard,
            "bytes_per_shard": None if shard_size is None else read_size(shard_size),
            "compression": None if compression is None else compression.upper(),
            "shuffle": shuffle,
            "seed": seed or 0,
            "num_workers": workers,
            "on_error": on_error or "skip",
            "max_skipped": DEFAULT_MAX_SKIPPED if max_skipped is None else max_skipped,
            "resume": not restart,
        }
        found = _open(
            source,
            console=console,
            or_digits=or_digits,
            folder=folder,
            transcoding=read_transcoding(image_size=image_size, resize=resize, codec=codec, quality=quality),
            key=key,
            column_types=dict(read_columns(column or [])),
            delimiter=delimiter,
        )
        check_fit(found, shuffle=shuffle, seed=seed, on_error=on_error, max_skipped=max_skipped)
        _show_source(found, name=name or found.name, console=console)
        start_s = time.monotonic()
        with show_progress(console) as report:
            packed = pack_source(found, bucket, **arguments, progress=report, say=lambda text: _say(text, console))
    except KeyboardInterrupt:
        console.print("interrupted; run the same command again to resume")
        raise
    except LockstepError as error:
        raise in_flags(error) from None
    elapsed_s = time.monotonic() - start_s
    return Answer(
        show=lambda: _show(packed, bucket, elapsed_s=elapsed_s),
        document=_document(packed, bucket, elapsed_s=elapsed_s),
        hint=f"to look at it: lockstep data inspect {shlex.quote(bucket)}",
    )


def _document(packed: Packed, bucket: str, *, elapsed_s: float) -> dict[str, Any]:
    return {
        "bucket": bucket,
        "splits": [
            {
                "split": split,
                "numRecords": manifest.num_records,
                "numShards": len(manifest.shards),
                "sizeBytes": manifest.size_bytes,
            }
            for split, manifest in packed.manifests.items()
        ],
        "numSkipped": len(packed.skipped),
        "wasThere": packed.was_there,
        "elapsedSeconds": elapsed_s,
    }


def _say(text: str, console: Console = OUTPUT) -> None:
    console.print(printable(text))


def _show_source(source: AbstractSource, *, name: str, console: Console) -> None:
    """Prints what will be packed, before packing starts."""
    _say(f"{name}: from {source.origin}", console)
    for notice in source.notices:
        _say(notice, console)
    from lockstep.data.examples.description import describe_feature

    features = source.features.items()
    show_fields(
        console, {"features": [f"{feature_name}: {describe_feature(feature)}" for feature_name, feature in features]}
    )


def _show(packed: Packed, bucket: str, *, elapsed_s: float) -> None:
    for split, manifest in packed.manifests.items():
        _say(
            f"{split}: {counted(manifest.num_records, 'record')} in {counted(len(manifest.shards), 'shard')}, "
            f"{decimal(manifest.size_bytes)}, in {bucket}"
        )
    if packed.skipped:
        are = "manifest names" if len(packed.manifests) == 1 else "manifests name"
        _say(f"damaged items left out: {len(packed.skipped):,}; the {are} them")
    if packed.was_there:
        _say("to pack again, use --restart")
    else:
        _say(f"{counted(packed.num_records, 'record')} in {duration(elapsed_s)}")


def _open(source: str, *, or_digits: bool, console: Console, **options: Any) -> AbstractSource:
    from lockstep.data.sources import open_source

    if or_digits and source != "fashion-mnist":
        raise InvalidInputError("--or-digits is only for fashion-mnist", received=source)
    try:
        with ERRORS.status(f"looking for {source}"):
            return open_source(source, **options)
    except UnavailableError as error:
        if not or_digits:
            raise
        console.print(f"{error.what}; using the handwritten digits that come with Lockstep")
        return open_source("digits")
