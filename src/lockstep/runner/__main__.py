"""``python -m lockstep.runner``: reads an order, runs its program, and reports; see `lockstep.runner`."""

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
    """Reads until a line feed and not one byte further, because the runner's loop reads what follows."""
    line = bytearray()
    while (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _reporter(output: BinaryIO, status: ReplicaStatus) -> None:
    try:
        output.write(STATUS.dump_json(status) + b"\n")
        output.flush()
    except BrokenPipeError:
        pass  # the engine is gone; the loop sees the end of the standard input


def main() -> int:
    """Runs one replica; returns the runner's own exit code if it cannot parse its order."""
    # The engine stops a runner through its standard input. A signal to the runner's group must not cut off the log.
    # This sets a handler rather than SIG_IGN, which the program would inherit.
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
    os._exit(0)  # a thread may hang in a bucket; all data is written


if __name__ == "__main__":
    sys.exit(main())
