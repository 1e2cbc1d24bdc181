"""What a summary says about a call of ``fit``: numbers, lines of text, and scalars for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_FLOP: Final = ("FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")
_PARTS: Final = {
    "compute": "compute_s",
    "collective": "collective_s",
    "data": "data_s",
    "checkpoint": "checkpoint_s",
    "validation": "validation_s",
    "first steps": "first_s",
    "other": "other_s",
}


@final
@dataclass(frozen=True, kw_only=True)
class FitReport:
    """The summary of one call of ``fit``. Times are in seconds; those of all parts together are ``total_s``.

    Attributes:
        name: the name of the model.
        strategy: the name of the strategy; "" without one.
        device: the kind of the devices, such as "NVIDIA H100 80GB HBM3".
        num_devices: the number of devices that train the model, over all processes.
        num_steps: the number of steps.
        num_examples: the number of examples, over all processes.
        examples_per_s: the examples per second of the steps that follow another one, so without compilation, validation
            and what happens between epochs; None with too few steps.
        step_p50_s: half of these steps took less.
        step_p95_s: 95% of these steps took less.
        total_s: the time of ``fit``.
        compute_s: the time in which steps were computed, without communication if it was measured.
        collective_s: the time in which devices waited for communication; None if it was not measured.
        collective_note: where ``collective_s`` is from, or why it was not measured.
        data_s: the time in which no step was computed because the next batch was not there.
        checkpoint_s: the same, because a checkpoint was saved or restored.
        validation_s: the time of validation.
        first_s: the time of the first step with batches of each size, in which the step is compiled.
        other_s: all other time: callbacks, and the loop itself.
        peak_memory_bytes: the peak memory of the fullest device of this process; None if it is not known.
        memory_note: where ``peak_memory_bytes`` is from, or why it is not known.
        step_operations: the operations in a step's matrix products and convolutions, over all devices; None if they
            are not known.
        utilisation: the share of the devices' peak rate that these operations used (model FLOPs utilisation); None if
            it is not known.
        utilisation_note: what the share is of, or why it is not known.
    """

    name: str
    strategy: str
    device: str
    num_devices: int
    num_steps: int
    num_examples: int
    examples_per_s: float | None
    step_p50_s: float | None
    step_p95_s: float | None
    total_s: float
    compute_s: float
    collective_s: float | None
    collective_note: str
    data_s: float
    checkpoint_s: float
    validation_s: float
    first_s: float
    other_s: float
    peak_memory_bytes: int | None
    memory_note: str
    step_operations: float | None
    utilisation: float | None
    utilisation_note: str

    @property
    def scalars(self) -> Mapping[str, float]:
        """The known numbers by tag, for TensorBoard."""
        found = {
            "examples_per_second": self.examples_per_s,
            "step_seconds_p50": self.step_p50_s,
            "step_seconds_p95": self.step_p95_s,
            "total_seconds": self.total_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "step_operations": self.step_operations,
            "model_flops_utilisation": self.utilisation,
            **{f"{part.replace(' ', '_')}_seconds": getattr(self, field) for part, field in _PARTS.items()},
        }
        return {f"summary/{name}": float(value) for name, value in found.items() if value is not None}

    @property
    def lines(self) -> list[str]:
        """The summary as lines of text."""
        strategy = f"{self.strategy} on " if self.strategy else ""
        where = f"{strategy}{self.num_devices} x {self.device}"
        rows = [
            ("speed", self._speed()),
            ("time", _seconds(self.total_s)),
            *((f"  {part}", text) for part, text in self._parts()),
            ("memory", self._memory()),
            ("operations", self._operations()),
            ("utilisation", f"{_percent(self.utilisation)} {self.utilisation_note}".strip()),
        ]
        head = f"summary of fit of {self.name}: {self.num_steps:,} steps, {self.num_examples:,} examples, {where}"
        return [head, *(f"  {name:<13} {text}" for name, text in rows)]

    def _parts(self) -> Iterator[tuple[str, str]]:
        """Yields the parts of the time with their shares of it."""
        for part, field in _PARTS.items():
            time_s: float | None = getattr(self, field)
            share = "" if time_s is None else f"{100 * time_s / (self.total_s or 1.0):5.1f}%"
            note = f"  {self.collective_note}" if part == "collective" else ""
            yield part, f"{share}{note}".strip() if time_s is None else f"{share}{note}"

    def _speed(self) -> str:
        if self.examples_per_s is None or self.step_p50_s is None or self.step_p95_s is None:
            return "not known: too few steps after the first ones"
        times = f"step p50 {_seconds(self.step_p50_s)}, p95 {_seconds(self.step_p95_s)}"
        return f"{self.examples_per_s:,.4g} examples/s, {times}"

    def _memory(self) -> str:
        if self.peak_memory_bytes is None:
            return self.memory_note
        return f"{_scaled(self.peak_memory_bytes, base=1024, units=_BYTES)} a device, {self.memory_note}"

    def _operations(self) -> str:
        if self.step_operations is None:
            return "not known"
        known = _scaled(self.step_operations, base=1000, units=_FLOP)
        return f"{known} a step in matrix products and convolutions"


def _seconds(time_s: float) -> str:
    return f"{time_s * 1000:.3g} ms" if time_s < 1 else f"{time_s:,.4g} s"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def _scaled(value: float, *, base: int, units: Sequence[str]) -> str:
    """Returns a number with the unit in which it is not much larger than 1."""
    power = 0
    while abs(value) >= base and power < len(units) - 1:
        value, power = value / base, power + 1
    return f"{value:.4g} {units[power]}"
