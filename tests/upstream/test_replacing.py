"""Functions of Keras and JAX that are replaced: all of a stage or none, once, and what a version lacks is named."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import BackendError
from lockstep.upstream import replacing
from lockstep.upstream.__main__ import PAGE, with_table
from lockstep.upstream.table import REPLACEMENTS, Replacement, Stage


class Upstream:
    """Stands for a class of Keras."""

    def call(self, inputs: Any, *, training: bool = False) -> tuple[Any, bool]:
        return inputs, training

    def build(self, shape: Any) -> Any:
        return shape


def counting(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.num_calls = getattr(self, "num_calls", 0) + 1
        return original(self, *args, **kwargs)

    return wrapper


def row(name: str, *parameters: str) -> Replacement:
    return Replacement(
        stage=Stage.PLAN,
        owner=f"{__name__}:Upstream",
        name=name,
        parameters=("self", *parameters),
        wrapper=f"{__name__}:counting",
        effect="counts",
        removable_when="never",
    )


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setitem(importlib.import_module("sys").modules, __name__, importlib.import_module("inspect"))
    for name in ("Upstream", "counting"):
        monkeypatch.setattr(inspect, name, globals()[name], raising=False)
    for name in ("call", "build"):
        monkeypatch.setattr(Upstream, name, vars(Upstream)[name])  # put back at the end
    monkeypatch.setattr(replacing, "_applied", set[Stage]())
    return lambda *given: monkeypatch.setattr(replacing, "REPLACEMENTS", given)


def test_each_row_fits_the_versions_that_are_installed() -> None:
    assert len(replacing.check(REPLACEMENTS)) == len(REPLACEMENTS)


@pytest.mark.parametrize("one", REPLACEMENTS, ids=lambda one: one.title)
def test_each_row_names_a_function_of_lockstep_that_passes_on_what_it_does_not_know(one: Replacement) -> None:
    module, _, name = one.wrapper.partition(":")
    wrap = getattr(importlib.import_module(module), name)
    assert list(inspect.signature(wrap).parameters), f"{one.wrapper} takes the original"
    if one.owner == replacing.LOWERING or name == "wrap_epoch_iterator":
        return

    def original(*args: Any, **kwargs: Any) -> None: ...

    original.__name__ = one.name
    kinds = [
        parameter.kind for parameter in inspect.signature(wrap(original), follow_wrapped=False).parameters.values()
    ]
    assert inspect.Parameter.VAR_KEYWORD in kinds


def test_a_stage_is_applied_once(rows: Callable[..., None]) -> None:
    rows(row("call", "inputs"), row("build", "shape"))
    for _ in range(2):
        replacing.replace(Stage.PLAN)
    one = Upstream()
    assert (one.call(1, training=True), one.build((2,))) == ((1, True), (2,))
    assert vars(one) == {"num_calls": 2}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (row("call_all"), "Upstream.call_all: it is missing"),
        (row("build", "input_shape"), r"Upstream.build: it takes \(self, shape\), not \(self, input_shape\)"),
        (changed(row("build"), owner="inspect:NoClass"), "NoClass.build: module 'inspect' has no attribute 'NoClass'"),
        (changed(row("build"), owner="no_module"), "no_module.build: No module named 'no_module'"),
    ],
)
def test_what_a_version_lacks_is_named_and_nothing_is_replaced(
    rows: Callable[..., None], wrong: Replacement, problem: str
) -> None:
    before = dict(vars(Upstream))
    rows(row("call", "inputs"), wrong)
    for _ in range(2):
        with pytest.raises(BackendError, match=problem) as raised:
            replacing.replace(Stage.PLAN)
        assert "Keras or JAX" in str(raised.value)
        assert "allowed: keras 3.13 to 3.16" in str(raised.value)
    assert dict(vars(Upstream)) == before


def test_what_only_saves_time_is_left_out_with_a_warning(
    rows: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    rows(changed(row("build", "input_shape"), is_required=False), row("call", "inputs"))
    for _ in range(2):
        replacing.replace(Stage.PLAN)
    one = Upstream()
    assert (one.call(1), one.build((2,))) == ((1, False), (2,))
    assert vars(one) == {"num_calls": 1}
    assert caplog.text.count("Upstream.build is not replaced, so training may be slower: it takes (self, shape)") == 1


def test_a_version_that_was_not_tested_is_said(
    rows: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows()
    monkeypatch.setattr("keras.__version__", "3.99.1")
    replacing.replace(Stage.PLAN)
    assert (
        "keras 3.99.1 was not tested with this version of Lockstep; tested versions: keras 3.13 to 3.16" in caplog.text
    )


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parents[2] / PAGE).read_text("utf-8")
    assert page == with_table(page), "run `make docs`"
    assert page.count("`Model.fit`") == 1
