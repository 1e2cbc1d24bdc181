"""The call of a submitted function: its arguments on the command line, and the file with the value that it returned."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast, final

from lockstep.errors import CorruptDataError, InvalidInputError

RESULT_FILE: Final = "function-result.json"
"""The name of the file in a job's model folder with the value that its function returned."""
MAX_CALL_BYTES: Final = 64 * 1024
"""The maximum size of a function's arguments, in bytes of JSON: they are one argument of a process."""
MAX_RESULT_BYTES: Final = 2**20
"""The maximum size of the value that a function returned, in bytes of JSON."""
MAX_DEPTH: Final = 50


@final
@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """A call of a submitted function.

    Attributes:
        args: the positional arguments, as JSON has them.
        kwargs: the keyword arguments, as JSON has them.
        strategy: the name of the strategy whose scope the function is called in; None for no scope.
    """

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    strategy: str | None = None

    def to_text(self) -> str:
        """Returns the call as one argument of a program.

        Raises:
            InvalidInputError: an argument is not a value of JSON, or they are larger than `MAX_CALL_BYTES`.
        """
        for number, value in enumerate(self.args):
            _require_json(value, f"args[{number}]", keeps_tuples=False)
        for name, value in self.kwargs.items():
            _require_json(value, name, keeps_tuples=False)
        document = {"args": list(self.args), "kwargs": dict(self.kwargs), "strategy": self.strategy}
        text = json.dumps({key: value for key, value in document.items() if value})
        if len(text) > MAX_CALL_BYTES:
            raise InvalidInputError(
                "the function's arguments are too large",
                received=f"{len(text)} bytes of JSON",
                allowed=f"{MAX_CALL_BYTES} bytes",
                action="put data into a bucket, and pass its URL",
            )
        return text

    @classmethod
    def from_text(cls, text: str) -> FunctionCall:
        """Parses the text of `to_text`.

        Raises:
            InvalidInputError: the text does not have this form.
        """
        try:
            document = cast("dict[str, Any]", json.loads(text))
            return cls(
                args=list(document.get("args", ())),
                kwargs=dict(document.get("kwargs", {})),
                strategy=document.get("strategy"),
            )
        except (ValueError, AttributeError, TypeError):
            raise InvalidInputError(
                "the arguments of a function", received=text, allowed='{"args": [...], "kwargs": {...}}'
            ) from None


def encode_result(value: object) -> bytes:
    """Returns the content of `RESULT_FILE` for the value that a function returned.

    Tuples become lists, and NumPy's numbers become numbers. For a value that JSON does not have, the content says so
    instead: the job has succeeded anyway.

    Args:
        value: the value.
    """
    try:
        plain = _require_json(value, "the returned value", keeps_tuples=True)
    except InvalidInputError as error:
        return json.dumps({"problem": str(error)}).encode()
    data = json.dumps({"value": plain}).encode()
    if len(data) > MAX_RESULT_BYTES:
        problem = (
            f"the returned value has {len(data)} bytes of JSON; allowed: {MAX_RESULT_BYTES}; "
            "save it as a file in the folder AIP_MODEL_DIR"
        )
        return json.dumps({"problem": problem}).encode()
    return data


def decode_result(data: bytes) -> tuple[Any, str | None]:
    """Returns the value that a function returned, and None; or None, and why the value is not stored.

    Args:
        data: the content of `RESULT_FILE`.

    Raises:
        CorruptDataError: the content does not have the form of `encode_result`.
    """
    try:
        document = cast("dict[str, Any]", json.loads(data))
        if "problem" in document:
            return None, str(document["problem"])
        return document["value"], None
    except (ValueError, KeyError, TypeError):
        raise CorruptDataError(f"{RESULT_FILE} is not the result of a function") from None


def _require_json(value: object, what: str, *, keeps_tuples: bool, depth: int = 0) -> Any:
    """Returns a value as JSON has it.

    Args:
        value: the value.
        what: its name, for the message.
        keeps_tuples: whether tuples and NumPy's numbers may become lists and numbers.
        depth: the number of values around it.

    Raises:
        InvalidInputError: JSON does not have this value.
    """
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"{what} is nested too deeply", allowed=f"{MAX_DEPTH} levels")
    if keeps_tuples:
        value = _plain(value)
    if value is None or type(value) in (str, bool, int):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise InvalidInputError(f"{what} is not a finite number", received=value, allowed="numbers that JSON has")
        return value
    if isinstance(value, list) or (keeps_tuples and isinstance(value, tuple)):
        items = cast("Sequence[object]", value)
        return [
            _require_json(item, f"{what}[{number}]", keeps_tuples=keeps_tuples, depth=depth + 1)
            for number, item in enumerate(items)
        ]
    if isinstance(value, dict):
        entries = cast("dict[object, object]", value)
        wrong = [key for key in entries if type(key) is not str]
        if wrong:
            raise InvalidInputError(f"{what} has a key that is not text", received=wrong[0], allowed="texts as keys")
        return {
            str(key): _require_json(item, f"{what}[{key!r}]", keeps_tuples=keeps_tuples, depth=depth + 1)
            for key, item in entries.items()
        }
    raise InvalidInputError(
        f"{what} is not a value of JSON",
        received=type(value).__name__,
        allowed="None, bool, int, float, str, list, dict with texts as keys",
    )


def _plain(value: Any) -> object:
    """Returns a number of NumPy or JAX as Python's; any other value as it is."""
    has_no_dims = getattr(value, "ndim", None) == 0 and callable(getattr(value, "item", None))
    return value.item() if has_no_dims else value
