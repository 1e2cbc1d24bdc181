"""Shows the progress of packing: a progress bar on a terminal, a line at intervals elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from lockstep.cli.console import duration

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.data.packing.run import Progress as Packing

LINE_EVERY_S: Final = 10.0


@final
class Rate:
    """Computes the records per second, without the records of an interrupted run.

    Args:
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start_s = clock()

    @property
    def elapsed_s(self) -> float:
        """The time since the start, in seconds."""
        return self._clock() - self._start_s

    def describe(self, now: Packing) -> str:
        """Returns the progress as text: the number of records, the records per second, and the time left."""
        elapsed_s = self.elapsed_s
        per_s = (now.num_items - now.num_resumed) / elapsed_s if elapsed_s > 0 else 0.0
        total = "" if now.total_items is None else f" of {now.total_items:,}"
        parts = [f"{now.num_items:,}{total} records"]
        if per_s > 0:
            parts.append(f"{per_s:,.0f} records/s")
            if now.total_items is not None:
                parts.append(f"{duration((now.total_items - now.num_items) / per_s)} left")
        if now.num_skipped:
            parts.append(f"{now.num_skipped:,} left out")
        return ", ".join(parts)


@final
class Lines:
    """Prints the progress as a line, at most every `LINE_EVERY_S` seconds.

    Args:
        say: a function that prints a line.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, say: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._rate = Rate(clock)
        self._next_s = LINE_EVERY_S

    def report(self, now: Packing) -> None:
        """Prints the progress, if the last line was printed long enough ago."""
        if self._rate.elapsed_s >= self._next_s:
            self._next_s = self._rate.elapsed_s + LINE_EVERY_S
            self._say(f"packing: {self._rate.describe(now)}")


@contextmanager
def show_progress(console: Console) -> Generator[Callable[[Packing], None]]:
    """Shows a progress bar within the block, or prints lines at intervals if the console is not a terminal."""
    if not console.is_terminal:
        yield Lines(console.print).report
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # here, because the help needs none

    columns = (SpinnerColumn(), TextColumn("packing"), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        rate = Rate()

        def report(now: Packing) -> None:
            bar.update(task, total=now.total_items, completed=now.num_items, description=rate.describe(now))

        yield report
