"""Forecasts the time and the cost of training on more chips than the plan's target has, by simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, final

from lockstep.errors import InvalidInputError
from lockstep.planning.chips import Chip
from lockstep.planning.measurement import Measurement
from lockstep.planning.networks import Network
from lockstep.planning.roofline import Floor
from lockstep.planning.scaling import HOUR_S, Failures, Workload, simulate
from lockstep.planning.units import time_text

MAX_CHIPS: Final = 8192
CHIP_MTBF_HOURS: Final = 50_000.0
"""Mean time between failures of a chip. Meta's training of Llama 3 was interrupted 419 times in 54 days by 16,384 GPUs,
once in 50,700 GPU-hours (A. Grattafiori et al., "The Llama 3 herd of models", 2024, section 3.3.4)."""


@final
@dataclass(frozen=True, kw_only=True)
class ForecastOptions:
    """What is assumed of a forecast.

    Attributes:
        num_chips: the numbers of chips.
        step_s: the measured time of a step on one chip, without communication, in seconds; None to estimate it.
        mtbf_hours: the mean time between failures of one chip, in hours.
        usd_per_chip_hour: the price of one chip, in US dollars per hour; None if it is not known.
    """

    num_chips: Sequence[int]
    step_s: float | None = None
    mtbf_hours: float = CHIP_MTBF_HOURS
    usd_per_chip_hour: Decimal | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Training on a number of chips, each with as many rows as in the plan.

    Attributes:
        num_chips: the number of chips.
        num_slices: the number of slices that they are in.
        num_rows: the number of rows of the global batch.
        step_s: the time of a step in seconds.
        efficiency: the speed of a chip, as a share of that of a chip that neither communicates nor waits nor fails.
        goodput: the share of the time in which training advances, in spite of failures.
        rows_per_s: the rows of all chips together per second.
        epoch_s: the time of an epoch in seconds; None if its number of rows is not known.
        usd_per_epoch: the cost of an epoch in US dollars; None if the chips have no price.
    """

    num_chips: int
    num_slices: int
    num_rows: int
    step_s: float
    efficiency: float
    goodput: float
    rows_per_s: float
    epoch_s: float | None
    usd_per_epoch: Decimal | None


def parse_chips(text: str) -> list[int]:
    """Parses the numbers of chips of ``--chips``, with commas between them.

    Raises:
        InvalidInputError: one of them is not a whole number from 1 to `MAX_CHIPS`.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MAX_CHIPS for part in parts):
        raise InvalidInputError(
            "--chips", received=text, allowed=f"numbers from 1 to {MAX_CHIPS:,}, with commas between them: 64,512,4096"
        )
    return sorted({int(part) for part in parts})


def network_of(chip: Chip, *, num_chips: int) -> Network:
    """Returns the links between so many chips.

    Raises:
        InvalidInputError: the chips do not fit into one slice, and the network between slices is not published.
    """
    if num_chips > chip.slice_chips and chip.dcn_bytes_per_s is None:
        raise InvalidInputError(
            f"--chips: the bandwidth between slices of {chip.generation} is not published",
            received=num_chips,
            allowed=f"up to {chip.slice_chips:,}, the chips of one slice",
        )
    return Network(
        chips_per_group=chip.slice_chips,
        inner_bytes_per_s=chip.ici_bytes_per_s,
        outer_bytes_per_s=chip.dcn_bytes_per_s or chip.ici_bytes_per_s,
        inner_latency_s=1e-6,
        inner_dims=len(chip.shapes[0]),
    )


def forecast(measurement: Measurement, *, chip: Chip, floor: Floor, options: ForecastOptions) -> tuple[Forecast, ...]:
    """Returns a forecast for each number of chips. The batch of a chip is that of the plan.

    Args:
        measurement: the plan's compiled step.
        chip: the kind of chip.
        floor: the least times of this step.
        options: what is assumed.

    Raises:
        InvalidInputError: the chips do not fit into one slice, and the network between slices is not published.
    """
    rows = max(1, measurement.num_rows // measurement.num_devices)
    workload = Workload(
        compute_s=options.step_s or max(floor.compute_s, floor.xla_memory_s),
        gradient_bytes=_gradient_bytes(measurement),
        rows=rows,
    )
    failures = Failures(mean_time_between_s=options.mtbf_hours * HOUR_S)
    epoch_rows = None if measurement.num_steps is None else measurement.num_steps * measurement.num_rows
    found: list[Forecast] = []
    for number in options.num_chips:
        network = network_of(chip, num_chips=number)
        scaled = simulate(workload, num_chips=number, network=network, failures=failures)
        epoch_s = None if epoch_rows is None else epoch_rows / scaled.rows_per_s
        usd = options.usd_per_chip_hour
        found.append(
            Forecast(
                num_chips=number,
                num_slices=network.num_groups(number),
                num_rows=rows * number,
                step_s=scaled.step_s,
                efficiency=scaled.efficiency,
                goodput=scaled.goodput,
                rows_per_s=scaled.rows_per_s,
                epoch_s=epoch_s,
                usd_per_epoch=None if usd is None or epoch_s is None else usd * number * Decimal(epoch_s) / 3600,
            )
        )
    return tuple(found)


def _gradient_bytes(measurement: Measurement) -> float:
    """Returns the size of an all-reduce that sends as much as the step's collectives; of the parameters without any."""
    sent = 0.0
    for found in measurement.work.collectives if measurement.work is not None else ():
        if found.group_size > 1:
            sent += found.sent_bytes * found.group_size / (2 * (found.group_size - 1))
    return sent or float(measurement.memory.whole.get("parameters", 0))


def forecast_lines(found: Sequence[Forecast]) -> Iterator[str]:
    """Yields a table of forecasts in readable form."""
    yield "more chips, simulated"
    head = ("chips", "slices", "global batch", "step", "rows/s", "efficiency", "advancing", "an epoch", "cost")
    rows = [
        (
            f"{one.num_chips:,}",
            f"{one.num_slices:,}",
            f"{one.num_rows:,}",
            time_text(one.step_s),
            f"{one.rows_per_s:,.0f}",
            f"{one.efficiency:.1%}",
            f"{one.goodput:.1%}",
            "" if one.epoch_s is None else time_text(one.epoch_s),
            "" if one.usd_per_epoch is None else f"${one.usd_per_epoch:,.4f}",
        )
        for one in found
    ]
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    for row in (head, *rows):
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
