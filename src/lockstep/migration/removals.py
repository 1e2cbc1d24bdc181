"""Removes statements that Lockstep does not need: set-up of devices, memory growth, connections to TPUs."""

from __future__ import annotations

from typing import Any, Final, final

import libcst as cst
from libcst.metadata import Assignment
from libcst.metadata import ScopeProvider as Scopes

from lockstep.migration.scripts import AbstractPass, Options, argument, last_name
from lockstep.migration.symbols import find_symbol

_LOGICAL: Final = (
    "tf.config.set_logical_device_configuration",
    "tf.config.experimental.set_virtual_device_configuration",
)
_SERVER: Final = "tf.distribute.Server"
_UNUSED: Final = ("list_physical_devices", "list_logical_devices", "TPUClusterResolver")
"""The names whose calls are removed with their assignments if nothing refers to the result any more."""


@final
class RemovalPass(AbstractPass):
    """Removes statements that only call names which the table says to remove, and blocks that become empty."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.has_removed = False

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: Any) -> Any:
        """Removes a statement that is only such a call, or replaces it by `simulate_devices`."""
        if len(original_node.body) != 1 or not isinstance(original_node.body[0], cst.Expr):
            return updated_node
        call = original_node.body[0].value
        while (
            isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and isinstance(call.func.value, cst.Call)
        ):
            call = call.func.value  # for a().b(), the name of a decides
        name = self.full_name(call.func) if isinstance(call, cst.Call) else None
        if name is None or not isinstance(call, cst.Call):
            return updated_node
        if name in _LOGICAL:
            count = _count_of(argument(call, "logical_devices", position=1))
            if count is not None:
                self.has_removed = True
                self.options.needed.add("lockstep")
                code = f"lockstep.strategies.simulate_devices({cst.Module([]).code_for_node(count)})"
                expression = updated_node.body[0].with_changes(value=self.options.expression(code))
                return updated_node.with_changes(body=[expression])
        symbol = find_symbol(name)
        if symbol is not None and symbol.row.remove:
            self.has_removed = True
            return cst.RemoveFromParent()
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Removes the arguments of `TPUStrategy`, which finds its TPUs itself."""
        if (self.full_name(original_node.func) or "").endswith("TPUStrategy") and original_node.args:
            return updated_node.with_changes(args=[])
        return updated_node

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> Any:
        """Removes a loop that has become empty."""
        return _kept(original_node, updated_node)

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> Any:
        """Removes a block that has become empty."""
        return _kept(original_node, updated_node)

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> Any:
        """Removes a `try` statement whose block has become empty."""
        return _kept(original_node, updated_node)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        """Removes an `if` that has become empty, or that starts a server: in Lockstep, all roles run the script."""
        if original_node.orelse is None and self._starts_server(original_node.body):
            self.has_removed = True
            return cst.RemoveFromParent()
        return updated_node if updated_node.orelse is not None else _kept(original_node, updated_node)

    def _starts_server(self, body: cst.BaseSuite) -> bool:
        """Whether a block only starts a server of `tf.distribute` and waits for it."""
        servers: set[str] = set()
        for line in body.body:
            for one in line.body if isinstance(line, cst.SimpleStatementLine) else [line]:
                match one:
                    case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=cst.Call(func=func)):
                        if self.full_name(func) != _SERVER:
                            return False
                        servers.add(name)
                    case cst.Expr(value=cst.Call(func=cst.Attribute(value=of, attr=cst.Name(value="join")))):
                        is_server = isinstance(of, cst.Call) and self.full_name(of.func) == _SERVER
                        if not is_server and (not isinstance(of, cst.Name) or of.value not in servers):
                            return False
                    case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript(value=of))]):
                        if last_name(of) != "environ":
                            return False
                    case _:
                        return False
        return bool(servers) or "Server" in cst.Module([]).code_for_node(body)


@final
class UnusedPass(AbstractPass):
    """Removes assignments of devices and TPU resolvers to names that are not used any more."""

    def leave_SimpleStatementLine(self, original_node: Any, updated_node: Any) -> Any:
        """Removes such an assignment."""
        if len(original_node.body) != 1 or not isinstance(original_node.body[0], cst.Assign):
            return updated_node
        assign = original_node.body[0]
        target = assign.targets[0].target
        if len(assign.targets) != 1 or not isinstance(target, cst.Name) or not isinstance(assign.value, cst.Call):
            return updated_node
        name = self.full_name(assign.value.func) or ""
        if not any(part in _UNUSED for part in name.split(".")):
            return updated_node
        scope = self.get_metadata(Scopes, target, None)
        found: Any = [] if scope is None else scope[target.value]
        if any(isinstance(one, Assignment) and one.references for one in found):
            return updated_node
        return cst.RemoveFromParent()


def _kept(original: Any, updated: Any) -> Any:
    was_empty = not isinstance(original.body, cst.IndentedBlock) or not original.body.body
    return updated if was_empty or updated.body.body else cst.RemoveFromParent()


def _count_of(devices: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """Returns the expression for the number of devices that a list describes; None if it is unknown."""
    match devices:
        case cst.List(elements=elements):
            return cst.Integer(str(len(elements)))
        case cst.BinaryOperation(left=cst.List(elements=[_]), operator=cst.Multiply(), right=count):
            return count
        case cst.ListComp(for_in=cst.CompFor(iter=cst.Call(func=cst.Name(value="range"), args=[arg]))):
            return arg.value
        case _:
            return None
