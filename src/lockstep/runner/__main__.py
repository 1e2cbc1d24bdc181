"""``python -m lockstep.runner``: reads an order, runs its program, reports; see `lockstep.runner`."""

from __future__ import annotations

import os
import signal
import sys
from typing import BinaryIO

from pydantic import ValidationError

from lockstep.errors import InvalidInputError
from lockstep.jobs.running.orders import ORDER, STATUS, ReplicaStatus
from lockstep.processes.families import adopt_orphans
from lockstep.runner.run import Runner


def _read_line(descriptor: int) -> bytes:
    """Reads up to a line feed, and not one byte further: what follows is for the runner's loop."""
    line = bytearray()
    while (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _reporter(output: BinaryIO, status: ReplicaStatus) -> None:
    try:
        output.write(STATUS.dump_json(status) + b"\n")
        output.flush()
    except BrokenPipeError:
        pass  # the engine is gone; the end of the standard input says so to the loop


def main() -> int:
    """Runs one replica; returns the exit code of the runner itself where it did not understand its order."""
    # The engine stops a runner through its standard input; a signal to its group must not cut off the log. A handler
    # and not SIG_IGN, which the program would inherit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    try:
        order = ORDER.validate_json(_read_line(sys.stdin.fileno()))
    except ValidationError as error:
        problem = InvalidInputError(f"not a replica order: {error.errors()[0]['msg']}")
        sys.stderr.write(f"lockstep.runner: {problem}\n")
        return problem.exit_code
    adopt_orphans()
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    Runner(order, control=sys.stdin.fileno(), report=lambda status: _reporter(output, status)).run()
    output.flush()
    os._exit(0)  # a thread may hang in a bucket that does not answer; all that matters is written


if __name__ == "__main__":
    sys.exit(main())
