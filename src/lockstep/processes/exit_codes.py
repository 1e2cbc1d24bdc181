"""Descriptions of exit codes for messages."""

from __future__ import annotations

import signal


def describe_exit(code: int) -> str:
    """Returns how a process ended, such as "ended with exit code 3" or "was killed by SIGKILL".

    Args:
        code: the process's exit code, or the negative number of the signal that ended it.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
