"""The turnover of checkpoints: which ones are kept when a new one is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from orbax.checkpoint.checkpoint_managers import PreservationContext


@final
@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The order of checkpoints from the best to the worst.

    Attributes:
        monitor: the name of the metric that decides, such as "val_loss".
        is_higher_better: whether a higher value is better.
        num_kept: the number of best checkpoints to keep.
    """

    monitor: str
    is_higher_better: bool
    num_kept: int = 1

    def best_first(self, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
        """Returns the steps that have the metric, best first. Of equal ones, the earlier step is better.

        Args:
            metrics: the metrics of each checkpoint, by its step.
        """
        values = {step: found[self.monitor] for step, found in metrics.items() if self.monitor in found}
        sign = -1 if self.is_higher_better else 1
        return sorted(
            (step for step, value in values.items() if not math.isnan(value)),
            key=lambda step: (sign * values[step], step),
        )


@final
class Turnover:
    """Orbax's policy of what is kept: the latest checkpoints, the best ones, and none that is damaged.

    Args:
        keep: the number of latest checkpoints to keep.
        read_metrics: a function that returns the metrics of an existing checkpoint by its step; an empty mapping if it
            has none.
    """

    def __init__(self, keep: int, *, read_metrics: Callable[[int], Mapping[str, float]]) -> None:
        self._keep = keep
        self._read_metrics = read_metrics
        self._metrics: dict[int, Mapping[str, float]] = {}
        self._damaged: set[int] = set()
        self.ranking: Ranking | None = None

    @property
    def damaged(self) -> frozenset[int]:
        """The steps of the damaged checkpoints."""
        return frozenset(self._damaged)

    def note_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of a checkpoint that is being written."""
        self._metrics[step] = metrics

    def note_damaged(self, steps: Iterable[int]) -> None:
        """Records damaged checkpoints. They are removed once the next checkpoint is complete."""
        self._damaged.update(steps)

    def metrics_of(self, steps: Iterable[int]) -> dict[int, Mapping[str, float]]:
        """Returns the metrics of existing checkpoints by their steps. Each one is read once."""
        return {step: self._metrics[step] if step in self._metrics else self._read(step) for step in steps}

    def should_preserve(self, checkpoints: Sequence[Any], *, context: PreservationContext) -> Sequence[bool]:
        """Returns which checkpoints are kept, as Orbax requires it.

        Args:
            checkpoints: Orbax's information about each checkpoint, in ascending order of their steps.
            context: what Orbax knows besides; not needed.
        """
        whole = [info.step for info in checkpoints if info.step not in self._damaged]
        kept = set(whole[-self._keep :])
        if self.ranking is not None:
            kept.update(self.ranking.best_first(self.metrics_of(whole))[: self.ranking.num_kept])
        return [info.step in kept for info in checkpoints]

    def _read(self, step: int) -> Mapping[str, float]:
        self._metrics[step] = self._read_metrics(step)
        return self._metrics[step]
