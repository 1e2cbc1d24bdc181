"""Replaces functions of Keras and JAX: all required rows of `table` of one stage, or none of the stage."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from lockstep.errors import BackendError
from lockstep.upstream.table import REPLACEMENTS, Replacement, Stage

logger = logging.getLogger(__name__)

TESTED: Final = {"keras": ((3, 13), (3, 16)), "jax": ((0, 9), (0, 12))}
"""The oldest and the newest minor version of each package that the tests run with, with any patch release."""

LOWERING: Final = "lowering"
_MODULE_OF: Final = "module of "

_lock = threading.RLock()
_applied: set[Stage] = set()


def replace(stage: Stage) -> None:
    """Applies the rows of a stage, once in a process. A second call does nothing.

    Warns of rows that only save time and do not fit this version of Keras or JAX, and leaves them out.

    Raises:
        BackendError: this version of Keras or JAX lacks a function that a required row replaces, or the function takes
            other arguments. Then nothing is replaced.
    """
    if stage in _applied:
        return
    with _lock:
        if stage in _applied:
            return
        rows = [row for row in REPLACEMENTS if row.stage is stage]
        _warn_of_versions()
        fitting = [row for row in rows if row.is_required or _fits(row)]
        places = check(fitting)
        wrapped = [_wrapped(row, place) for row, place in zip(fitting, places, strict=True)]
        for (owner, original), row, wrapper in zip(places, fitting, wrapped, strict=True):
            _put(owner, row, original=original, wrapper=wrapper)
        _applied.add(stage)


def check(rows: Sequence[Replacement]) -> list[tuple[Any, Any]]:
    """Finds the functions that rows replace: for each row, its owner (class, module or primitive) and the original.

    Raises:
        BackendError: a function is missing, or differs from what its row expects. The message names each of them.
    """
    found: list[tuple[Any, Any]] = []
    problems: list[str] = []
    for row in rows:
        place = _find(row)
        if isinstance(place, str):
            problems.append(f"{row.title}: {place}")
        else:
            found.append(place)
    if problems:
        raise BackendError(
            "this version of Keras or JAX differs from the versions that Lockstep supports",
            received=f"keras {_version('keras')}, jax {_version('jax')}: {'; '.join(problems)}",
            allowed=_tested(),
            action="install one of these versions, or a newer lockstep-train",
        )
    return found


def _fits(row: Replacement) -> bool:
    place = _find(row)
    if isinstance(place, str):
        logger.warning(
            "%s is not replaced, so training may be slower: %s (keras %s, jax %s); tested versions: %s",
            row.title,
            place,
            _version("keras"),
            _version("jax"),
            _tested(),
        )
        return False
    return True


def _find(row: Replacement) -> tuple[Any, Any] | str:
    """Returns the owner and the original of a row's function, or a description of the problem."""
    if row.owner == LOWERING:
        from jax import lax

        from lockstep.upstream.jax_lowerings import lowerings_of

        primitive = getattr(lax, row.name, None)
        rules = {} if primitive is None else lowerings_of(primitive)
        return (primitive, rules) if None in rules else "its lowering is not found"
    try:
        owner = _owner(row.owner, row.name)
    except (ImportError, AttributeError) as error:
        return str(error)
    if owner is None or row.name not in vars(owner):
        return "it is missing"
    original = vars(owner)[row.name]
    if inspect.isclass(original):
        missing = [name for name in row.parameters if not hasattr(original, name)]
        return f"it has no {', '.join(missing)}" if missing else (owner, original)
    wrong = _misfit(original, row.parameters)
    return wrong or (owner, original)


def _owner(spec: str, name: str) -> Any:
    """Returns the module of a spec, or the class that defines the method; None if no class defines it.

    The defining class is changed, because Keras treats a method that differs from that class's as a user's own.
    """
    module, _, kind = spec.removeprefix(_MODULE_OF).partition(":")
    owner = importlib.import_module(module)
    if not kind:
        return owner
    owner = getattr(owner, kind)
    if spec.startswith(_MODULE_OF):
        method = next(vars(one)["_direct_assign"] for one in owner.__mro__ if "_direct_assign" in vars(one))
        return sys.modules[inspect.unwrap(method).__module__]
    if not inspect.isclass(owner):
        return owner
    return next((one for one in owner.__mro__ if name in vars(one)), None)


def _misfit(function: Callable[..., Any], expected: Sequence[str]) -> str | None:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a compiled function without a signature
        return None
    places = [names.index(name) if name in names else -1 for name in expected]
    if -1 in places or places != sorted(places):
        return f"it takes ({', '.join(names)}), not ({', '.join(expected)})"
    return None


def _wrapped(row: Replacement, place: tuple[Any, Any]) -> Any:
    module, _, name = row.wrapper.partition(":")
    return getattr(importlib.import_module(module), name)(place[1])


def _put(owner: Any, row: Replacement, *, original: Any, wrapper: Any) -> None:
    if row.owner != LOWERING:
        setattr(owner, row.name, wrapper)
        return
    from lockstep.upstream.jax_lowerings import register_lowering

    del original
    for platform, rule in wrapper.items():
        register_lowering(owner, rule, platform=platform, is_cached=row.is_cached)


def _warn_of_versions() -> None:
    for package, (oldest, newest) in TESTED.items():
        found = _version(package)
        minor = tuple(int(part) for part in found.split(".")[:2])
        if not oldest <= minor <= newest:
            logger.warning(
                "%s %s was not tested with this version of Lockstep; tested versions: %s", package, found, _tested()
            )


def _version(package: str) -> str:
    return str(importlib.import_module(package).__version__)  # the metadata of keras-nightly has another name


def _tested() -> str:
    return ", ".join(
        f"{package} {'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}"
        for package, (oldest, newest) in TESTED.items()
    )
