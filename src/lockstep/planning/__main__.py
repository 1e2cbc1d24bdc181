"""``python -m lockstep.planning RESULT TARGET SCRIPT [ARGS...]``: runs a script up to its first training step.

The step is compiled for the target instead of executed, the result is written as JSON, and the process ends. So the
rest of the script is not executed. The script needs its own process because JAX determines its devices only once.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.planning.compiling import compile_for
from lockstep.planning.measurement import OUTCOME, Failure, Measurement
from lockstep.planning.targets import Target
from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.programs import Program, watch
from lockstep.upstream.replacing import replace
from lockstep.upstream.table import Stage


def main(arguments: list[str]) -> None:
    """Runs the script. Does not return if the script reaches a training step."""
    result, target_name, script, *script_arguments = arguments
    target = Target.parse(target_name)

    def end(outcome: Measurement | Failure) -> None:
        Path(result).write_bytes(OUTCOME.dump_json(outcome))
        sys.stdout.flush()
        sys.stderr.flush()
        # Ends at once: the script's own exit handlers and cleanup must not run.
        os._exit(0)

    def plan(program: Program) -> None:
        try:
            end(compile_for(program, target=target))
        except LockstepError as error:
            end(Failure(kind=type(error).__name__, message=str(error)))

    prepare_backend()
    replace(Stage.PLAN)
    replace(Stage.STRATEGY)  # a script without a strategy can be planned too
    sys.argv = [script, *script_arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    with watch(plan):
        try:
            runpy.run_path(script, run_name="__main__")
        except LockstepError as error:
            end(Failure(kind=type(error).__name__, message=str(error)))


if __name__ == "__main__":
    main(sys.argv[1:])
