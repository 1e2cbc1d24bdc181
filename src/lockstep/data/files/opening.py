"""Opening files of records by what they are: TFRecord, plain or compressed, and ArrayRecord."""

from __future__ import annotations

import os
from collections.abc import Sequence

import grain

from lockstep.data.files.array_record import ArrayRecordSource
from lockstep.data.files.compressed import CompressedRecords
from lockstep.data.files.compression import HEAD_BYTES
from lockstep.data.files.kinds import kind_of
from lockstep.data.files.record_source import RecordSource
from lockstep.data.files.shards import find_shards
from lockstep.data.files.skipping import OnError
from lockstep.errors import InvalidInputError
from lockstep.storage import open_bucket, split_url


def records(
    urls: str | os.PathLike[str] | Sequence[str], *, on_error: OnError = "raise"
) -> grain.MapDataset | CompressedRecords:
    """Returns the records of files as a Grain dataset of bytes, to which Grain's transformations apply.

    The first file's beginning says what the files are; one of another kind is an error when it is opened.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`) or the name of a data set's split (BUCKET/NAME-train), of
            which each shard has to be there; or the URLs of files of one kind.
        on_error: what is done about records that cannot be read: "raise", or `lockstep.data.Skip`, which records by
            number alone know.

    Returns:
        Records by number of TFRecord and ArrayRecord files (a ``grain.MapDataset`` over `lockstep.data.RecordSource` or
        `lockstep.data.ArrayRecordSource`); a `lockstep.data.CompressedRecords`, in order, of files that are compressed.

    Raises:
        MissingInputError: nothing was found, or a shard is missing.
        CorruptDataError: a file is cut off, or of another kind than the first.
        InvalidInputError: compressed files are to skip records, or a package is missing.
        StorageError: a file could not be read.
    """
    first = find_shards(urls)[0]
    bucket_url, key = split_url(first)
    kind = kind_of(open_bucket(bucket_url).read(key, end_byte=HEAD_BYTES))
    if kind == "TFRecord":
        return grain.MapDataset.source(RecordSource(urls, on_error=on_error))
    if kind == "ArrayRecord":
        return grain.MapDataset.source(ArrayRecordSource(urls, on_error=on_error))
    if on_error != "raise":
        raise InvalidInputError(
            "records of compressed files cannot be skipped: behind a damaged one there is no next one",
            received=f"{first}, compressed by {kind}",
            action="leave out on_error, or pack the data again without compression",
        )
    return CompressedRecords(urls)
