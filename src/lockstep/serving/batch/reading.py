"""Reads the instances of a shard, in order. What cannot be read is an instance with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, final

from lockstep.data.files.compression import read_compressed
from lockstep.data.files.record_source import RecordSource
from lockstep.data.files.skipping import Skip
from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.serving.batch.lines import count_lines, read_compressed_lines, read_lines
from lockstep.serving.batch.options import InputFormat
from lockstep.serving.batch.parsing import CsvRows, Instance, image_instance, parse_line, parse_record
from lockstep.serving.batch.plan import COMPRESSED, InputFile, Part, Plan
from lockstep.serving.instances import InputSpec
from lockstep.storage import AbstractBucket, open_bucket, split_url

NUM_RECORDS_AT_ONCE: Final = 256
NUM_FILES_AT_ONCE: Final = 32
"""How many image files are read at the same time: a bucket responds slowly, but to many requests at once."""
NUM_COUNTED: Final = 64
"""For how many parts of files the number of the first line is kept."""
MAX_IMAGE_BYTES: Final = 2**28
MAX_SKIPPED: Final = 2**40


@final
@dataclass(frozen=True, kw_only=True)
class ReadInstance:
    """An instance, or the reason why there is none.

    Attributes:
        file: the URL of its file.
        line: the number of its line, from 1; within the part if the part begins within the file.
        record: the number of its record, from 0.
        part: the part of the file.
        instance: the instance; None if it cannot be read.
        problem: why it cannot be read.
    """

    file: str
    part: Part
    line: int | None = None
    record: int | None = None
    instance: Instance | None = None
    problem: str = ""


def read_shard(plan: Plan, *, shard: int, specs: Sequence[InputSpec]) -> Iterator[ReadInstance]:
    """Yields the instances of a shard. Blocks.

    Args:
        plan: the plan.
        shard: the number of the shard.
        specs: the model's inputs.

    Raises:
        StorageError: a bucket could not be read.
    """
    parts = plan.shards[shard]
    if plan.input_format is InputFormat.IMAGE_FILES:
        yield from _read_images(plan, parts)
        return
    for part in parts:
        if plan.input_format.has_lines:
            yield from _read_lines(plan, part, specs=specs)
        else:
            yield from _read_records(plan, part, specs=specs)


def line_of(read: ReadInstance, *, plan: Plan) -> int | None:
    """Returns the number of an instance's line in its file, from 1; None if it has none. May read the file up to there.

    Raises:
        StorageError: the file could not be read.
    """
    if read.line is None or read.part.start == 0:
        return read.line
    return read.line + _num_lines_before(read.file, read.part.start, plan.files[read.part.file].size_bytes)


@lru_cache(maxsize=NUM_COUNTED)
def _num_lines_before(url: str, start: int, size_bytes: int) -> int:
    bucket, key = _locate(url)
    return count_lines(bucket, key, before=start, size_bytes=size_bytes)


def _locate(url: str) -> tuple[AbstractBucket, str]:
    bucket_url, key = split_url(url)
    return open_bucket(bucket_url), key


def _read_lines(plan: Plan, part: Part, *, specs: Sequence[InputSpec]) -> Iterator[ReadInstance]:
    file = plan.files[part.file]
    bucket, key = _locate(file.url)
    number = 0
    rows: CsvRows | None = None
    try:
        for number, line in enumerate(_lines(bucket, key, file, part), start=1):
            place = ReadInstance(file=file.url, part=part, line=number)
            if line is None:
                yield replace(place, problem="the line is too long")
                continue
            if not line.strip():
                continue
            try:
                if plan.input_format is InputFormat.JSON:
                    yield replace(place, instance=parse_line(line, key_field=plan.key_field))
                    continue
                if rows is None:
                    is_first = part.start == 0 and number == 1
                    first_line = line if is_first else _first_line(bucket, key, file)
                    rows = CsvRows(first_line, specs=specs, key_field=plan.key_field)
                    if is_first and rows.has_header:
                        continue
                yield replace(place, instance=rows.parse(line))
            except InvalidInputError as error:
                yield replace(place, problem=str(error))
    except (CorruptDataError, MissingInputError) as error:
        yield ReadInstance(file=file.url, part=part, line=number + 1, problem=str(error))


def _lines(bucket: AbstractBucket, key: str, file: InputFile, part: Part) -> Iterator[bytes | None]:
    if file.url.endswith(COMPRESSED):
        return read_compressed_lines(bucket, key)
    return read_lines(bucket, key, start=part.start, end=part.end, size_bytes=file.size_bytes)


def _first_line(bucket: AbstractBucket, key: str, file: InputFile) -> bytes:
    part = Part(file=0, start=0, end=1)
    return next(_lines(bucket, key, file, part), None) or b""


def _read_records(plan: Plan, part: Part, *, specs: Sequence[InputSpec]) -> Iterator[ReadInstance]:
    file = plan.files[part.file]
    number = -1
    records = _compressed_records if plan.input_format is InputFormat.TF_RECORD_GZIP else _records
    try:
        for number, record in enumerate(records(file.url)):
            place = ReadInstance(file=file.url, part=part, record=number)
            if isinstance(record, str):
                yield replace(place, problem=record)
                continue
            try:
                instance = parse_record(record, specs=specs, key_field=plan.key_field)
            except InvalidInputError as error:
                yield replace(place, problem=str(error))
            else:
                yield replace(place, instance=instance)
    except (CorruptDataError, MissingInputError) as error:  # no record after the damage can be found
        yield ReadInstance(file=file.url, part=part, record=number + 1, problem=str(error))


def _compressed_records(url: str) -> Iterator[bytes]:
    return read_compressed(url, compression="GZIP")


def _records(url: str) -> Iterator[bytes | str]:
    """Yields the records of a TFRecord file; for a damaged one, the reason.

    Raises:
        CorruptDataError: the file is damaged or cut off, and no further record can be found.
    """
    damage = None
    try:
        source = RecordSource([url])
    except CorruptDataError as error:
        damage = str(error)
        source = RecordSource([url], on_error=Skip(MAX_SKIPPED))
    record: bytes | str = b""
    for start in range(0, len(source), NUM_RECORDS_AT_ONCE):
        numbers = range(start, min(start + NUM_RECORDS_AT_ONCE, len(source)))
        try:
            batch = source.__getitems__(numbers)
            records = [batch[index] for index in range(len(batch))]
        except CorruptDataError:
            records = [_record(source, number) for number in numbers]
        for record in records:
            yield record
    if damage not in (None, record):  # lost records that the file's name counts have been yielded
        raise CorruptDataError(damage)


def _record(source: RecordSource, number: int) -> bytes | str:
    try:
        return source.__getitems__([number])[0]
    except CorruptDataError as error:
        return str(error)


def _read_images(plan: Plan, parts: Sequence[Part]) -> Iterator[ReadInstance]:
    def read(part: Part) -> ReadInstance:
        file = plan.files[part.file]
        place = ReadInstance(file=file.url, part=part)
        if file.size_bytes > MAX_IMAGE_BYTES:
            return replace(place, problem=f"the file is too large: {file.size_bytes} bytes")
        bucket, key = _locate(file.url)
        try:
            return replace(place, instance=image_instance(bucket.read(key)))
        except MissingInputError as error:
            return replace(place, problem=str(error))

    with ThreadPoolExecutor(NUM_FILES_AT_ONCE, "lockstep-images") as executor:
        for chunk in _chunks(parts):
            yield from executor.map(read, chunk)


def _chunks(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    for start in range(0, len(parts), NUM_FILES_AT_ONCE):
        yield parts[start : start + NUM_FILES_AT_ONCE]
