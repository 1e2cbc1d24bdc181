"""What the service costs and holds out, on this machine: `benchmarks/workloads`, a module a workload.

``python benchmarks/service.py [--cases a,b] [--runs N] [--small]``. Each workload has a service of its own, in a home
of its own in a temporary folder, with default settings. Run by `make bench`, on Linux; all of it takes some minutes,
the first line alone half a minute.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from typing import Final

from harness.tables import console
from workloads import at_scale, console_pages, first_line, followers, listing, million_lines, short_jobs
from workloads.surroundings import hardware

CASES: Final[dict[str, Callable[[int, bool], None]]] = {
    "first-line": lambda runs, _small: first_line.measure(num_runs=runs),
    "listing": lambda _runs, small: listing.measure(listing.SMALL if small else listing.WHOLE),
    "short-jobs": lambda _runs, small: short_jobs.measure(num_jobs=8 if small else 200),
    "million-lines": lambda _runs, small: million_lines.measure(num_lines=10_000 if small else 1_000_000),
    "console": lambda _runs, small: console_pages.measure(console_pages.SMALL if small else console_pages.WHOLE),
    "at-scale": lambda _runs, small: at_scale.measure(at_scale.SMALL if small else at_scale.WHOLE),
    "followers": lambda _runs, small: followers.measure(followers.SMALL if small else followers.WHOLE),
}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description="Measure the service on this machine.")
    parser.add_argument("--cases", default=",".join(CASES), help="what to measure (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=7, help="how many times each way to a first line")
    parser.add_argument("--small", action="store_true", help="small sizes, to see whether it works")
    options = parser.parse_args()
    asked = options.cases.split(",")
    unknown = [case for case in asked if case not in CASES]
    if unknown:
        parser.error(f"--cases: no {', '.join(unknown)}; allowed: {', '.join(CASES)}")
    # Who ends it ends what it has started: the service of the workload goes down as after an error.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("ended by SIGTERM"))
    for case in asked:
        console.print(f"{case}: {hardware()}")
        CASES[case](options.runs, options.small)


if __name__ == "__main__":
    main()
