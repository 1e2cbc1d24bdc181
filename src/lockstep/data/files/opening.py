"""Opens record files of any kind: TFRecord, plain or compressed, and ArrayRecord."""

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
    """Returns the records of files as a Grain dataset of bytes, which supports Grain's transformations.

    The kind of all files is detected from the beginning of the first one. A file of another kind raises an error when
    it is opened.

    Args:
        urls: a pattern (see `lockstep.storage.glob_urls`) or the name of a data set's split (BUCKET/NAME-train), of
            which each shard must exist; or the URLs of files of one kind.
        on_error: the policy for unreadable records: "raise", or `lockstep.data.Skip`, which compressed files do not
            support.

    Returns:
        For TFRecord and ArrayRecord files, a ``grain.MapDataset`` over a `lockstep.data.RecordSource` or a
        `lockstep.data.ArrayRecordSource`, which gives records by number. For compressed files, a
        `lockstep.data.CompressedRecords`, which gives records in order.

    Raises:
        MissingInputError: no file was found, or a shard is missing.
        CorruptDataError: a file is cut off, or its kind differs from the first file's.
        InvalidInputError: ``on_error`` is `lockstep.data.Skip` and the files are compressed, or a package is missing.
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
            "records of compressed files cannot be skipped: no record after a damaged one can be found",
            received=f"{first}, compressed by {kind}",
            action="leave out on_error, or pack the data again without compression",
        )
    return CompressedRecords(urls)
