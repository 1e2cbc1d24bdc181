"""Field scans: parse many protocol-buffer messages of different layouts together, with NumPy.

All messages of a batch are scanned together: one step reads the next field of every message. So the number of steps is
the number of fields of one message, not of all messages. Some records are left to the parser of the protobuf library:
damaged ones, and those that are not encoded as TensorFlow and this package do it (numbers that are not packed, a name
twice, a feature in several pieces). Of features that are not requested, only the name is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import numpy as np

from lockstep.data.examples.columns import OTHER_KIND, VaryingValues, runs_of
from lockstep.data.examples.record_layout import KIND_OF_FIELD
from lockstep.data.files.record_batch import windows

_LENGTH_DELIMITED: Final = 2
_CONTINUATION_BIT: Final = 0x80
_MAX_LENGTH_BYTES: Final = 5
_MAX_VARINT_BYTES: Final = 10
_MIN_TOGETHER: Final = 8
"""The smallest number of messages that are scanned together; fewer are scanned one by one."""

_MEAN_COPIED_BYTES: Final = 64
"""The mean length from which runs of bytes are copied run by run, instead of by an index for each byte."""

_FIELD_OF_KIND: Final = {kind: number for number, kind in KIND_OF_FIELD.items()}


class _Spans(NamedTuple):
    """The start and end of messages in the data, each with the number of its parent, in the order of the parents."""

    parents: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def take(self, chosen: np.ndarray) -> _Spans:
        return _Spans(self.parents[chosen], self.starts[chosen], self.ends[chosen])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ScannedList:
    """One feature list of several records.

    Attributes:
        numbers: the numbers of the records that have the list, integers of shape (k,).
        num_entries: the number of entries of each of these records, int64 of shape (k,).
        entries: the values of the entries.
    """

    numbers: np.ndarray
    num_entries: np.ndarray
    entries: VaryingValues


@final
class FieldScan:
    """Scans the records of a batch, which are in one buffer.

    Args:
        data: the concatenated bytes of the records, uint8.
        lengths: the length of each record in bytes, int64 of shape (num_records,).
    """

    def __init__(self, data: np.ndarray, *, lengths: np.ndarray) -> None:
        self._data = data
        ends = np.cumsum(lengths)
        self._records = _Spans(np.arange(len(lengths)), ends - lengths, ends)
        self._is_unparsed = np.zeros(len(lengths), bool)

    @property
    def unparsed(self) -> np.ndarray:
        """Whether each record is left to another parser, because its encoding is unusual: bool of (num_records,)."""
        return self._is_unparsed

    def scan_examples(self, keys: Mapping[str, str]) -> dict[str, VaryingValues]:
        """Reads features of ``tf.train.Example`` messages.

        Args:
            keys: the names of the features to read, with the kind of each.

        Returns:
            The values by name, of the records that are not left to another parser.
        """
        fields, spans = self._fields(self._records, self._records.parents)
        self._mark_unparsed(spans.parents[fields != 1])
        found = {key: self._features(span, span.parents, keys[key]) for key, span in self._match(spans, keys).items()}
        return {key: self._drop_unparsed(values) for key, values in found.items()}

    def scan_sequences(
        self, context: Mapping[str, str], lists: Mapping[str, str]
    ) -> tuple[dict[str, VaryingValues], dict[str, ScannedList]]:
        """Reads features of ``tf.train.SequenceExample`` messages.

        Args:
            context: the names of the context's features to read, with the kind of each.
            lists: the names of the feature lists to read, with the kind of the entries of each.

        Returns:
            The values of the context by name, and the feature lists by name, of the records that are not left to
            another parser.
        """
        fields, spans = self._fields(self._records, self._records.parents)
        self._mark_unparsed(spans.parents[(fields != 1) & (fields != 2)])
        of_context, of_lists = spans.take(fields == 1), spans.take(fields == 2)
        values = {
            key: self._features(span, span.parents, context[key])
            for key, span in self._match(of_context, context).items()
        }
        matched = self._match(of_lists, lists)
        # The lists of all names are scanned together, in as many steps as the longest of them has entries.
        every = (
            _Spans(*(np.concatenate(parts) for parts in zip(*matched.values(), strict=True))) if matched else of_lists
        )
        numbers, inner = self._fields(every, every.parents)
        owners = every.parents[inner.parents]
        self._mark_unparsed(owners[numbers != 1])
        entries: dict[str, ScannedList] = {}
        first = 0
        for key, span in matched.items():
            last = first + len(span.parents)
            part = slice(*np.searchsorted(inner.parents, [first, last]).tolist())
            entries[key] = ScannedList(
                numbers=span.parents,
                num_entries=np.bincount(inner.parents[part] - first, minlength=len(span.parents)),
                entries=self._features(_Spans(*(column[part] for column in inner)), owners[part], lists[key]),
            )
            first = last
        return (
            {key: self._drop_unparsed(found) for key, found in values.items()},
            {key: self._drop_unparsed_of_list(found) for key, found in entries.items()},
        )

    def _mark_unparsed(self, records: np.ndarray) -> None:
        self._is_unparsed[records] = True

    def _fields(self, messages: _Spans, records: np.ndarray) -> tuple[np.ndarray, _Spans]:
        """Returns the numbers and the spans of the messages' fields; a span's parent is the index of its message."""
        numbers, spans, is_bad = scan_fields(self._data, messages.starts, messages.ends)
        self._mark_unparsed(records[is_bad])
        return numbers, spans

    def _match(self, maps: _Spans, keys: Mapping[str, str]) -> dict[str, _Spans]:
        """Looks up keys in map fields: returns the spans of their values, with the records as parents.

        Several maps of one record count as one.
        """
        numbers, entries = self._fields(maps, maps.parents)
        records = maps.parents[entries.parents]
        self._mark_unparsed(records[numbers != 1])
        numbers, parts = self._fields(entries, records)
        is_pair = np.bincount(parts.parents, minlength=len(records)) == 2
        self._mark_unparsed(records[~is_pair])
        chosen = is_pair[parts.parents]
        pairs = parts.take(chosen)
        first, second = numbers[chosen].reshape(-1, 2).T
        records = records[pairs.parents[::2]]
        self._mark_unparsed(records[(first + second != 3) | (first * second != 2)])
        starts, ends = pairs.starts.reshape(-1, 2), pairs.ends.reshape(-1, 2)
        rows, name, value = np.arange(len(records)), (first != 1).astype(np.intp), (first == 1).astype(np.intp)
        names = _Spans(records, starts[rows, name], ends[rows, name])
        values = _Spans(records, starts[rows, value], ends[rows, value])
        found: dict[str, _Spans] = {}
        for key in keys:
            matched = values.take(_equal(self._data, names, key.encode()))
            found[key] = matched
            self._mark_unparsed(np.flatnonzero(np.bincount(matched.parents, minlength=len(self._is_unparsed)) > 1))
        return found

    def _features(self, features: _Spans, records: np.ndarray, kind: str) -> VaryingValues:
        """Reads the values of feature messages; ``records`` has the record's number for each message."""
        num_features = len(records)
        numbers, lists = self._fields(features, records)
        is_set = np.bincount(lists.parents, minlength=num_features)
        self._mark_unparsed(records[is_set > 1])
        self._mark_unparsed(records[lists.parents[(numbers < 1) | (numbers > len(KIND_OF_FIELD))]])
        is_kind = numbers == _FIELD_OF_KIND[kind]
        wanted = lists.take(is_kind)
        numbers, runs = self._fields(wanted, records[wanted.parents])
        owners = wanted.parents[runs.parents]
        self._mark_unparsed(records[owners[numbers != 1]])
        lengths = runs.ends - runs.starts
        if kind == "float_list" and (lengths % 4).any():
            is_whole = lengths % 4 == 0
            self._mark_unparsed(records[owners[~is_whole]])
            runs, owners, lengths = runs.take(is_whole), owners[is_whole], lengths[is_whole]
        data = copy_runs(self._data, runs.starts, lengths)
        sizes: np.ndarray | None = None
        if kind == "bytes_list":
            values, sizes, per_run = data, lengths, np.ones(len(lengths), np.int64)
        elif kind == "float_list":
            values, per_run = data.view("<f4"), lengths // 4
        else:
            values, per_run, is_good = decode_varints(data, lengths)
            self._mark_unparsed(records[owners[~is_good]])
        counts = np.bincount(owners, per_run, minlength=num_features).astype(np.int64)
        others = lists.parents[~is_kind]
        counts[others[is_set[others] == 1]] = OTHER_KIND  # if set twice, the record is left, and keeps its counts
        return VaryingValues(numbers=records, counts=counts, is_set=is_set > 0, values=values, sizes=sizes)

    def _drop_unparsed(self, found: VaryingValues) -> VaryingValues:
        """Removes the values of records that are left to another parser."""
        kept = ~self._is_unparsed[found.numbers]
        if kept.all():
            return found
        counts = np.maximum(found.counts, 0)
        kept_values = np.repeat(kept, counts)
        values, sizes = found.values, found.sizes
        if sizes is None:
            values = values[kept_values]
        else:
            values, sizes = values[np.repeat(kept_values, sizes)], sizes[kept_values]
        return VaryingValues(
            numbers=found.numbers[kept],
            counts=found.counts[kept],
            is_set=found.is_set[kept],
            values=values,
            sizes=sizes,
        )

    def _drop_unparsed_of_list(self, found: ScannedList) -> ScannedList:
        kept = ~self._is_unparsed[found.numbers]
        return ScannedList(
            numbers=found.numbers[kept],
            num_entries=found.num_entries[kept],
            entries=self._drop_unparsed(found.entries),
        )


def scan_fields(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, _Spans, np.ndarray]:
    """Finds the fields of messages whose fields are all length-delimited.

    Args:
        data: the buffer that contains the messages, uint8.
        starts: the start of each message in the buffer, int64 of shape (k,).
        ends: the end of each message, int64 of shape (k,).

    Returns:
        The numbers of the fields; their spans, message by message; and for each message whether something else was
        found in it, so that some of its fields are missing: bool of shape (k,).
    """
    is_bad = np.zeros(len(starts), bool)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    active, at, end = np.arange(len(starts)), starts, ends
    going_on = at < end
    while True:
        if not going_on.all():
            active, at, end = active[going_on], at[going_on], end[going_on]
        if len(active) < _MIN_TOGETHER:
            break
        short = _read_short(data, at, end)
        if short is not None:
            numbers, at, stop = short
            found.append((active, numbers, at, stop))
            at = stop
            going_on = at < end
            continue
        tags, at, is_tag = _read_varints(data, at, end)
        sizes, at, is_size = _read_varints(data, at, end)
        is_good = is_tag & is_size & (tags & 7 == _LENGTH_DELIMITED) & (sizes <= end - at)
        if not is_good.all():
            is_bad[active[~is_good]] = True
            active, at, end = active[is_good], at[is_good], end[is_good]
            tags, sizes = tags[is_good], sizes[is_good]
        found.append((active, tags >> 3, at, at + sizes))
        at = at + sizes
        going_on = at < end
    if len(active):
        found.append(_scan_one_by_one(data, active, at, end, is_bad=is_bad))
    if not found:
        nothing = np.empty(0, np.int64)
        return nothing, _Spans(nothing, nothing, nothing), is_bad
    if len(found) == 1:
        parents, numbers, begins, finishes = found[0]
    else:
        parents, numbers, begins, finishes = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(parents, kind="stable")
        parents, numbers, begins, finishes = parents[order], numbers[order], begins[order], finishes[order]
    return numbers, _Spans(parents, begins, finishes), is_bad


def _read_short(data: np.ndarray, at: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Reads one field of each message, if all tags and all lengths take one byte: numbers, starts, ends; else None."""
    pairs = np.ndarray((data.size - 1,), "<u2", buffer=data.data, strides=(1,))
    heads = pairs[np.minimum(at, data.size - 2)]
    if ((heads & 0x8087) != _LENGTH_DELIMITED).any():
        return None
    starts = at + 2
    stops = starts + (heads >> 8)
    if (stops > end).any():
        return None
    return (heads & 0xFF) >> 3, starts, stops


def _scan_one_by_one(
    data: np.ndarray, active: np.ndarray, at: np.ndarray, end: np.ndarray, *, is_bad: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Finds the fields of a few messages, as `scan_fields` does."""
    found: list[tuple[int, int, int, int]] = []
    view = data.data
    for message, place, stop in zip(active.tolist(), at.tolist(), end.tolist(), strict=True):
        while place < stop:
            tag, place = _read_varint(view, place, stop)
            size, place = _read_varint(view, place, stop)
            if tag < 0 or size < 0 or tag & 7 != _LENGTH_DELIMITED or size > stop - place:
                is_bad[message] = True
                break
            found.append((message, tag >> 3, place, place + size))
            place += size
    columns = np.array(found, np.int64).reshape(-1, 4).T
    return columns[0], columns[1], columns[2], columns[3]


def _read_varint(view: memoryview, place: int, stop: int) -> tuple[int, int]:
    """Reads a varint of at most 5 bytes; returns it (-1 if there is none) and the place after it."""
    value = 0
    for shift in range(0, 7 * _MAX_LENGTH_BYTES, 7):
        if place >= stop:
            break
        byte = view[place]
        place += 1
        value |= (byte & ~_CONTINUATION_BIT) << shift
        if byte < _CONTINUATION_BIT:
            return value, place
    return -1, place


def _read_varints(data: np.ndarray, at: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads a varint of at most 5 bytes at each place; returns them, the places after them, and whether each exists."""
    is_there = at < end
    bytes_here = data[np.where(is_there, at, 0)]
    values = (bytes_here & (_CONTINUATION_BIT - 1)).astype(np.int64)
    after = at + 1
    more = np.flatnonzero((bytes_here >= _CONTINUATION_BIT) & is_there)
    shift = 7
    while more.size:
        if shift == 7 * _MAX_LENGTH_BYTES:
            is_there[more] = False
            break
        inside = after[more] < end[more]
        is_there[more[~inside]] = False
        more = more[inside]
        bytes_here = data[after[more]]
        values[more] |= (bytes_here & (_CONTINUATION_BIT - 1)).astype(np.int64) << shift
        after[more] += 1
        more = more[bytes_here >= _CONTINUATION_BIT]
        shift += 7
    return values, after, is_there


def _equal(data: np.ndarray, spans: _Spans, wanted: bytes) -> np.ndarray:
    """Returns the indices of the spans that have exactly these bytes."""
    found = np.flatnonzero(spans.ends - spans.starts == len(wanted))
    if not wanted or not found.size:
        return found
    rows = windows(data, len(wanted))[spans.starts[found]].view(np.uint8).reshape(-1, len(wanted))
    return found[(rows == np.frombuffer(wanted, np.uint8)).all(axis=1)]


def copy_runs(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Copies runs of bytes into one array, one after another.

    Args:
        data: the buffer that contains the runs, uint8.
        starts: the start of each run in the buffer, int64 of shape (k,).
        lengths: the length of each run, int64 of shape (k,).
    """
    total = int(lengths.sum())
    if not total:
        return np.empty(0, np.uint8)
    length = int(lengths[0])
    if (lengths == length).all():
        return windows(data, length)[starts].view(np.uint8).reshape(-1)
    if total >= _MEAN_COPIED_BYTES * len(lengths):
        view = data.data
        ends = (starts + lengths).tolist()
        runs = [view[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        return np.frombuffer(bytearray().join(runs), np.uint8)
    return data[runs_of(starts, lengths)]


def decode_varints(data: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decodes runs of varints.

    Args:
        data: the concatenated bytes of the runs, uint8.
        lengths: the length of each run in bytes, int64 of shape (k,).

    Returns:
        The integers, int64; the number of integers in each run, int64 of shape (k,); and whether each run consists of
        valid varints, bool of shape (k,). The integers of invalid runs are not defined.
    """
    is_last = data < _CONTINUATION_BIT
    stops = np.cumsum(lengths)
    is_good = np.ones(len(lengths), bool)
    has_any = lengths > 0
    is_good[has_any] = is_last[stops[has_any] - 1]
    if not is_good.all():
        is_last = is_last.copy()
        is_last[stops[~is_good] - 1] = True  # so that numbers of the next run stay separate
    before = np.concatenate([[0], np.cumsum(is_last)])
    counts = before[stops] - before[stops - lengths]
    if is_last.all():
        return data.astype(np.int64), counts, is_good
    ends = np.flatnonzero(is_last)
    begins = np.concatenate([[0], ends[:-1] + 1])
    num_bytes = ends - begins + 1
    too_long = num_bytes > _MAX_VARINT_BYTES
    if too_long.any():
        is_good[np.searchsorted(stops, ends[too_long], side="right")] = False
    values = (data[begins] & (_CONTINUATION_BIT - 1)).astype(np.uint64)
    going_on = np.flatnonzero(num_bytes > 1)
    for index in range(1, _MAX_VARINT_BYTES):
        if not going_on.size:
            break
        bytes_here = data[begins[going_on] + index] & (_CONTINUATION_BIT - 1)
        values[going_on] |= bytes_here.astype(np.uint64) << np.uint64(7 * index)
        going_on = going_on[num_bytes[going_on] > index + 1]
    return values.view(np.int64), counts, is_good
