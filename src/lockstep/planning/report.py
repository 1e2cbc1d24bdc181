"""The report of `lockstep plan`: the measurement, with times and costs from published figures and list prices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, final

from pydantic import TypeAdapter

from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.planning.advice import advise, missing_bytes
from lockstep.planning.forecast import Forecast, ForecastOptions, forecast, forecast_lines
from lockstep.planning.measurement import Measurement
from lockstep.planning.roofline import Floor, floor
from lockstep.planning.targets import Target
from lockstep.planning.units import count_text, number_text, size_text, time_text

_UNPRICED: Final = "unpriced"
MIB: Final = 2**20


@final
@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of the target.

    Attributes:
        usd_per_hour: the price of all its machines together, in US dollars per hour.
        usd_per_epoch_floor: the cost of an epoch if each step takes only its least time; None if the number of steps is
            not known.
        source: the source of the price.
    """

    usd_per_hour: Decimal
    usd_per_epoch_floor: Decimal | None
    source: str


@final
@dataclass(frozen=True, kw_only=True)
class Report:
    """The plan of a step on a target.

    Attributes:
        target: the name of the target, such as "v5e:2x4".
        devices: a description of the target's devices in words.
        num_devices: the number of the target's devices.
        machine_type: the machine type of the target's hosts; None for CPUs.
        num_hosts: the number of hosts.
        fits: whether the step fits into one chip's memory, according to the compiler.
        measurement: the result of compiling.
        missing_bytes: the bytes that the step needs beyond a chip's memory; None if it fits, or if the compiler does
            not say.
        advice: what would make the step fit, one sentence each, the most effective first; empty if it fits.
        peak_flops: the chip's published peak rate, in operations per second; None for CPUs.
        hbm_bytes: the chip's published memory size in bytes; None for CPUs.
        hbm_bytes_per_s: the published bandwidth of this memory, in bytes per second; None for CPUs.
        ici_bytes_per_s: the published bandwidth of the links to other chips in one direction, in bytes per second; None
            for CPUs.
        sources: the URLs of the sources of these figures.
        floor: the least time of a step; None if the step does not fit, or for CPUs.
        step_s: the least time of a step as one number, in seconds.
        epoch_s: the least time of an epoch, in seconds; None if its number of steps is not known.
        cost: the cost of the target; None if a part of the target has no price.
        forecasts: the simulated training on other numbers of chips, where they were asked for.
    """

    target: str
    devices: str
    num_devices: int
    machine_type: str | None
    num_hosts: int
    fits: bool
    measurement: Measurement
    missing_bytes: int | None = None
    advice: tuple[str, ...] = ()
    peak_flops: float | None = None
    hbm_bytes: int | None = None
    hbm_bytes_per_s: float | None = None
    ici_bytes_per_s: float | None = None
    sources: tuple[str, ...] = ()
    floor: Floor | None = None
    step_s: float | None = None
    epoch_s: float | None = None
    cost: Cost | None = None
    forecasts: tuple[Forecast, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the report as a JSON document; amounts of money are strings."""
        return TypeAdapter(Report).dump_python(self, mode="json")

    def lines(self) -> Iterator[str]:
        """Yields the lines of the report in readable form."""
        found = self.measurement
        yield f"{found.program}: compiled for {self.devices}, not run ({found.compile_s:.1f} s of compiling)"
        yield from self._layout_lines()
        yield from self._memory_lines()
        yield from self._work_lines()
        yield from self._time_lines()
        if self.forecasts:
            yield from forecast_lines(self.forecasts)
        if self.sources:
            yield "published figures"
            yield from (f"  {source}" for source in self.sources)

    def _layout_lines(self) -> Iterator[str]:
        found = self.measurement
        steps = "an unknown number of steps" if found.num_steps is None else number_text(found.num_steps, "step")
        devices = number_text(found.num_devices, "device")
        yield f"  global batch of {number_text(found.num_rows, 'row')} over {devices}; {steps} an epoch"
        if found.num_devices < self.num_devices:
            idle = number_text(self.num_devices - found.num_devices, "device")
            yield f"  {idle} of the target idle: build and compile the model within a strategy's scope"

    def _memory_lines(self) -> Iterator[str]:
        memory = self.measurement.memory
        if self.fits:
            of = (
                ""
                if self.hbm_bytes is None
                else f" of {size_text(self.hbm_bytes)} ({memory.total / self.hbm_bytes:.1%})"
            )
            yield f"memory of one chip: it fits, {size_text(memory.total)}{of}"
        else:
            yield f"memory of one chip: it DOES NOT FIT: {self.measurement.refusal}"
            if self.missing_bytes is not None:
                yield f"  {size_text(self.missing_bytes)} too much"
            if self.advice:
                yield "  what would help, the most effective first"
                yield from (f"    {sentence}" for sentence in self.advice)
        for label, size in memory.arguments.items():
            yield _row(label, size_text(size), "" if memory.padded else "without padding")
        for label, size, remark in (
            ("activations", memory.temporaries, "gradients and other temporaries too"),
            ("results", memory.results, "without the new state, which replaces the old one in place"),
            ("program", memory.program, ""),
            ("reused", -memory.reused if memory.reused >= MIB else None, "memory that two of these use in turn"),
        ):
            if size is not None:
                yield _row(label, f"-{size_text(-size)}" if size < 0 else size_text(size), remark)

    def _work_lines(self) -> Iterator[str]:
        work = self.measurement.work
        if work is None:
            return
        yield "work of one chip in a step"
        yield _row("operations", count_text(work.operations, "FLOP"), self._operations_remark())
        for found in work.collectives:
            looped = f", {found.count_in_loops} in loops and counted once" if found.count_in_loops else ""
            yield _row(
                found.kind,
                size_text(found.payload_bytes),
                f"in {found.count} over {found.group_size} chips; {size_text(found.sent_bytes)} sent{looped}",
            )
        if not work.collectives:
            yield _row("collectives", "none", "")

    def _operations_remark(self) -> str:
        total = count_text(self.measurement.matrix_operations, "FLOP")
        return f"matrix products and convolutions of all chips together: {total}"

    def _time_lines(self) -> Iterator[str]:
        if self.floor is None:
            if self.fits:
                yield "time: no floor, since these devices have no published figures"
            return
        rows = self.measurement.num_rows
        yield f"time of a step: at least {time_text(self.floor.step_s)}, bound by {self.floor.bound_by}"
        yield _row(
            "compute",
            time_text(self.floor.compute_s),
            f"at {count_text(self.peak_flops or 0, 'FLOP')}/s, the bfloat16 peak",
        )
        yield _row(
            "memory",
            time_text(self.floor.memory_s),
            f"state in and out at {size_text(self.hbm_bytes_per_s or 0, 1000)}/s",
        )
        yield _row(
            "interconnect",
            time_text(self.floor.interconnect_s),
            f"at {size_text(self.ici_bytes_per_s or 0, 1000)}/s one way",
        )
        yield _row(
            "estimate", time_text(self.floor.xla_memory_s), "from all memory traffic that XLA counts; not a floor"
        )
        yield _row("rows", f"{rows / self.floor.step_s:,.0f}/s", "at the most, all chips together")
        if self.epoch_s is not None:
            yield f"an epoch: at least {time_text(self.epoch_s)}"
        machines = f"{self.num_hosts} x {self.machine_type}"
        if self.cost is None:
            yield f"cost: {_UNPRICED} ({machines} has no price in the catalogue; --usd-per-chip-hour takes yours)"
        else:
            epoch = self.cost.usd_per_epoch_floor
            least = "" if epoch is None else f"at least ${epoch:.6f} an epoch, at "
            yield f"cost: {least}${self.cost.usd_per_hour:.2f} an hour for {machines} ({self.cost.source})"


def make_report(
    measurement: Measurement,
    *,
    target: Target,
    catalogue: Catalogue,
    region: str | None = None,
    usd_per_chip_hour: Decimal | None = None,
    scaling: ForecastOptions | None = None,
) -> Report:
    """Returns the report of a measurement.

    Args:
        measurement: the result of compiling a step for the target.
        target: the target.
        catalogue: the catalogue of machine types and prices.
        region: the region whose prices apply; None for the Americas.
        usd_per_chip_hour: the price of one chip in US dollars per hour, to be used instead of the catalogue's price.
        scaling: other numbers of chips to forecast, with what is assumed; the price is that of the target.

    Raises:
        ConfigError: the region is not in the catalogue.
        InvalidInputError: there are no figures for so many chips.
    """
    chip, work = target.chip, measurement.work
    found = None if chip is None or work is None else floor(work, chip=chip)
    epoch_s = None if found is None or measurement.num_steps is None else found.step_s * measurement.num_steps
    cost = None
    usd_per_hour = target.usd_per_hour(catalogue, region=region)
    source = "" if usd_per_hour is None else " and ".join(target.price_list_names(catalogue))
    if usd_per_chip_hour is not None and chip is not None:
        usd_per_hour, source = usd_per_chip_hour * target.num_chips, f"${usd_per_chip_hour} a chip and hour, as given"
    if usd_per_hour is not None:
        epoch = None if epoch_s is None else usd_per_hour * Decimal(epoch_s) / 3600
        cost = Cost(usd_per_hour=usd_per_hour, usd_per_epoch_floor=epoch, source=source)
    forecasts: tuple[Forecast, ...] = ()
    if scaling is not None and chip is not None and found is not None:
        price = None if usd_per_hour is None else usd_per_hour / target.num_chips
        scaling = replace(scaling, usd_per_chip_hour=price)
        forecasts = forecast(measurement, chip=chip, floor=found, options=scaling)
    return Report(
        target=target.name,
        devices=target.describe(),
        num_devices=target.num_chips,
        machine_type=target.machine_type,
        num_hosts=target.num_hosts,
        fits=measurement.refusal is None,
        measurement=measurement,
        missing_bytes=None if measurement.refusal is None else missing_bytes(measurement),
        advice=() if chip is None or measurement.refusal is None else advise(measurement, hbm_bytes=chip.hbm_bytes),
        peak_flops=None if chip is None else chip.peak_flops,
        hbm_bytes=None if chip is None else chip.hbm_bytes,
        hbm_bytes_per_s=None if chip is None else chip.hbm_bytes_per_s,
        ici_bytes_per_s=None if chip is None else chip.ici_bytes_per_s,
        sources=() if chip is None else tuple(dict.fromkeys((chip.source, chip.ici_source))),
        floor=found,
        step_s=None if found is None else found.step_s,
        epoch_s=epoch_s,
        cost=cost,
        forecasts=forecasts,
    )


def _row(label: str, value: str, remark: str) -> str:
    return f"  {label:<14}{value:>12}  {remark}".rstrip()
