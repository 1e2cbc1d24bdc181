"""``lockstep data pack``: a data set into sharded record files in a bucket."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.filesize import decimal

from lockstep.cli.console import OUTPUT, duration
from lockstep.cli.data.progress import show_progress
from lockstep.cli.data.shown import printable
from lockstep.errors import InvalidInputError, UnavailableError

# The rooms that do the work are imported by the verbs: every other verb of the command line starts without NumPy.
if TYPE_CHECKING:
    from lockstep.data.packing.packer import Packed
    from lockstep.data.sources import AbstractSource
    from lockstep.data.sources.transcoding import Transcoding

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(i?)B?", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3}
_IMAGE_SIZE: Final = re.compile(r"(\d{1,5})x(\d{1,5})")


def pack(
    source: Annotated[
        str,
        typer.Argument(
            help="The data set: fashion-mnist, digits, a folder or .zip of images with one subfolder for each class, "
            ".csv or .parquet files, an .npy or .npz file."
        ),
    ],
    bucket: Annotated[str, typer.Argument(help="Where the files go: a folder, gs://bucket/path or s3://bucket/path.")],
    name: Annotated[str | None, typer.Option(help="The name to pack it under; its own by default.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="The name of its one part; or shares of parts, such as train=0.8,val=0.1,test=0.1, dealt by a digest "
            "of each record's key."
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(help="How many files each part is packed into; by default 8, or files of about 128 MiB.", min=1),
    ] = None,
    records_per_shard: Annotated[int | None, typer.Option(help="In its place: how many records each.", min=1)] = None,
    shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="In its place: how long each at most, such as 64MiB.")
    ] = None,
    image_size: Annotated[
        str | None, typer.Option(metavar="HxW", help="Height and width that images are resized to, such as 224x224.")
    ] = None,
    resize: Annotated[
        str | None,
        typer.Option(help="How: crop (to the size's shape, from the middle; the default) or fit (scaled down, whole)."),
    ] = None,
    codec: Annotated[
        str | None, typer.Option(help="What images are encoded as: jpeg or png; files are kept as they are by default.")
    ] = None,
    quality: Annotated[int | None, typer.Option(help="Of JPEGs that are encoded anew; 90 by default.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of a table: the column that records are known by.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TYPE", help="Of CSV files: what a column is: int, float, text or bool. Repeatable."),
    ] = None,
    compression: Annotated[
        str | None, typer.Option(help="gzip or zlib: smaller files, which can be read from the beginning alone.")
    ] = None,
    shuffle: Annotated[
        bool | None,
        typer.Option(
            "--shuffle/--no-shuffle", help="Pack in another order than the source's; by default, of images by class."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the shuffling.", min=0)] = 0,
    workers: Annotated[
        int | None, typer.Option(help="Threads that read and encode; one for each processor by default.", min=1)
    ] = None,
    on_error: Annotated[
        str, typer.Option(help="skip: damaged items are left out, named and counted; raise: the first one is the end.")
    ] = "skip",
    max_skipped: Annotated[int, typer.Option(help="How many damaged items may be left out.", min=0)] = 1000,
    restart: Annotated[
        bool, typer.Option("--restart", help="Do not go on where an interrupted run stopped: begin anew.")
    ] = False,
    folder: Annotated[str | None, typer.Option(help="Where the files of a data set by name are.")] = None,
    or_digits: Annotated[
        bool, typer.Option("--or-digits", help="Take scikit-learn's digits where the data set cannot be reached.")
    ] = False,
) -> None:
    """Pack a data set into sharded TFRecord files of tf.train.Example. Interrupted, the same command goes on."""
    from lockstep.data.packing.packer import pack as pack_source

    arguments: dict[str, Any] = {
        "name": name,
        "split": _read_split(split),
        "num_shards": shards,
        "records_per_shard": records_per_shard,
        "bytes_per_shard": None if shard_size is None else _read_size(shard_size),
        "compression": None if compression is None else compression.upper(),
        "shuffle": shuffle,
        "seed": seed,
        "num_workers": workers,
        "on_error": on_error,
        "max_skipped": max_skipped,
        "resume": not restart,
    }
    found = _open(
        source,
        or_digits=or_digits,
        folder=folder,
        transcoding=_read_transcoding(image_size, resize, codec, quality),
        key=key,
        column_types=dict(_read_column(text) for text in column or ()),
    )
    OUTPUT.print(printable(f"{name or found.name}: from {found.origin}"))
    start_s = time.monotonic()
    try:
        with show_progress(OUTPUT) as report:
            packed = pack_source(found, bucket, **arguments, progress=report, say=OUTPUT.print)
    except KeyboardInterrupt:
        OUTPUT.print("interrupted; the same command goes on from the last finished shard")
        raise
    _show(packed, bucket)
    elapsed_s = time.monotonic() - start_s
    OUTPUT.print(f"{packed.num_records:,} records in {duration(elapsed_s)}")


def _show(packed: Packed, bucket: str) -> None:
    for split, manifest in packed.manifests.items():
        OUTPUT.print(
            f"{split}: {manifest.num_records:,} records in {len(manifest.shards)} shards, "
            f"{decimal(manifest.size_bytes)}, in {bucket}"
        )
    if packed.skipped:
        OUTPUT.print(f"damaged items left out: {len(packed.skipped):,}; the manifests name them")


def _open(source: str, *, or_digits: bool, **options: Any) -> AbstractSource:
    from lockstep.data.sources import open_source

    try:
        with OUTPUT.status(f"looking for {source}"):
            return open_source(source, **options)
    except UnavailableError as error:
        if not or_digits:
            raise
        OUTPUT.print(f"{error.what}; going on with the handwritten digits of scikit-learn")
        return open_source("digits")


def _read_split(text: str | None) -> str | dict[str, float] | None:
    from lockstep.data.packing.dealing import parse_fractions

    return parse_fractions(text) if text is not None and "=" in text else text


def _read_size(text: str) -> int:
    """Reads a length: 1000000, 500KB, 64MiB."""
    found = _SIZE.fullmatch(text.strip())
    size_bytes = 0
    if found is not None:
        number, prefix, binary = found.groups()
        size_bytes = round(float(number) * (1024 if binary else 1000) ** _POWERS[prefix.upper()])
    if size_bytes < 1:
        raise InvalidInputError("--shard-size", received=text, allowed="bytes, or a number with KB, MiB, GiB and so on")
    return size_bytes


def _read_transcoding(
    image_size: str | None, resize: str | None, codec: str | None, quality: int | None
) -> Transcoding | None:
    if image_size is None and resize is None and codec is None and quality is None:
        return None
    from lockstep.data.sources.transcoding import Transcoding

    size: tuple[int, int] | None = None
    if image_size is not None:
        found = _IMAGE_SIZE.fullmatch(image_size)
        if found is None:
            raise InvalidInputError("--image-size", received=image_size, allowed="HEIGHTxWIDTH, such as 224x224")
        size = (int(found[1]), int(found[2]))
    elif resize is not None:
        raise InvalidInputError("--resize says how, and nothing is resized", action="give --image-size HxW")
    words: Any = {"resizing": resize or "crop", "codec": codec}  # which it checks
    return Transcoding(size=size, quality=quality, **words)


def _read_column(text: str) -> tuple[str, str]:
    name, separator, word = text.rpartition("=")
    if not separator or not name:
        raise InvalidInputError("--column", received=text, allowed="NAME=TYPE, such as age=float")
    return name, word
