"""Samples a replica's metrics every few seconds while its program runs, and stores them as series."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, final

from lockstep.jobs.running.metrics import SAMPLE_INTERVAL_S
from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.jobs.running.progress import Progress
from lockstep.runner.gpus import GpuReader
from lockstep.runner.sampling import Sampler
from lockstep.runner.series import SeriesWriter
from lockstep.runner.usage import AbstractMeter
from lockstep.spools import METRICS_FOLDER

CLOSE_S: Final = 3.0


@final
class MetricsRecorder:
    """Records the metrics of one program.

    Args:
        order: the order of the replica.
        meter: the meter of the program's consumption.

    Attributes:
        latest: the values of the last sample, by name.

    Raises:
        StorageError: If the bucket for the series cannot be opened.
    """

    def __init__(self, order: ReplicaOrder, *, meter: AbstractMeter) -> None:
        has_gpus = order.accelerator_type is not None and not order.simulated
        self._sampler = Sampler(
            gpus=GpuReader(os.environ.get("CUDA_VISIBLE_DEVICES")).read if has_gpus else lambda: MappingProxyType({})
        )
        self._meter = meter
        self._next = time.monotonic()
        self._writer = None
        if order.metrics_url is not None:
            self._writer = SeriesWriter(order.metrics_url, spool=Path(order.spool) / METRICS_FOLDER)
        self.latest: Mapping[str, float] = {}

    def sample(self, progress: Progress | None) -> None:
        """Takes a sample if one is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SAMPLE_INTERVAL_S
        sample = self._sampler.sample(self._meter.consumption, progress=progress, now_s=time.time())
        self.latest = sample.values
        if self._writer is not None:
            self._writer.add(sample)

    def close(self) -> bool:
        """Uploads the remaining samples; returns whether all are in the bucket."""
        return self._writer is None or self._writer.close(timeout_s=CLOSE_S)
