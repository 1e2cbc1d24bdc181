"""``python -m lockstep.doctor``: runs the checks for the process that started this one.

Reads `Surroundings` as a line of JSON from standard input, and writes a `Diagnosis` as JSON. Ends when standard input
ends, so that it never outlives a service that was killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from lockstep.doctor.catalogue import diagnose
from lockstep.doctor.surroundings import Surroundings


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Runs the checks that standard input asks for."""
    surroundings = Surroundings.from_json(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_input, daemon=True).start()
    sys.stdout.write(json.dumps(diagnose(surroundings).to_json()) + "\n")
    sys.stdout.flush()
    os._exit(0)  # at once, even if a check hangs


if __name__ == "__main__":
    main()
