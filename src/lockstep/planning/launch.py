"""Plans a script: runs it up to its first training step in a process of its own, and reads what that found."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lockstep import errors
from lockstep.errors import InvalidInputError, LockstepError, MissingInputError, UnavailableError
from lockstep.planning.measurement import OUTCOME, Failure, Measurement
from lockstep.planning.targets import Target


def plan_script(
    script: Path, *, arguments: Sequence[str], target: Target, timeout_s: float | None = None
) -> Measurement:
    """Compiles a script's training step for a target.

    The script runs for real up to that step, with its own arguments, on virtual CPU devices: what it prints goes to
    this process's standard error.

    Args:
        script: the script.
        arguments: what it is given.
        target: what to compile for.
        timeout_s: how long all of it may take; None for as long as it takes.

    Raises:
        MissingInputError: there is no such script.
        InvalidInputError: it ended before a training step, or laid it out in a way that the target has no place for.
        BackendError: libtpu is missing, or the compiler refuses the step.
        UnavailableError: it took longer than `timeout_s`.
    """
    if not script.is_file():
        raise MissingInputError("there is no such script", received=str(script))
    with tempfile.TemporaryDirectory(prefix="lockstep-plan-") as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "lockstep.planning", str(result), target.name, str(script), *arguments]
        try:
            done = subprocess.run(
                command, env=target.environment(os.environ), stdin=subprocess.DEVNULL, stdout=2, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                f"{script} did not come to its first training step and through the compiler in time",
                received=f"{timeout_s} s",
                action="give it longer, or arguments with which it starts sooner",
            ) from None
        if not result.exists():
            how = "ended" if done.returncode == 0 else f"failed with exit code {done.returncode}"
            raise InvalidInputError(
                f"{script} {how} before its first training step",
                allowed="a script that calls fit, train_on_batch, or a step compiled by Lockstep",
                action="see what it printed above",
            )
        outcome = OUTCOME.validate_json(result.read_bytes())
    if isinstance(outcome, Failure):
        raise _error(outcome)
    return outcome


def _error(failure: Failure) -> LockstepError:
    kind = getattr(errors, failure.kind, LockstepError)
    return kind(failure.message)
