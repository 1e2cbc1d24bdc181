"""Rewrites `tf.GradientTape` blocks: the recorded block becomes a function for `lockstep.value_and_grad`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import libcst as cst
import libcst.matchers as m

from lockstep.migration.bindings import events, names_bound, names_read, names_read_first
from lockstep.migration.scripts import AbstractPass, Options, Script, argument, last_name

TAPE: Final = "tf.GradientTape"
LINK: Final = "docs/migrating.md#tapes"
_LEAVING: Final = (cst.Return, cst.Yield, cst.Await, cst.Break, cst.Continue, cst.Global, cst.Nonlocal)
_VARIABLES: Final = ("trainable_variables", "trainable_weights", "variables", "weights")
"""Attributes with lists that grow when a model is built, which may happen in a tape's block."""
_LOOPS: Final = (cst.For, cst.While)
_SCOPES: Final = (cst.FunctionDef, cst.Lambda, cst.ClassDef)


class _NotPossible(Exception):
    """A tape that a person has to rewrite; the message says why."""


def rewrite_tapes(script: Script, options: Options) -> Script:
    """Rewrites the tapes of a script one after the other, and adds remarks for those that cannot be rewritten."""
    while True:
        found = TapePass(options)
        script = script.passed(found)
        if not found.has_changed:
            return script


@final
@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The rewriting of one tape: ``statements`` replace those from ``start`` to ``end``, inclusive, of ``block``."""

    block: cst.CSTNode
    start: int
    end: int
    statements: Sequence[Any]


@final
class TapePass(AbstractPass):
    """Rewrites the first tape that can be rewritten, and remarks on those before it."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.has_changed = False
        self._plan: _Plan | None = None

    def visit_With(self, node: cst.With) -> None:
        """Plans the rewriting of a tape's block, or remarks on it."""
        if self._plan is not None:
            return
        tapes = [item for item in node.items if self._is_tape(item.item)]
        if not tapes:
            return
        try:
            self._plan = self._plan_of(node, tapes)
        except _NotPossible as reason:
            self.remark(f"this tape was not rewritten: {reason}", link=LINK)

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> Any:
        """Replaces the tape by the new statements."""
        return self._changed(original_node, updated_node)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> Any:
        """Replaces the tape by the new statements."""
        return self._changed(original_node, updated_node)

    def _changed(self, original: Any, updated: Any) -> Any:
        plan = self._plan
        if plan is None or plan.block is not original:
            return updated
        self.has_changed = True
        self.options.needed.add("lockstep")
        return updated.with_changes(body=[*updated.body[: plan.start], *plan.statements, *updated.body[plan.end + 1 :]])

    def _is_tape(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Call) and self.full_name(node.func) == TAPE

    def _plan_of(self, node: cst.With, tapes: Sequence[cst.WithItem]) -> _Plan:
        if len(node.items) > 1:
            raise _NotPossible("several tapes record one block; write a loss function for each")
        asname = tapes[0].asname
        if asname is None or not isinstance(asname.name, cst.Name):
            raise _NotPossible("it has no name (as tape)")
        block: Any = self.parent_of(node)
        body: list[Any] = list(block.body)
        start = body.index(node)
        recorded = _statements(node)
        if any(self._is_tape(item.item) for inner in _all(recorded, cst.With) for item in inner.items):
            raise _NotPossible("another tape is inside it; use jax.grad for gradients of gradients")
        if any(_all(recorded, kind, within=(cst.FunctionDef, cst.Lambda)) for kind in _LEAVING):
            raise _NotPossible("its block has return, yield, await, break, continue, global or nonlocal")
        use = self._only_use(asname.name.value, node=node, body=body, start=start)
        return self._written(node, use, block=block, body=body, start=start, recorded=recorded)

    def _only_use(self, tape: str, *, node: cst.With, body: list[Any], start: int) -> tuple[int, cst.Call]:
        """Returns the call that takes the gradients, and the position of its statement in the block.

        Raises:
            _NotPossible: there is not exactly one such call, or the tape has other uses.
        """
        around = [node, *self.parents_of(node)]
        scope = next(one for one in around if isinstance(one, cst.FunctionDef | cst.Module))
        uses = [name for name in _all([scope], cst.Name) if name.value == tape and not self._is_bound_here(name)]
        tapes_of_name = [
            item
            for block in _all([scope], cst.With)
            for item in block.items
            if item.asname is not None and last_name(item.asname.name) == tape
        ]
        following = body[start + 1 :]
        if len(tapes_of_name) > 1:  # several tapes with the same name: each one's scope ends where the next begins
            ends = [
                n
                for n, one in enumerate(following)
                if isinstance(one, cst.With)
                and any(item.asname is not None and last_name(item.asname.name) == tape for item in one.items)
            ]
            following = following[: ends[0]] if ends else following
            inside = {id(name) for one in [node, *following] for name in _all([one], cst.Name)}
            uses = [name for name in uses if id(name) in inside]
        calls = [self._gradient_call(name) for name in uses]
        if not calls:
            raise _NotPossible("no gradient is taken from it")
        if any(call is None for call in calls):
            raise _NotPossible("it has other uses than gradient(), such as watch(); for other gradients, use jax.grad")
        if len(calls) > 1:
            raise _NotPossible("several gradients are taken from it; write a loss function for each")
        (call,) = calls
        assert call is not None, "looked at just now"
        for offset, statement in enumerate(following):
            if isinstance(statement, cst.SimpleStatementLine) and any(
                one is call for one in _all([statement], cst.Call)
            ):
                return start + 1 + offset, call
        raise _NotPossible("its gradient is not taken in the lines after its block")

    def _is_bound_here(self, name: cst.Name) -> bool:
        parent = self.parent_of(name)
        if isinstance(parent, cst.Attribute):
            return parent.attr is name
        if isinstance(parent, cst.Arg):
            return parent.keyword is name
        return isinstance(parent, cst.AsName)

    def _gradient_call(self, name: cst.Name) -> cst.Call | None:
        parent = self.parent_of(name)
        call = self.parent_of(parent)
        if isinstance(parent, cst.Attribute) and parent.attr.value == "gradient" and isinstance(call, cst.Call):
            return call
        if isinstance(parent, cst.Arg) and isinstance(call, cst.Call) and last_name(call.func) == "minimize":
            return call
        return None

    def _written(
        self, node: cst.With, use: tuple[int, cst.Call], *, block: Any, body: list[Any], start: int, recorded: list[Any]
    ) -> _Plan:
        end, call = use
        is_minimize = last_name(call.func) == "minimize"
        loss = argument(call, "loss" if is_minimize else "target", position=0)
        variables = argument(call, "var_list" if is_minimize else "sources", position=1)
        if loss is None or variables is None or len(call.args) > 2 + is_minimize:
            raise _NotPossible("its gradient has other arguments than a loss and variables")
        if isinstance(variables, cst.List | cst.Tuple) and not variables.elements:
            raise _NotPossible("its gradient has an empty list of variables")
        bound = names_bound(recorded)
        if not names_read([loss]) & set(bound):
            raise _NotPossible("its block does not compute the loss")
        between, moved = body[start + 1 : end], []
        looked_up = _looked_up(variables, between)
        if looked_up is None and names_bound(between) and names_read([variables]) & set(names_bound(between)):
            if names_read(between) & set(bound):
                raise _NotPossible("the variables depend on values that the block computes")
            between, moved = [], between
        aux = self._read_later(node, call, names=bound, block=block, body=body, start=start)
        value = loss.value if isinstance(loss, cst.Name) else "_"
        is_read = value in aux
        aux = [name for name in aux if name != value]
        taken = self._names_taken(node)
        function = _free_name(
            [
                f"{value}_fn" if value != "_" else "loss_fn",
                f"compute_{value.strip('_') or 'loss'}",
                "forward",
                "forward_pass",
                "compute_tape",
            ],
            taken,
        )
        gradients, last = self._gradients(body[end], call, is_minimize=is_minimize, taken=taken, variables=variables)
        code = cst.Module([])
        returned = ", ".join([code.code_for_node(loss), *([_joined(aux)] if aux else [])])
        result = f"({value if is_read else '_'}, {_joined(aux)})" if aux else value if is_read else "_"
        has_aux = ", has_aux=True" if aux else ""
        is_plain = isinstance(variables, cst.Name | cst.Attribute)
        wanted = code.code_for_node(variables.with_changes(lpar=[], rpar=[]) if is_plain else variables)
        wanted = wanted if looked_up is None else f"lambda: {code.code_for_node(looked_up)}"
        around = names_read_first(recorded) & self._bound_before(node)
        defaults = [name for name in bound if name in around]
        called = cst.parse_statement(f"{result}, {gradients} = lockstep.value_and_grad({function}, {wanted}{has_aux})")
        statement = cst.parse_statement(f"return {returned}")
        lines = _spaced([] if moved else node.leading_lines, is_first=start == 0 and not moved)
        definition = _definition(function, defaults=defaults, body=[*recorded, statement], leading_lines=lines)
        if moved:
            moved[0] = moved[0].with_changes(leading_lines=node.leading_lines)
        spaced = [called.with_changes(leading_lines=[cst.EmptyLine(indent=False)])]
        statements = [*moved, definition, *spaced, *between, *last]
        return _Plan(block=block, start=start, end=end, statements=statements)

    def _gradients(
        self, statement: Any, call: cst.Call, *, is_minimize: bool, taken: set[str], variables: Any
    ) -> tuple[str, list[Any]]:
        """Returns the name of the gradients, and the rest of the statement that took them."""
        if (
            not is_minimize
            and m.matches(statement, m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(target=m.Name())])]))
            and statement.body[0].value is call
        ):
            return statement.body[0].targets[0].target.value, []
        name = _free_name(["gradients", "grads", "tape_gradients"], taken)
        new: cst.BaseExpression = cst.Name(name)
        if is_minimize:
            assert isinstance(call.func, cst.Attribute), "a method of the optimizer"
            wanted = cst.Module([]).code_for_node(variables)
            optimizer = cst.Module([]).code_for_node(call.func.value)
            new = cst.parse_expression(f"{optimizer}.apply_gradients(zip({name}, {wanted}))")
        return name, [statement.deep_replace(call, new)]

    def _read_later(
        self, node: cst.With, call: cst.Call, *, names: list[str], block: Any, body: list[Any], start: int
    ) -> list[str]:
        """Returns the given names that code after the block reads, without the call that takes the gradients."""
        nothing = cst.Tuple([])
        inside: list[cst.CSTNode] = [
            one.deep_replace(call, nothing) if any(c is call for c in _all([one], cst.Call)) else one
            for one in body[start + 1 :]
        ]
        beyond = list(self._code_after(block))
        found: list[str] = []
        for name in names:
            if name in names_read_first_of(inside, name) or (
                name not in _surely_bound(inside) and any(name in names_read_first([one]) for one in beyond)
            ):
                found.append(name)
        return found

    def _code_after(self, block: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yields the code that may run after a block in its function: what follows it, and whole loops around it."""
        inner: cst.CSTNode = block
        for outer in self.parents_of(block):
            if isinstance(outer, _LOOPS):
                yield outer.test if isinstance(outer, cst.While) else outer.body
                yield outer.body
            body = getattr(outer, "body", None)
            if isinstance(outer, cst.IndentedBlock | cst.Module) and not isinstance(body, cst.CSTNode):
                statements = list(outer.body)
                place = next((n for n, one in enumerate(statements) if one is inner), None)
                if place is not None:
                    yield from statements[place + 1 :]
            if isinstance(outer, _SCOPES):
                return
            inner = outer

    def _bound_before(self, node: cst.CSTNode) -> set[str]:
        """Returns the names that its function has bound before a block begins."""
        found: set[str] = set()
        inner = node
        for outer in self.parents_of(node):
            if isinstance(outer, cst.IndentedBlock | cst.Module):
                statements: list[Any] = list(outer.body)
                place = next((n for n, one in enumerate(statements) if one is inner), 0)
                found.update(names_bound(statements[:place]))
            elif isinstance(outer, cst.For):
                found.update(names_bound([outer.with_changes(body=cst.IndentedBlock([]), orelse=None)]))
            elif isinstance(outer, cst.With):
                found.update(names_bound([outer.with_changes(body=cst.IndentedBlock([]))]))
            elif isinstance(outer, cst.FunctionDef):
                params = outer.params
                stars = [one for one in (params.star_arg, params.star_kwarg) if isinstance(one, cst.Param)]
                all_params = [*params.params, *params.kwonly_params, *params.posonly_params, *stars]
                return found | {parameter.name.value for parameter in all_params}
            inner = outer
        return found

    def _names_taken(self, node: cst.CSTNode) -> set[str]:
        *_, module = self.parents_of(node)
        attributes = {id(one.attr) for one in _all([module], cst.Attribute)}
        return {name.value for name in _all([module], cst.Name) if id(name) not in attributes}


def names_read_first_of(nodes: Sequence[cst.CSTNode], name: str) -> set[str]:
    """Returns a set with the name if the statements may read it before they have certainly bound it; else empty."""
    return names_read_first(nodes) & {name}


def _surely_bound(nodes: Sequence[cst.CSTNode]) -> set[str]:
    return {event.name for node in nodes for event in events(node) if event.binds and event.is_certain}


def _looked_up(variables: cst.BaseExpression, between: Sequence[Any]) -> cst.BaseExpression | None:
    """Returns the expression of a model's variables, if ``variables`` is one or is assigned from one; None otherwise.

    Like a tape, the rewritten code evaluates it only after the block has run.
    """
    if isinstance(variables, cst.Name):
        found = [
            one.value
            for line in between
            for one in (line.body if isinstance(line, cst.SimpleStatementLine) else ())
            if isinstance(one, cst.Assign) and [last_name(target.target) for target in one.targets] == [variables.value]
        ]
        bound = [event for line in between for event in events(line) if event.binds and event.name == variables.value]
        if len(found) != 1 or len(bound) != 1:
            return None
        variables = found[0]
    attributes = {attribute.attr.value for attribute in _all([variables], cst.Attribute)}
    return variables if attributes & set(_VARIABLES) else None


def _statements(node: cst.With) -> list[Any]:
    if isinstance(node.body, cst.IndentedBlock):
        return list(node.body.body)
    return [cst.SimpleStatementLine(cst.ensure_type(node.body, cst.SimpleStatementSuite).body)]


def _all(nodes: Sequence[cst.CSTNode], kind: type, *, within: tuple[type, ...] = ()) -> list[Any]:
    """Returns the nodes of a kind in trees, except those inside nodes of the types in ``within``."""
    found: list[Any] = []
    for node in nodes:
        if isinstance(node, kind):
            found.append(node)
        if not isinstance(node, within):
            found.extend(_all(node.children, kind, within=within))
    return found


def _definition(
    name: str, *, defaults: list[str], body: list[Any], leading_lines: list[cst.EmptyLine]
) -> cst.FunctionDef:
    """Returns a function that is called without arguments; its parameters bind current values as their defaults."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    parameters = [cst.Param(cst.Name(name), default=cst.Name(name), equal=equal) for name in defaults]
    return cst.FunctionDef(
        name=cst.Name(name),
        params=cst.Parameters(parameters),
        body=cst.IndentedBlock(body),
        leading_lines=leading_lines,
    )


def _spaced(lines: Sequence[cst.EmptyLine], *, is_first: bool) -> list[cst.EmptyLine]:
    """Returns the lines before a function, with a blank one among them unless the function is first in its block."""
    is_spaced = is_first or any(line.comment is None for line in lines)
    return list(lines) if is_spaced else [cst.EmptyLine(indent=False), *lines]


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _free_name(candidates: list[str], taken: set[str]) -> str:
    return next((name for name in candidates if name not in taken), f"{candidates[0]}_{len(taken)}")
