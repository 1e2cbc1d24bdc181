"""Rewrites `tf.function`s that take batches from an iterator: in Lockstep, the caller takes the batch and passes it."""

from __future__ import annotations

from typing import Any, Final, final

import libcst as cst
import libcst.matchers as m

from lockstep.migration.scripts import AbstractPass, Options, last_name

FUNCTION: Final = "tf.function"
LINK: Final = "docs/migrating.md#data-in-compiled-functions"
_DATA: Final = ("data", "dataset", "ds", "batches", "iterator")


@final
class FunctionPass(AbstractPass):
    """Moves taking the batch from compiled functions to their callers; functions that loop over data become plain."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._taking: dict[str, tuple[int, str, str]] = {}
        self._taken: set[int] = set()
        self._scheduled: set[str] = set()
        self._making_data: set[str] = set()
        self._called: dict[str, int] = {}
        self._referred: dict[str, int] = {}
        self._plain: set[int] = set()

    def visit_Module(self, node: cst.Module) -> None:
        """Analyzes all functions before any of them is changed."""
        for name in _all(node, cst.Name):
            self._referred[name.value] = self._referred.get(name.value, 0) + 1
        for call in _all(node, cst.Call):
            name = last_name(call.func)
            self._called[name] = self._called.get(name, 0) + 1
            if name == "schedule" and call.args:
                self._scheduled.add(last_name(call.args[0].value))
            if name == "create_per_worker_dataset" and call.args:
                self._making_data.add(last_name(call.args[0].value))
        for function in _all(node, cst.FunctionDef):
            if any(self._is_compiled(one.decorator) for one in function.decorators):
                self._analyze(function)

    def _is_compiled(self, decorator: cst.BaseExpression) -> bool:
        return self.full_name(decorator.func if isinstance(decorator, cst.Call) else decorator) == FUNCTION

    def _analyze(self, function: cst.FunctionDef) -> None:
        name = function.name.value
        if name in self._scheduled:  # by a coordinator: its closures take batches on the worker
            return
        if name in self._making_data:  # it returns a data set, not arrays
            self._plain.add(id(function))
            return
        loops = [loop for loop in _all(function.body, cst.For, cst.While) if self._is_over_data(loop, function)]
        taken = [call for call in _all(function.body, cst.Call) if _taken_from(call) is not None]
        if loops or len(taken) > 1:
            self._plain.add(id(function))
            return
        if not taken:
            return
        source = _taken_from(taken[0])
        parameters = [parameter.name.value for parameter in function.params.params]
        uses = [one for one in _all(function.body, cst.Name) if one.value == source]
        is_only_called = self._referred.get(name, 0) - 1 == self._called.get(name, 0)
        if source not in parameters or len(uses) != 1 or not is_only_called:
            self._plain.add(id(function))
            return
        names = {one.value for one in _all(function, cst.Name)}
        batch = next(one for one in ("batch", "next_batch", "global_batch", f"{source}_batch") if one not in names)
        position = parameters.index(source) - (parameters[0] == "self")
        self._taking[name] = (position, source, batch)
        self._taken.update((id(taken[0]), id(function)))

    def _is_over_data(self, loop: Any, function: cst.FunctionDef) -> bool:
        if any(_taken_from(call) is not None for call in _all(loop.body, cst.Call)):
            return True
        if not isinstance(loop, cst.For):
            return False
        source = last_name(loop.iter)
        return bool(source) and any(word in _DATA for word in source.lower().split("_"))

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        """Turns the function's iterator parameter into a batch parameter, or removes the decorator."""
        if id(original_node) in self._plain:
            kept = [
                new
                for old, new in zip(original_node.decorators, updated_node.decorators, strict=True)
                if not self._is_compiled(old.decorator)
            ]
            if original_node.name.value not in self._making_data and any(
                isinstance(inner, cst.FunctionDef) for inner in _all(original_node.body, cst.FunctionDef)
            ):
                self.remark(
                    "this function takes its own batches, so it is no longer compiled as a whole; a step that is "
                    "defined inside it is compiled again in each call: define the step outside",
                    link=LINK,
                )
            return updated_node.with_changes(decorators=kept)
        if id(original_node) not in self._taken:
            return updated_node
        _, source, batch = self._taking[original_node.name.value]
        parameters = [
            one.with_changes(name=cst.Name(batch), annotation=None) if one.name.value == source else one
            for one in updated_node.params.params
        ]
        return updated_node.with_changes(params=updated_node.params.with_changes(params=parameters))

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Takes the batch in calls of the function, and uses it inside the function."""
        if id(original_node) in self._taken:
            source = _taken_from(original_node)
            batch = next(batch for _, one, batch in self._taking.values() if one == source)
            return cst.Name(batch)
        found = self._taking.get(last_name(original_node.func))
        if found is None:
            return updated_node
        position, source, batch = found
        args = list(updated_node.args)
        for number, arg in enumerate(args):
            is_it = number == position if arg.keyword is None else arg.keyword.value == source
            if is_it:
                value = cst.Call(cst.Name("next"), [cst.Arg(arg.value)])
                keyword = None if arg.keyword is None else cst.Name(batch)
                args[number] = arg.with_changes(value=value, keyword=keyword)
        return updated_node.with_changes(args=args)


def _taken_from(call: cst.Call) -> str | None:
    """Returns the name of the iterator that ``next(it)`` or ``it.get_next()`` takes a batch from; None otherwise."""
    if m.matches(call, m.Call(func=m.Name("next"), args=[m.Arg(value=m.Name())])):
        return last_name(call.args[0].value)
    if m.matches(call, m.Call(func=m.Attribute(value=m.Name(), attr=m.Name("get_next")), args=[])):
        assert isinstance(call.func, cst.Attribute), "just matched"
        return last_name(call.func.value)
    return None


def _all(node: Any, *kinds: type) -> list[Any]:
    found = [node] if isinstance(node, kinds) else []
    for child in node.children:
        found.extend(_all(child, *kinds))
    return found
