"""Plans a script: runs it up to its first training step in a separate process, and reads the result."""

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

    The script really runs up to that step, with its own arguments, on virtual CPU devices. Its output goes to this
    process's standard error.

    Args:
        script: the path of the script.
        arguments: the arguments of the script.
        target: the devices to compile for.
        timeout_s: the timeout for running and compiling, in seconds; None for no timeout.

    Raises:
        MissingInputError: there is no such script.
        InvalidInputError: the script ended before a training step, or its step is laid out over a number of devices
            that the target does not have.
        BackendError: libtpu is missing, or the compiler rejects the step.
        UnavailableError: the script took longer than ``timeout_s``.
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
                f"{script} did not reach and compile its first training step in time",
                received=f"{timeout_s} s",
                action="increase the timeout, or pass arguments with which the step comes sooner",
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
