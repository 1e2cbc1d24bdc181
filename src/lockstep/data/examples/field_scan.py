"""Field scans: many protocol-buffer messages of different layouts are taken apart at once.

All messages of a batch are gone through side by side: one look takes the next field of each of them. So the number of
looks is that of the fields of one message, not of all. What is not built as TensorFlow and this package build it
(numbers that are not packed, a name twice, a feature in several pieces), and what is damaged, is left to the
protocol buffers' own parser; of features that nobody asked for only the name is looked at.
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
_CONTINUES: Final = 0x80
_MAX_LENGTH_BYTES: Final = 5
_MAX_VARINT_BYTES: Final = 10
_MIN_TOGETHER: Final = 8
"""Messages that are worth a look together; fewer are gone through one by one."""

_MEAN_COPIED_BYTES: Final = 64
"""Runs of bytes from this length on are copied one by one rather than byte by byte."""

_FIELD_OF_KIND: Final = {kind: number for number, kind in KIND_OF_FIELD.items()}


class _Spans(NamedTuple):
    """Messages, each a run of bytes; of several parents those of the first one come first."""

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
        numbers: which records have it, integers of shape (k,).
        num_entries: how many entries each has, int64 of shape (k,).
        entries: the entries' values.
    """

    numbers: np.ndarray
    num_entries: np.ndarray
    entries: VaryingValues


@final
class FieldScan:
    """The records of a batch, all in one buffer.

    Args:
        data: their bytes behind each other, uint8.
        lengths: how long each is, int64 of shape (num_records,).
    """

    def __init__(self, data: np.ndarray, *, lengths: np.ndarray) -> None:
        self._data = data
        ends = np.cumsum(lengths)
        self._records = _Spans(np.arange(len(lengths)), ends - lengths, ends)
        self._is_left = np.zeros(len(lengths), bool)

    @property
    def left(self) -> np.ndarray:
        """Which records have to be parsed otherwise, for they are not built as usual: bool of shape (num_records,)."""
        return self._is_left

    def scan_examples(self, keys: Mapping[str, str]) -> dict[str, VaryingValues]:
        """Reads features of ``tf.train.Example`` messages.

        Args:
            keys: the names of the features wanted, with the kind of each.

        Returns:
            By name the values, of the records that are not left.
        """
        fields, spans = self._fields(self._records, self._records.parents)
        self._leave(spans.parents[fields != 1])
        found = {key: self._features(span, span.parents, keys[key]) for key, span in self._match(spans, keys).items()}
        return {key: self._without_left(values) for key, values in found.items()}

    def scan_sequences(
        self, context: Mapping[str, str], lists: Mapping[str, str]
    ) -> tuple[dict[str, VaryingValues], dict[str, ScannedList]]:
        """Reads features of ``tf.train.SequenceExample`` messages.

        Args:
            context: the names of the context's features wanted, with the kind of each.
            lists: the names of the feature lists wanted, with the kind of each one's entries.

        Returns:
            By name the values of the context, and of the feature lists, of the records that are not left.
        """
        fields, spans = self._fields(self._records, self._records.parents)
        self._leave(spans.parents[(fields != 1) & (fields != 2)])
        of_context, of_lists = spans.take(fields == 1), spans.take(fields == 2)
        values = {
            key: self._features(span, span.parents, context[key])
            for key, span in self._match(of_context, context).items()
        }
        matched = self._match(of_lists, lists)
        # The lists of all names together: it takes as many looks as the longest list of all has entries.
        every = (
            _Spans(*(np.concatenate(parts) for parts in zip(*matched.values(), strict=True))) if matched else of_lists
        )
        numbers, inner = self._fields(every, every.parents)
        owners = every.parents[inner.parents]
        self._leave(owners[numbers != 1])
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
            {key: self._without_left(found) for key, found in values.items()},
            {key: self._list_without_left(found) for key, found in entries.items()},
        )

    def _leave(self, records: np.ndarray) -> None:
        self._is_left[records] = True

    def _fields(self, messages: _Spans, records: np.ndarray) -> tuple[np.ndarray, _Spans]:
        """Returns the fields' numbers, and where they lie; their parents are places among the messages."""
        numbers, spans, is_bad = scan_fields(self._data, messages.starts, messages.ends)
        self._leave(records[is_bad])
        return numbers, spans

    def _match(self, maps: _Spans, keys: Mapping[str, str]) -> dict[str, _Spans]:
        """Looks up names in maps of messages; the parents are the records. Several maps of a record are one."""
        numbers, entries = self._fields(maps, maps.parents)
        records = maps.parents[entries.parents]
        self._leave(records[numbers != 1])
        numbers, parts = self._fields(entries, records)
        is_pair = np.bincount(parts.parents, minlength=len(records)) == 2
        self._leave(records[~is_pair])
        chosen = is_pair[parts.parents]
        pairs = parts.take(chosen)
        first, second = numbers[chosen].reshape(-1, 2).T
        records = records[pairs.parents[::2]]
        self._leave(records[(first + second != 3) | (first * second != 2)])
        starts, ends = pairs.starts.reshape(-1, 2), pairs.ends.reshape(-1, 2)
        rows, name, value = np.arange(len(records)), (first != 1).astype(np.intp), (first == 1).astype(np.intp)
        names = _Spans(records, starts[rows, name], ends[rows, name])
        values = _Spans(records, starts[rows, value], ends[rows, value])
        found: dict[str, _Spans] = {}
        for key in keys:
            matched = values.take(_equal(self._data, names, key.encode()))
            found[key] = matched
            self._leave(np.flatnonzero(np.bincount(matched.parents, minlength=len(self._is_left)) > 1))
        return found

    def _features(self, features: _Spans, records: np.ndarray, kind: str) -> VaryingValues:
        """Reads messages that are features; the values' numbers are the records, one for each message."""
        num_features = len(records)
        numbers, lists = self._fields(features, records)
        is_set = np.bincount(lists.parents, minlength=num_features)
        self._leave(records[is_set > 1])
        self._leave(records[lists.parents[(numbers < 1) | (numbers > len(KIND_OF_FIELD))]])
        is_kind = numbers == _FIELD_OF_KIND[kind]
        wanted = lists.take(is_kind)
        numbers, runs = self._fields(wanted, records[wanted.parents])
        owners = wanted.parents[runs.parents]
        self._leave(records[owners[numbers != 1]])
        lengths = runs.ends - runs.starts
        if kind == "float_list" and (lengths % 4).any():
            is_whole = lengths % 4 == 0
            self._leave(records[owners[~is_whole]])
            runs, owners, lengths = runs.take(is_whole), owners[is_whole], lengths[is_whole]
        data = take_runs(self._data, runs.starts, lengths)
        sizes: np.ndarray | None = None
        if kind == "bytes_list":
            values, sizes, per_run = data, lengths, np.ones(len(lengths), np.int64)
        elif kind == "float_list":
            values, per_run = data.view("<f4"), lengths // 4
        else:
            values, per_run, is_good = decode_varints(data, lengths)
            self._leave(records[owners[~is_good]])
        counts = np.bincount(owners, per_run, minlength=num_features).astype(np.int64)
        others = lists.parents[~is_kind]
        counts[others[is_set[others] == 1]] = OTHER_KIND  # of one that is left, the counts are those of its values
        return VaryingValues(numbers=records, counts=counts, is_set=is_set > 0, values=values, sizes=sizes)

    def _without_left(self, found: VaryingValues) -> VaryingValues:
        """Takes out the values of records that are left."""
        kept = ~self._is_left[found.numbers]
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

    def _list_without_left(self, found: ScannedList) -> ScannedList:
        kept = ~self._is_left[found.numbers]
        return ScannedList(
            numbers=found.numbers[kept],
            num_entries=found.num_entries[kept],
            entries=self._without_left(found.entries),
        )


def scan_fields(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, _Spans, np.ndarray]:
    """Finds the fields of messages whose fields are all length-delimited.

    Args:
        data: where the messages lie, uint8.
        starts: where each begins, int64 of shape (k,).
        ends: where each ends.

    Returns:
        The fields' numbers; where they lie, message by message; and of which messages something else was found, so
        that not all of their fields are there: bool of shape (k,).
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
    """Reads one field of each message: its number, and where it lies; None unless all have tag and length in a byte."""
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
    """Does what `scan_fields` does, for a few messages."""
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
    """Reads a number of at most 5 bytes; -1 where there is none."""
    value = 0
    for shift in range(0, 7 * _MAX_LENGTH_BYTES, 7):
        if place >= stop:
            break
        byte = view[place]
        place += 1
        value |= (byte & ~_CONTINUES) << shift
        if byte < _CONTINUES:
            return value, place
    return -1, place


def _read_varints(data: np.ndarray, at: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads a number of at most 5 bytes at each place; returns them, the places behind, and whether there is one."""
    is_there = at < end
    bytes_here = data[np.where(is_there, at, 0)]
    values = (bytes_here & (_CONTINUES - 1)).astype(np.int64)
    after = at + 1
    more = np.flatnonzero((bytes_here >= _CONTINUES) & is_there)
    shift = 7
    while more.size:
        if shift == 7 * _MAX_LENGTH_BYTES:
            is_there[more] = False
            break
        inside = after[more] < end[more]
        is_there[more[~inside]] = False
        more = more[inside]
        bytes_here = data[after[more]]
        values[more] |= (bytes_here & (_CONTINUES - 1)).astype(np.int64) << shift
        after[more] += 1
        more = more[bytes_here >= _CONTINUES]
        shift += 7
    return values, after, is_there


def _equal(data: np.ndarray, spans: _Spans, wanted: bytes) -> np.ndarray:
    """Returns the numbers of the spans that have these bytes."""
    found = np.flatnonzero(spans.ends - spans.starts == len(wanted))
    if not wanted or not found.size:
        return found
    rows = windows(data, len(wanted))[spans.starts[found]].view(np.uint8).reshape(-1, len(wanted))
    return found[(rows == np.frombuffer(wanted, np.uint8)).all(axis=1)]


def take_runs(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Copies runs of bytes behind each other.

    Args:
        data: where they lie, uint8.
        starts: where each begins, int64 of shape (k,).
        lengths: how long each is, int64 of shape (k,).
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
    """Decodes runs of integers of variable length.

    Args:
        data: the runs' bytes behind each other, uint8.
        lengths: how long each run is in bytes, int64 of shape (k,).

    Returns:
        The integers, int64; how many each run has, int64 of shape (k,); and whether each run is one of integers, bool
        of shape (k,). The integers of runs that are not may be anything.
    """
    is_last = data < _CONTINUES
    stops = np.cumsum(lengths)
    is_good = np.ones(len(lengths), bool)
    has_any = lengths > 0
    is_good[has_any] = is_last[stops[has_any] - 1]
    if not is_good.all():
        is_last = is_last.copy()
        is_last[stops[~is_good] - 1] = True  # so that the next run's numbers are its own
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
    values = (data[begins] & (_CONTINUES - 1)).astype(np.uint64)
    going_on = np.flatnonzero(num_bytes > 1)
    for index in range(1, _MAX_VARINT_BYTES):
        if not going_on.size:
            break
        bytes_here = data[begins[going_on] + index] & (_CONTINUES - 1)
        values[going_on] |= bytes_here.astype(np.uint64) << np.uint64(7 * index)
        going_on = going_on[num_bytes[going_on] > index + 1]
    return values.view(np.int64), counts, is_good
