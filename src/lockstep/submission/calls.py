"""The side of a job that runs a submitted function: it reads the arguments, and stores what the function returns."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from lockstep.errors import InvalidInputError
from lockstep.jobs.running.function_calls import RESULT_FILE, FunctionCall, decode_result, encode_result
from lockstep.jobs.tuning import TrialEnvironment
from lockstep.storage import open_bucket
from lockstep.submission.reporting import report
from lockstep.topology import Topology

logger = logging.getLogger(__name__)


def call_function(function: Callable[..., object], *, arguments: Sequence[str] | None = None) -> None:
    """Calls a submitted function with the arguments of the command line, and stores what it returns.

    The generated program of a function's job calls this. Every replica calls the function, and the chief stores the
    value as `RESULT_FILE` in the folder ``AIP_MODEL_DIR``; without this variable, nobody does.

    In a trial, the function gets the trial's parameters as further keyword arguments. If it returns a number, or a
    dictionary with the search's metric, this is reported as the trial's last measurement. A function that reports all
    by itself may return anything.

    Args:
        function: the function.
        arguments: the command line's arguments, of which the first is the call; by default those of this process.

    Raises:
        InvalidInputError: the first argument is not a call.
        StorageWriteError: the bucket cannot be written.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        raise InvalidInputError("the call of the function is missing", allowed='one argument such as {"args": [1]}')
    call = FunctionCall.from_text(given[0])
    trial = TrialEnvironment.from_env(os.environ)
    chosen = dict(trial.parameters if trial is not None else {})
    with contextlib.ExitStack() as scope:
        if call.strategy is not None:
            from lockstep.strategies import from_env  # imports JAX and Keras, which not every function needs

            scope.enter_context(from_env(call.strategy).scope())
        value = function(*call.args, **{**call.kwargs, **chosen})
    if trial is not None:
        _report_objective(value, metric=trial.metric)
    topology = Topology.from_env()
    if topology.outputs.model_dir is None or not topology.is_chief:
        return
    data = encode_result(value)
    _, problem = decode_result(data)
    if problem is not None:
        logger.warning("the returned value is not stored: %s", problem)
    open_bucket(topology.outputs.model_dir).write(RESULT_FILE, data)


def _report_objective(value: object, *, metric: str) -> None:
    if value is None:
        return
    found = value
    if isinstance(value, Mapping):
        found = cast("Mapping[object, object]", value).get(metric)
    try:
        report({metric: cast("Any", found)})
    except InvalidInputError:
        logger.warning("the returned value is not reported: it is no number, and has no %r", metric)
