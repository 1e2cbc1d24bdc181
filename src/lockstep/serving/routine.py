"""Custom prediction routines: a class of the user's own that answers requests, as AI Platform Prediction had them.

The class is named by the contract's ``predictionClass``, and comes in a package of the version::

    class Predictor:
        @classmethod
        def from_path(cls, model_dir): ...
        def predict(self, instances, **kwargs): ...

``from_path`` gets the local folder with the deployed files. ``predict`` gets the instances as they are in the request's
JSON, and the other keys of the request by name. It returns a list with one prediction for each instance.
"""

from __future__ import annotations

import importlib
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast, final

import numpy as np
import orjson

from lockstep.errors import InvalidInputError, ModelError, RoutineError
from lockstep.serving.instances import plain, writable

MAX_THREADS: Final = 64
THREADS: Final = "max_concurrent_calls"
"""The attribute with which a class says how many calls of ``predict`` may run at the same time. Default: 1."""
_MAX_REASON: Final = 400


@final
class Routine:
    """An instance of a class of the user's own. Thread-safe only as far as the class says with `THREADS`.

    Args:
        name: the name of the class, such as ``trainer.predictor.Predictor``, for messages.
        predictor: the instance.

    Raises:
        ModelError: it has no ``predict``, or a wrong number of threads.
    """

    def __init__(self, name: str, predictor: Any) -> None:
        self._name = name
        predict = getattr(predictor, "predict", None)
        if not callable(predict):
            raise ModelError(f"predictionClass {name} has no predict(instances, **kwargs)")
        self._predict = predict
        self._signature: inspect.Signature | None = None
        with suppress(ValueError, TypeError):  # a function of C may have none
            self._signature = inspect.signature(predict)
        threads = getattr(predictor, THREADS, 1)
        if type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            raise ModelError(
                f"predictionClass {name}: {THREADS}",
                received=threads,
                allowed=f"a whole number from 1 to {MAX_THREADS}",
            )
        self._num_threads = threads

    @classmethod
    def load(cls, name: str, *, folder: Path) -> Routine:
        """Imports a class from the packages of the version, and creates the instance. Runs their code.

        Args:
            name: the module and the name of the class, such as ``trainer.predictor.Predictor``.
            folder: the folder with the deployed files, for ``from_path``.

        Raises:
            ModelError: the class cannot be imported, or its ``from_path`` fails. The traceback is on standard error.
        """
        module, _, attribute = name.rpartition(".")
        what = f"predictionClass {name}"
        found = _guarded(lambda: importlib.import_module(module), what=f"{what}: module {module} cannot be imported")
        kind = getattr(found, attribute, None)
        if not callable(getattr(kind, "from_path", None)):
            missing = "no classmethod from_path(model_dir)" if kind is not None else f"no {attribute} in {module}"
            raise ModelError(f"{what}: there is {missing}", action="name another class, or another package")
        made = _guarded(lambda: cast("Any", kind).from_path(str(folder)), what=f"{what}: from_path failed")
        return cls(name, made)

    @property
    def num_threads(self) -> int:
        """How many calls of `predict` may run at the same time."""
        return self._num_threads

    def predict(self, instances: list[object], parameters: Mapping[str, object]) -> bytes:
        """Runs the routine, and returns the body of the response: ``{"predictions": [...]}``. Blocks.

        Args:
            instances: the instances of the request.
            parameters: the other keys of the request.

        Raises:
            InvalidInputError: the routine refused the request, with a ``ValueError``.
            RoutineError: it failed in another way, or did not return one prediction for each instance.
        """
        self._check_parameters(instances, parameters)
        num_instances = len(instances)  # the routine may change the list
        try:
            predictions = self._predict(instances, **parameters)
        except InvalidInputError:
            raise
        except BaseException as error:  # the user's code may raise anything, which must not end the server
            _show(error)
            kind = InvalidInputError if isinstance(error, ValueError) else RoutineError
            raise kind(f"predictionClass {self._name} failed: {_reason(error)}") from error
        return self._write(predictions, num_instances=num_instances)

    def _check_parameters(self, instances: list[object], parameters: Mapping[str, object]) -> None:
        if not parameters or self._signature is None:
            return
        try:
            self._signature.bind(instances, **parameters)
        except TypeError as error:
            raise InvalidInputError(
                f"predictionClass {self._name}: {error}", received=sorted(parameters), allowed="what its predict takes"
            ) from None

    def _write(self, predictions: Any, *, num_instances: int) -> bytes:
        is_array = hasattr(predictions, "__array__") and np.ndim(predictions) > 0
        if not is_array and not isinstance(predictions, list | tuple):
            raise RoutineError(
                f"predictionClass {self._name} returned no list of predictions",
                received=type(predictions).__name__,
                allowed="a list with one prediction for each instance",
            )
        if len(predictions) != num_instances:
            raise RoutineError(
                f"predictionClass {self._name} returned another number of predictions",
                received=len(predictions),
                allowed=f"{num_instances}, one for each instance",
            )
        try:
            return orjson.dumps({"predictions": _jsonable(predictions)}, option=orjson.OPT_SERIALIZE_NUMPY)
        except (TypeError, ValueError, RecursionError) as error:
            raise RoutineError(
                f"predictionClass {self._name} returned what JSON cannot say: {_reason(error)}",
                allowed="numbers, strings, booleans, None, lists, dictionaries with strings as keys, and NumPy arrays",
            ) from error


def _jsonable(value: Any) -> Any:
    """Returns a value in a form that orjson writes, with strings instead of NaN and infinity."""
    if isinstance(value, dict):
        return {key: _jsonable(each) for key, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_jsonable(each) for each in cast("Sequence[Any]", value)]
    if not isinstance(value, np.generic) and isinstance(value, float):
        return value if math.isfinite(value) else writable(np.array([value]))[0]
    if not hasattr(value, "__array__"):
        return value
    array = plain(np.asarray(value))
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        return _jsonable(array.tolist())
    return writable(array)


def _guarded(call: Callable[[], Any], *, what: str) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        _show(error)
        action = None
        if isinstance(error, ModuleNotFoundError):
            action = "add it to the package, or to the package's requirements.txt"
        raise ModelError(f"{what}: {_reason(error)}", action=action) from error


def _show(error: BaseException) -> None:
    """Prints the traceback of an error, without the frames of this file, to the log."""
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    sys.stderr.write("".join(traceback.format_exception(type(error), error, frames)))
    sys.stderr.flush()


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:_MAX_REASON]}" if lines else type(error).__name__
