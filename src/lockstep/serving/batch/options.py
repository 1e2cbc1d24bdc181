"""What a batch prediction reads, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import final


@final
class InputFormat(StrEnum):
    """The format of the files with instances."""

    JSON = "JSON"
    """Each line is an instance."""
    CSV = "CSV"
    """Each line is a row of numbers. The first line may have the names of the columns."""
    TF_RECORD = "TF_RECORD"
    """Each record is a ``tf.train.Example``, or an image file."""
    TF_RECORD_GZIP = "TF_RECORD_GZIP"
    """As TF_RECORD, compressed."""
    IMAGE_FILES = "IMAGE_FILES"
    """Each file is an instance: a JPEG or PNG."""

    @property
    def has_lines(self) -> bool:
        """Whether each line of a file is an instance."""
        return self in (InputFormat.JSON, InputFormat.CSV)


@final
class OutputFormat(StrEnum):
    """The format of the files with predictions."""

    JSON = "JSON"
    CSV = "CSV"


@final
@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What a batch prediction reads, and what it writes.

    Attributes:
        run_id: distinguishes the job from others that write to the same folder.
        input_paths: the URLs of the files with instances; they may have wildcards.
        output_path: the URL of the folder for predictions.
        input_format: the format of the input files.
        output_format: the format of the output files.
        batch_size: the number of instances in one run of the model.
        shard_size_bytes: how much input makes one shard, in bytes; None chooses by the size of the input.
        key_field: the field of an instance that is not for the model and that is copied to its prediction.
    """

    run_id: str
    input_paths: tuple[str, ...]
    output_path: str
    input_format: InputFormat
    output_format: OutputFormat = OutputFormat.JSON
    batch_size: int = 64
    shard_size_bytes: int | None = None
    key_field: str | None = None
