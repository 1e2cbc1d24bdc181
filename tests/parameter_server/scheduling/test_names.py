"""Functions are known by their names, or refused in one line."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import lockstep
from lockstep.errors import InvalidInputError
from lockstep.parameter_server.scheduling.names import find_function, name_of


def plain(number: int) -> int:
    return number + 1


@lockstep.function
def decorated(number: Any) -> Any:
    return number + 1


class Holder:
    def method(self) -> None: ...

    @staticmethod
    def static(number: int) -> int:
        return number

    @lockstep.function
    def compiled(self, number: Any) -> Any:
        return number


def make_nested(amount: int) -> Any:
    @lockstep.function
    def nested(number: Any) -> Any:
        return number + amount

    return nested


def make_undecorated() -> Any:
    def inner() -> None: ...

    return inner


@pytest.mark.parametrize("function", [plain, decorated, Holder.static], ids=["plain", "decorated", "static"])
def test_what_stands_in_a_module_is_found_by_its_name(function: Any) -> None:
    name = name_of(function)
    assert name == f"{__name__}:{function.__qualname__}"
    assert find_function(name) is function


def test_of_nested_functions_of_one_name_the_last_decorated_is_known() -> None:
    first = make_nested(1)
    assert find_function(name_of(first)) is first
    second = make_nested(2)
    assert find_function(name_of(second)) is second
    with pytest.raises(InvalidInputError, match="after another one of its name was decorated"):
        name_of(first)


def test_a_nested_function_that_is_gone_is_not_known() -> None:
    nested = make_nested(1)
    name = name_of(nested)
    del nested
    assert find_function(name) is None
    assert find_function("no.such.module:f") is None
    assert find_function(f"{__name__}:Holder") is None, "classes are no functions"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "a function, <lambda>.*; write it as a function with def"),
        (lockstep.function(lambda: None), "a function, <lambda>.*; write it"),
        (make_undecorated(), "inner.*; decorate it with lockstep.function"),
        (Holder().method, "a bound method, Holder.method.*; write it"),
        (Holder().compiled, "an object of partial.*; write it"),
        (functools.partial(plain, 1), "an object of partial.*; write it"),
        (Holder, "an object of type.*; write it"),
        (None, "an object of NoneType.*; write it"),
    ],
    ids=["lambda", "decorated lambda", "nested", "method", "compiled method", "partial", "class", "none"],
)
def test_all_else_is_refused_in_one_line_that_says_what_to_do(function: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        name_of(function)
    assert "\n" not in str(caught.value)


def test_a_function_that_hides_behind_another_ones_name_is_refused() -> None:
    def other() -> None: ...

    other.__qualname__ = "plain"
    with pytest.raises(InvalidInputError, match="workers cannot find by its name"):
        name_of(other)
