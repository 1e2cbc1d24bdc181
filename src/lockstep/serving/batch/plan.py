"""Divides the input files of a batch prediction into shards. The division depends on nothing but its arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

from pydantic import TypeAdapter

from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.serving.batch.options import BatchOptions, InputFormat, OutputFormat
from lockstep.storage import StoredObject, glob_objects

MIN_SHARD_BYTES: Final = 4 * 2**20
MAX_SHARD_BYTES: Final = 128 * 2**20
NUM_SHARDS: Final = 128
"""How many shards the input is divided into, as far as their sizes stay within the limits above."""
MAX_SHARDS: Final = 99_999
"""The most shards that the names of the output files can number."""
MAX_FILES: Final = 1_000_000

COMPRESSED: Final = ".gz"
"""The ending of the names of compressed text files, which can only be read from their beginning."""


@final
@dataclass(frozen=True, kw_only=True)
class InputFile:
    """A file with instances.

    Attributes:
        url: the file's URL.
        size_bytes: its length in bytes.
        modified_time_s: the time of its last write, in seconds since 1970 UTC.
    """

    url: str
    size_bytes: int
    modified_time_s: float


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """The instances that begin within a range of a file's bytes.

    Attributes:
        file: the number of the file in the plan.
        start: the first byte.
        end: one past the last byte.
    """

    file: int
    start: int
    end: int


@final
@dataclass(frozen=True, kw_only=True)
class Plan:
    """The shards of a batch prediction.

    Attributes:
        model_sha256: the SHA-256 digest of the model's file, in hexadecimal.
        input_format: the format of the input files.
        output_format: the format of the output files.
        key_field: the field of an instance that is copied to its prediction; None if there is none.
        files: the input files, in the order of their instances.
        shards: the parts of each shard, in the order of their instances.
    """

    model_sha256: str
    input_format: InputFormat
    output_format: OutputFormat
    key_field: str | None
    files: tuple[InputFile, ...]
    shards: tuple[tuple[Part, ...], ...]

    @cached_property
    def digest(self) -> str:
        """A digest of everything that the predictions depend on."""
        return hashlib.sha256(PLAN.dump_json(self)).hexdigest()[:32]


PLAN: Final = TypeAdapter(Plan)
"""Reads and writes a `Plan` as JSON."""


def make_plan(options: BatchOptions, *, files: Sequence[InputFile], model_sha256: str) -> Plan:
    """Divides files into shards.

    Args:
        options: what the job reads and writes.
        files: the input files, as `list_inputs` returns them.
        model_sha256: the SHA-256 digest of the model's file, in hexadecimal.

    Raises:
        InvalidInputError: there would be more than `MAX_SHARDS` shards.
    """
    shards = divide(files, input_format=options.input_format, shard_size_bytes=options.shard_size_bytes)
    if len(shards) > MAX_SHARDS:
        raise InvalidInputError(
            "too many shards",
            received=f"{len(shards):,}",
            allowed=f"at most {MAX_SHARDS:,}",
            action="choose a larger lockstep.shardSizeMib",
        )
    return Plan(
        model_sha256=model_sha256,
        input_format=options.input_format,
        output_format=options.output_format,
        key_field=options.key_field,
        files=tuple(files),
        shards=shards,
    )


def list_inputs(options: BatchOptions) -> tuple[list[InputFile], list[str]]:
    """Lists the files that the input paths match. Blocks.

    Files below the output path are left out, so that a job does not read what it or an earlier one has written.

    Args:
        options: what the job reads and writes.

    Returns:
        The files in the order of the paths, those of one path sorted by URL, each once; and the paths that match none.

    Raises:
        MissingInputError: no path matches any file.
        InvalidInputError: the paths match too many files.
        StorageError: a bucket could not be listed.
    """
    found: dict[str, InputFile] = {}
    unmatched: list[str] = []
    for path in options.input_paths:
        matching = _outside(glob_objects(f"{path}*" if path.endswith("/") else path), options.output_path)
        if not matching:
            unmatched.append(path)
        for url, item in matching.items():
            file = InputFile(url=url, size_bytes=item.size_bytes, modified_time_s=item.modified_time_s)
            found.setdefault(url, file)
    if not found:
        raise MissingInputError(
            "no file matches the input paths",
            received=", ".join(options.input_paths[:5]),
            action="see which files are there with `lockstep bucket ls`",
        )
    if len(found) > MAX_FILES:
        raise InvalidInputError("too many input files", received=f"{len(found):,}", allowed=f"at most {MAX_FILES:,}")
    return list(found.values()), unmatched


def _outside(matching: Mapping[str, StoredObject], folder: str) -> dict[str, StoredObject]:
    inside = f"{folder.rstrip('/')}/"
    return {url: item for url, item in matching.items() if not url.startswith(inside)}


def divide(
    files: Sequence[InputFile], *, input_format: InputFormat, shard_size_bytes: int | None = None
) -> tuple[tuple[Part, ...], ...]:
    """Divides files into shards of about the same size.

    Small files share a shard. A large file of lines is divided; others can only be read from their beginning.

    Args:
        files: the files, in the order of their instances.
        input_format: the format of the files.
        shard_size_bytes: the size of a shard, in bytes; None chooses by the size of all files.

    Returns:
        The parts of each shard, one shard or more. Files of no bytes are in none.
    """
    total_bytes = sum(file.size_bytes for file in files)
    size_bytes = shard_size_bytes or min(max(total_bytes // NUM_SHARDS, MIN_SHARD_BYTES), MAX_SHARD_BYTES)
    if shard_size_bytes is None:
        size_bytes = max(size_bytes, -(-total_bytes // (MAX_SHARDS // 2)))
    shards: list[tuple[Part, ...]] = []
    gathered: list[Part] = []
    gathered_bytes = 0
    for number, file in enumerate(files):
        num_parts = 1
        if input_format.has_lines and not file.url.endswith(COMPRESSED):
            num_parts = max(1, round(file.size_bytes / size_bytes))
        for index in range(num_parts if file.size_bytes else 0):
            start, end = (file.size_bytes * edge // num_parts for edge in (index, index + 1))
            if gathered and gathered_bytes + end - start > size_bytes:
                shards.append(tuple(gathered))
                gathered, gathered_bytes = [], 0
            gathered.append(Part(file=number, start=start, end=end))
            gathered_bytes += end - start
    if gathered or not shards:
        shards.append(tuple(gathered))
    return tuple(shards)
