"""Reads the scalars in a TensorBoard event file, each time on from where the last reading ended.

An event file is a TFRecord file of ``Event`` messages. A program appends to it while it runs, so the last record may
not be whole yet. Files come from programs: their number of tags, points and bytes is bounded by who reads them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, BinaryIO, Final, final

import numpy as np

from lockstep.errors import CorruptDataError

MAX_RECORD_BYTES: Final = 1 << 20
"""Longer records are passed over: they hold pictures, graphs or histograms."""
MAX_TAG_LENGTH: Final = 300
_START: Final = 1
"""``SessionLog.START``."""
_SCALAR_PLUGINS: Final = ("", "scalars")
_CONTENT_TYPES: Final = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""NumPy's name of TensorFlow's data types, by their number."""
_VALUE_FIELDS: Final = {1: "float_val", 2: "double_val", 3: "int_val", 9: "int64_val"}


@final
class Curve:
    """The points of a tag in one file. It keeps every k-th point, and always the last one.

    k doubles when there are twice as many points as may be kept.
    """

    def __init__(self) -> None:
        self._steps = array("q")
        self._times = array("d")
        self._values = array("d")
        self._stride = 1
        self._num_added = 0
        self._last: tuple[int, float, float] | None = None

    def __len__(self) -> int:
        """Returns the number of points that are kept."""
        return len(self._steps)

    def add(self, step: int, time_s: float, value: float, *, max_points: int) -> None:
        """Adds a point.

        Args:
            step: the step.
            time_s: the time, in seconds since 1970 UTC.
            value: the value, which may not be finite.
            max_points: how many points are kept, or up to twice as many.
        """
        self._last = (step, time_s, value)
        if self._num_added % self._stride == 0:
            self._steps.append(step)
            self._times.append(time_s)
            self._values.append(value)
            if len(self._steps) > 2 * max_points:
                self._steps, self._times, self._values = self._steps[::2], self._times[::2], self._values[::2]
                self._stride *= 2
        self._num_added += 1

    def drop_from(self, step: int) -> None:
        """Drops the points at this step and later ones."""
        kept = [number for number, each in enumerate(self._steps) if each < step]
        self._steps = array("q", (self._steps[number] for number in kept))
        self._times = array("d", (self._times[number] for number in kept))
        self._values = array("d", (self._values[number] for number in kept))
        self._num_added = len(kept) * self._stride
        if self._last is not None and self._last[0] >= step:
            self._last = (self._steps[-1], self._times[-1], self._values[-1]) if kept else None

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the steps (int64), times (float64) and values (float64) in the order of the file, of equal shape."""
        steps, times, values = (np.array(each) for each in (self._steps, self._times, self._values))
        if self._last is not None and (self._num_added - 1) % self._stride != 0:  # it is not among those kept
            step, time_s, value = self._last
            steps, times, values = np.append(steps, step), np.append(times, time_s), np.append(values, value)
        return steps, times, values


@final
class EventFile:
    """What was read of an event file so far.

    Attributes:
        curves: the curves by tag.
        offset_bytes: the number of bytes that have been read.
        restarted_at: the lowest step at which a restarted program began; None if none did. It makes the points at this
            step and after it in earlier files of the folder void, as in TensorBoard.
        damage: what is wrong with the file; None if nothing is.
    """

    def __init__(self) -> None:
        self.curves: dict[str, Curve] = {}
        self.offset_bytes = 0
        self.restarted_at: int | None = None
        self.damage: str | None = None

    def read_on(
        self,
        file: BinaryIO,
        *,
        url: str,
        curve_of: Callable[[EventFile, str], Curve | None],
        max_points: int,
        is_late: Callable[[], bool],
    ) -> bool:
        """Reads what was added to the file.

        Args:
            file: the file, open for reading.
            url: the address of the file, for messages.
            curve_of: returns the curve of a tag, which it may create; None if there are too many.
            max_points: how many points of a curve are kept.
            is_late: whether to stop for now. It is asked after each record.

        Returns:
            Whether everything was read that can be read now.
        """
        # Imported here because `lockstep.data` is not needed until somebody looks at curves.
        from lockstep.data.files.framing import FOOTER_BYTES, HEADER_BYTES, checked_data, read_fully, record_length

        event_of = _event_module().Event.FromString
        file.seek(self.offset_bytes)
        while len(header := read_fully(file, HEADER_BYTES)) == HEADER_BYTES:
            try:
                length = record_length(header, url=url, number=0, offset=self.offset_bytes)
            except CorruptDataError:
                self.damage = f"{url} is damaged at byte {self.offset_bytes}: what follows was not read"
                return True
            end = self.offset_bytes + HEADER_BYTES + length + FOOTER_BYTES
            if length > MAX_RECORD_BYTES:
                if file.seek(0, 2) < end:
                    return True
                file.seek(end)
            else:
                body = read_fully(file, length + FOOTER_BYTES)
                if len(body) < length + FOOTER_BYTES:  # not written whole yet
                    return True
                try:
                    data = checked_data(body, length=length, url=url, number=0, offset=self.offset_bytes)
                    self._take(event_of(data), curve_of, max_points)
                except (CorruptDataError, _decode_error()):
                    self.damage = f"{url}: the record at byte {self.offset_bytes} is damaged, and was left out"
            self.offset_bytes = end
            if is_late():
                return False
        return True

    def _take(self, event: Any, curve_of: Callable[[EventFile, str], Curve | None], max_points: int) -> None:
        kind = event.WhichOneof("what")
        if kind == "session_log" and event.session_log.status == _START:
            self.restarted_at = event.step if self.restarted_at is None else min(event.step, self.restarted_at)
            for curve in self.curves.values():
                curve.drop_from(event.step)
        if kind != "summary":
            return
        time_s = event.wall_time if math.isfinite(event.wall_time) else 0.0
        for value in event.summary.value:
            number = _scalar(value)
            if number is None or not 0 < len(value.tag) <= MAX_TAG_LENGTH:
                continue
            curve = self.curves.get(value.tag) or curve_of(self, value.tag)
            if curve is not None:
                curve.add(event.step, time_s, number, max_points=max_points)


def _scalar(value: Any) -> float | None:
    """Returns the number in a ``Summary.Value``; None if it holds something else."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    if kind != "tensor" or value.metadata.plugin_data.plugin_name not in _SCALAR_PLUGINS:
        return None
    tensor = value.tensor
    if tensor.tensor_shape.dim or tensor.tensor_shape.unknown_rank or tensor.dtype not in _CONTENT_TYPES:
        return None
    if tensor.tensor_content:
        kind = np.dtype(_CONTENT_TYPES[tensor.dtype])
        content = tensor.tensor_content
        return float(np.frombuffer(content, kind)[0]) if len(content) == kind.itemsize else None
    if tensor.dtype not in _VALUE_FIELDS:
        return None
    numbers = getattr(tensor, _VALUE_FIELDS[tensor.dtype])
    return float(numbers[0]) if len(numbers) == 1 else None


@cache
def _event_module() -> ModuleType:
    # Imported here for the start-up time of the service: the package imports all of its writers.
    from tensorboardX.proto import event_pb2

    return event_pb2


@cache
def _decode_error() -> type[Exception]:
    from google.protobuf.message import DecodeError  # with the module above

    return DecodeError
