"""Takes samples of a replica: rates and levels of its processes, its node and its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

import psutil

from lockstep.jobs.running.metrics import PROGRAM_PREFIX, Sample
from lockstep.jobs.running.progress import Progress
from lockstep.runner.usage import Consumption

_LOOPBACK: Final = ("lo", "lo0")


def node_network_bytes() -> tuple[int, int]:
    """Returns the bytes that the node has received and sent; zeros if the system does not tell."""
    try:
        interfaces = psutil.net_io_counters(pernic=True)
    except OSError:
        return 0, 0
    outer = [counters for name, counters in interfaces.items() if name not in _LOOPBACK]
    return sum(counters.bytes_recv for counters in outer), sum(counters.bytes_sent for counters in outer)


@final
class Sampler:
    """Computes samples from counters.

    Args:
        gpus: returns the metrics of the replica's GPUs by name; an empty mapping if it has none.
        network: returns the bytes that the node has received and sent.
    """

    def __init__(
        self,
        *,
        gpus: Callable[[], Mapping[str, float]],
        network: Callable[[], tuple[int, int]] = node_network_bytes,
    ) -> None:
        self._gpus = gpus
        self._network = network
        self._heard_s = 0.0
        self._before: tuple[float, dict[str, float]] | None = None

    def sample(self, consumption: Consumption, *, progress: Progress | None, now_s: float) -> Sample:
        """Returns a sample; it contains rates from the second sample on.

        Args:
            consumption: the program's consumption so far.
            progress: the progress that the program reported; None if it never did.
            now_s: the current time, in seconds since 1970 UTC.
        """
        received, sent = self._network()
        counted = {
            "cpuCores": consumption.cpu_s,
            "diskReadBytesPerSecond": float(consumption.disk_read_bytes),
            "diskWrittenBytesPerSecond": float(consumption.disk_written_bytes),
            "networkReceivedBytesPerSecond": float(received),
            "networkSentBytesPerSecond": float(sent),
        }
        values: dict[str, float] = {"memoryBytes": float(consumption.memory_bytes)}
        if self._before is not None and now_s > self._before[0]:
            took_s = now_s - self._before[0]
            # A counter can decrease, as when a child ended unseen. Then there is no rate for this interval.
            rates = {name: (count - self._before[1][name]) / took_s for name, count in counted.items()}
            values.update({name: round(rate, 3) for name, rate in rates.items() if rate >= 0})
        self._before = (now_s, counted)
        values.update(self._gpus())
        if progress is not None:
            values.update(_of_program(progress, is_new=progress.time_s > self._heard_s))
            self._heard_s = progress.time_s
        return Sample(time_s=now_s, values=values)


def _of_program(progress: Progress, *, is_new: bool) -> dict[str, float]:
    """Returns the metrics that a program reported; without a new report, its rates are unknown."""
    counted = {
        "step": progress.step,
        "stepsPerSecond": progress.steps_per_s if is_new else None,
        "examplesPerSecond": progress.examples_per_s if is_new else None,
    }
    own = {f"{PROGRAM_PREFIX}{name}": value for name, value in progress.metrics.items()}
    return {**{name: float(value) for name, value in counted.items() if value is not None}, **own}
