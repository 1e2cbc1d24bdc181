"""What the service costs and holds out, on this machine: `benchmarks/workloads`, a module a workload.

``python benchmarks/service.py [--cases a,b] [--rounds N] [--small]``. Each workload has a service of its own, in a home
of its own in a temporary folder, with default settings. Run by `make bench`, on Linux; all of it takes some minutes,
the first line alone half a minute. Rounds are those of the first line. Prints tables as Markdown, and writes JSON.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Final

from harness.environments import own_versions
from harness.program import Program
from harness.results import Result
from workloads import at_scale, console_pages, first_line, followers, listing, million_lines, short_jobs

CASES: Final[dict[str, Callable[[int, bool], list[Result]]]] = {
    "first-line": lambda rounds, _small: first_line.measure(num_rounds=rounds),
    "listing": lambda _rounds, small: listing.measure(listing.SMALL if small else listing.WHOLE),
    "short-jobs": lambda _rounds, small: short_jobs.measure(num_jobs=8 if small else 200),
    "million-lines": lambda _rounds, small: million_lines.measure(num_lines=10_000 if small else 1_000_000),
    "console": lambda _rounds, small: console_pages.measure(console_pages.SMALL if small else console_pages.WHOLE),
    "at-scale": lambda _rounds, small: at_scale.measure(at_scale.SMALL if small else at_scale.WHOLE),
    "followers": lambda _rounds, small: followers.measure(followers.SMALL if small else followers.WHOLE),
}


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="service", num_rounds=7)
    program.add_choice("--cases", list(CASES))
    options = program.parse(small={"rounds": 3})
    # Who ends it ends what it has started: the service of the workload goes down as after an error.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("ended by SIGTERM"))
    results = [result for case in options.cases for result in CASES[case](options.rounds, options.small)]
    program.finish(results, packages={"Lockstep": own_versions("ray")})


if __name__ == "__main__":
    main()
