"""The plan of `lockstep.data.TFRecordDataset`: the records of TFRecord files."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from lockstep.data.arguments import is_sequence
from lockstep.data.dataset import sequential
from lockstep.data.dataset.indexed import InMemory, Records, Reordered
from lockstep.data.dataset.plan import UNKNOWN_CARDINALITY, Pass, Pipeline, Plan
from lockstep.data.dataset.structure import TensorSpec
from lockstep.data.files.compressed import CompressedRecords
from lockstep.data.files.compression import Compression
from lockstep.data.files.record_source import RecordSource
from lockstep.data.files.shards import find_shards, is_pattern
from lockstep.errors import InvalidInputError
from lockstep.storage import glob_urls


def check_names(value: Any, *, of: str) -> list[str]:
    """Checks names of files or patterns, and returns them as a list of text.

    Args:
        value: one name or several, as text, bytes or paths.
        of: the function that received them, for the error.

    Raises:
        InvalidInputError: If a name is of another type.
    """
    members = cast("Sequence[Any]", value) if is_sequence(value) else [value]
    if not all(isinstance(member, str | bytes | os.PathLike) for member in members):
        raise InvalidInputError(
            f"files of {of}", received=type(value).__name__, allowed="a name or several, as text, bytes or paths"
        )
    return [os.fsdecode(member) for member in members]


def check_compression(value: Any) -> Compression | None:
    """Checks a compression type, and returns it; None for no compression.

    Raises:
        InvalidInputError: If the type is not one of those that exist.
    """
    if value in (None, ""):
        return None
    if value in ("GZIP", "ZLIB"):
        return cast("Compression", value)
    raise InvalidInputError("compression_type", received=repr(value), allowed=("GZIP", "ZLIB", "None"))


def files_of_process(names: Any, files: tuple[int, int] | None) -> Any:
    """Returns the files of one process; ``files`` is its index and the number of processes, or None for all files."""
    if files is None:
        return names
    index, count = files
    return names[index::count]


def record_plan(filenames: Any, *, compression: Compression | None, cycle_length: int) -> Plan:
    """Returns the plan of a data set of records.

    Args:
        filenames: a URL, a pattern, the name of a data set's split, or several URLs.
        compression: the files' compression; None for no compression.
        cycle_length: the number of files from which records are taken in turn.

    Raises:
        MissingInputError: If nothing was found.
    """
    names = check_names(filenames, of="TFRecordDataset")
    # The URL of an existing file means that file alone; a pattern or a data set's name means all of its shards.
    names_many = not is_sequence(filenames) and (is_pattern(names[0]) or not glob_urls(names[0]))
    urls = find_shards(names[0] if names_many else names)
    spec = TensorSpec((), "string")

    def make_compressed(data_pass: Pass) -> Pipeline:
        own = files_of_process(urls, data_pass.files)
        return sequential.Interleaved(
            InMemory(own).to_sequential(),
            lambda url, _: CompressedRecords([url], compression=compression),
            cycle_length=cycle_length,
        )

    if compression is not None:
        return Plan(
            make=make_compressed,
            cardinality=lambda: UNKNOWN_CARDINALITY,
            spec=lambda: spec,
            num_files=len(urls),
        )

    @functools.lru_cache(1)
    def opened(files: tuple[int, int] | None) -> RecordSource:
        return RecordSource(files_of_process(urls, files))

    def make(data_pass: Pass) -> Pipeline:
        own = files_of_process(urls, data_pass.files)
        if not own:
            return InMemory(())
        source = opened(data_pass.files)
        records = Records(source)
        if cycle_length == 1 or len(own) == 1:
            return records
        lengths = source.num_records_by_url
        order = interleaved_order([lengths[url] for url in own], cycle_length)
        return Reordered(records, len(records), lambda numbers: order[numbers])

    return Plan(make=make, cardinality=lambda: len(opened(None)), spec=lambda: spec, num_files=len(urls))


def interleaved_order(lengths: Sequence[int], cycle_length: int) -> np.ndarray:
    """Returns the order in which ``interleave`` takes the records of several files: their numbers, int64.

    Args:
        lengths: the number of records of each file.
        cycle_length: the number of files from which records are taken in turn.
    """
    starts = np.cumsum([0, *lengths])
    waiting = deque(range(len(lengths)))
    slots: list[deque[int] | None] = [None] * cycle_length
    order = np.empty(starts[-1], np.int64)
    num_ordered = turn = 0
    while waiting or any(slot is not None for slot in slots):
        slot = slots[turn]
        if slot is None and waiting:
            file = waiting.popleft()
            slot = slots[turn] = deque(range(starts[file], starts[file + 1]))
        if slot:
            order[num_ordered] = slot.popleft()
            num_ordered += 1
        else:
            slots[turn] = None
        turn = (turn + 1) % cycle_length
    return order
