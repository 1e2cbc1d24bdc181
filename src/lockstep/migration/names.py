"""Rewrites TensorFlow's names and calls by the table; names that are not in the table stay, with a comment."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from typing import Any, Final, final

import libcst as cst
import libcst.matchers as m

from lockstep.migration.hosts import host_functions
from lockstep.migration.operations import OPERATIONS, NotPossible
from lockstep.migration.remarks import plain
from lockstep.migration.scripts import IMPORTS, AbstractPass, Options, argument, chain_of, last_name, without_last_comma
from lockstep.migration.symbols import PAGE, Row, Symbol, find_symbol
from lockstep.migration.tapes import TAPE
from lockstep.migration.templates import fill

_OWN: Final = ("tf", "tfds", "hub")
_TF_DATA: Final = ("tf.data", "tf.io", "tf.image", "tf.TensorSpec", "tf.numpy_function", "tf.py_function", "tfds")
_RANDOM: Final = (
    "tf.random.normal",
    "tf.random.uniform",
    "tf.random.truncated_normal",
    "tf.random.shuffle",
    "tf.nn.dropout",
    "tf.keras.backend.random_normal",
    "tf.keras.backend.random_uniform",
    "tf.keras.backend.truncated_normal",
)
_SUPPORTED_BY_KEEPING: Final = ("tf.io.gfile", "tf.io.TFRecordWriter", "tf.io.write_file")
_DEVICE: Final = re.compile(r"^/(?:job:\w+/)?(?:replica:\d+/)?(?:task:\d+/)?(?:device:)?(gpu|cpu|tpu):", re.IGNORECASE)
_WITH_DEVICES: Final = ("MirroredStrategy", "OneDeviceStrategy", "CentralStorageStrategy")


@functools.cache
def exists(path: str) -> bool:
    """Returns whether an installed package, such as Lockstep or Keras, has a name, given as a dotted path."""
    first, *rest = path.split(".")
    try:
        found: Any = importlib.import_module(first)
    except ImportError:
        return False
    for position, name in enumerate(rest):
        try:
            found = getattr(found, name)
        except AttributeError:
            try:
                found = importlib.import_module(".".join([first, *rest[: position + 1]]))
            except ImportError:
                return False
    return True


@final
class NamePass(AbstractPass):
    """Rewrites names, and the arguments of calls."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._hosts: frozenset[int] = frozenset()
        self._dropped: set[int] = set()
        self._variables = {"iterations", "learning_rate"}

    def visit_Module(self, node: cst.Module) -> None:
        """Finds the functions that run on the host, and the names of variables."""
        self._hosts = host_functions(node)
        for assign in m.findall(node, m.Assign(value=m.Call())):
            assert isinstance(assign, cst.Assign), "just found"
            if isinstance(assign.value, cst.Call) and self.full_name(assign.value.func) == "tf.Variable":
                self._variables.update(last_name(target.target) for target in assign.targets)

    def visit_Import(self, node: cst.Import) -> bool:
        """Leaves imports to another pass."""
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Leaves imports to another pass."""
        return False

    def visit_Call(self, node: cst.Call) -> None:
        """Marks the arguments that are dropped, so that names in them need no rewriting."""
        name = self.full_name(node.func)
        symbol = None if name is None else find_symbol(name)
        if symbol is None or name is None or self._stays(name, node):
            return
        for arg in node.args:
            if arg.keyword is not None and arg.keyword.value in symbol.row.drop:
                self._dropped.add(id(arg))

    def visit_Arg(self, node: cst.Arg) -> bool:
        """Skips an argument that is dropped."""
        return id(node) not in self._dropped

    # Names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Rewrites a name without dots, and remarks on an ambiguous one."""
        parent = self.parent_of(original_node)
        is_read = not isinstance(parent, cst.AssignTarget | cst.Param | cst.AsName)
        is_name = not (isinstance(parent, cst.Attribute) and parent.attr is original_node)
        if is_read and is_name and self.is_ambiguous(original_node):
            self.remark(
                f"{original_node.value} is a name of TensorFlow or Keras and also of something else: rename the latter",
                link=f"{PAGE}#the-table-of-symbols",
            )
        return self._renamed(original_node, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        """Rewrites a name with dots."""
        return self._renamed(original_node, updated_node)

    def _renamed(self, original: Any, updated: Any) -> Any:
        parent = self.parent_of(original)
        if isinstance(parent, cst.Attribute):  # only the whole dotted name is rewritten, not its beginning
            return updated
        if (
            isinstance(parent, cst.Arg | cst.Param)
            and getattr(parent, "keyword", getattr(parent, "name", None)) is original
        ):
            return updated
        name = self.full_name(original)
        if name is None or name.split(".")[0] not in _OWN or self._stays(name, original):
            return updated
        symbol = find_symbol(name)
        is_called = isinstance(parent, cst.Call) and parent.func is original
        if symbol is None:
            self._remark_on_unknown(name)
            return updated
        literal = symbol.row.literal_of(symbol.name)
        if literal is not None and name == symbol.name:
            return self.options.expression(literal)
        if is_called and (name in _SPECIAL or symbol.row.template_of(symbol.name) is not None):
            return updated  # `leave_Call` rewrites the whole call
        target = self._target_of(name, symbol, original)
        if target is None and name == TAPE and self._is_entered(parent):
            return updated  # `TapePass` has remarked on it
        if target is None:
            self._remark_on(name, symbol)
            return updated
        return self._spelled(target, original, updated)

    def _is_entered(self, call: cst.CSTNode) -> bool:
        return isinstance(self.parent_of(call), cst.WithItem)

    def _target_of(self, name: str, symbol: Symbol, node: cst.CSTNode) -> str | None:
        """Returns the new name; None if the table has none, or if the name with its last parts does not exist."""
        target = symbol.row.target_of(symbol.name)
        if target is None:
            return None
        target += name[len(symbol.name) :]
        if symbol.row.numpy and self._is_on_host(node):
            if isinstance(symbol.row.numpy, str):
                return symbol.row.numpy
            alone = f"numpy.{target.rpartition('.')[2]}"
            if exists(alone):
                return alone
        return target if exists(target) else None

    def _spelled(self, target: str, original: Any, updated: Any) -> Any:
        """Returns the expression for a new name, by the name that the script imports if that is a part of it."""
        chain = chain_of(original)
        assert chain is not None, "it has a full name"
        imported = imported_target(self.full_name(chain[0]) or "")
        if imported is not None and (target == imported or target.startswith(f"{imported}.")):
            rest = target[len(imported) :]
            is_as_it_was = rest == "".join(f".{name}" for name in chain[1])
            return updated if is_as_it_was else cst.parse_expression(chain[0].value + rest)
        expression = self.options.expression(_by_import(target))
        return expression.with_changes(lpar=updated.lpar, rpar=updated.rpar)

    # Calls

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Rewrites the arguments of a call, or the whole call."""
        name = self.full_name(original_node.func)
        if name is None or name.split(".")[0] not in _OWN or self._stays(name, original_node):
            return updated_node
        symbol = find_symbol(name)
        if symbol is None:
            return updated_node
        try:
            special = _SPECIAL.get(name)
            if special is not None:
                return special(self, original_node, updated_node)
            template = symbol.row.template_of(symbol.name)
            if template is not None and name == symbol.name:
                return self._filled(template, updated_node, symbol.row, original_node)
            if self._target_of(name, symbol, original_node) is None:
                return updated_node
            return self._with_arguments(updated_node, symbol, name, original_node)
        except NotPossible as reason:
            self.remark(f"{name}: {reason}", link=symbol.link)
            return original_node

    def leave_Decorator(self, original_node: cst.Decorator, updated_node: cst.Decorator) -> cst.Decorator:
        """Removes the parentheses of a decorator that has no arguments any more."""
        old, new = original_node.decorator, updated_node.decorator
        if isinstance(new, cst.Call) and not new.args and isinstance(old, cst.Call) and old.args:
            return updated_node.with_changes(decorator=new.func)
        return updated_node

    def _with_arguments(self, call: cst.Call, symbol: Symbol, name: str, original: cst.Call) -> cst.Call:
        row = symbol.row
        args = [arg for arg in call.args if arg.keyword is None or arg.keyword.value not in row.drop]
        if name == symbol.name and row.parameters:
            args = self._mapped(args, row, is_host=isinstance(row.numpy, bool | str) and self._is_on_host(original))
        if name.rpartition(".")[2] in _WITH_DEVICES:
            args = [arg.with_changes(value=_device_names(arg.value)) for arg in args]
        if name.startswith("tf.keras.optimizers."):
            args = [_as_learning_rate(arg) for arg in args]
            if any(arg.keyword is not None and arg.keyword.value == "decay" for arg in args):
                self.remark(
                    "Keras 3 has no decay=: use "
                    "learning_rate=keras.optimizers.schedules.InverseTimeDecay(rate, 1, decay)",
                    link=f"{PAGE}#keras-2-to-3",
                )
        is_traced = self._is_in_function(original) and not self._is_on_host(original)
        if name in _RANDOM and is_traced and argument(original, "seed") is None:
            self.remark(
                f"{name}: in a compiled step, pass a keras.random.SeedGenerator as seed=, created once in the scope",
                link=symbol.link,
            )
        if args == list(call.args):
            return call
        if len(args) != len(call.args):
            args = without_last_comma(args)
        if not args:  # they may have been on lines of their own
            call = call.with_changes(whitespace_before_args=cst.SimpleWhitespace(""))
        return call.with_changes(args=args)

    def _mapped(self, args: list[cst.Arg], row: Row, *, is_host: bool) -> list[cst.Arg]:
        """Returns arguments with their new names.

        Raises:
            NotPossible: an argument has no counterpart.
        """
        limit = len(row.parameters) if row.num_positional is None else row.num_positional
        names = list(row.parameters.values())
        mapped: list[cst.Arg] = []
        for position, arg in enumerate(args):
            if arg.star:
                mapped.append(arg)
            elif arg.keyword is None:
                if position >= limit:
                    raise NotPossible("it has too many positional arguments; pass them by name")
                keyword = (
                    None
                    if not row.order or row.order[position : position + 1] == (names[position],)
                    else names[position]
                )
                mapped.append(arg if keyword is None else _by_name(arg, keyword))
            else:
                keyword = row.parameters.get(arg.keyword.value)
                if keyword is None:
                    raise NotPossible(f"its argument {arg.keyword.value} has no counterpart")
                is_first = not mapped and is_host and row.numpy
                mapped.append(_by_position(arg) if is_first else _by_name(arg, keyword))
        return mapped

    def _filled(self, template: str, call: cst.Call, row: Row, original: cst.Call) -> cst.BaseExpression:
        """Returns the expression that replaces a call, from a template."""
        given: dict[str, cst.BaseExpression] = {}
        names = list(row.parameters.values())
        args = [arg for arg in call.args if arg.keyword is None or arg.keyword.value not in row.drop]
        for arg in self._mapped(args, row, is_host=False):
            if arg.star:
                raise NotPossible("write out its arguments instead of * or **")
            given[names[len(given)] if arg.keyword is None else arg.keyword.value] = arg.value
        for name, default in row.defaults.items():
            given.setdefault(name, self.options.expression(default))
        missing = [old for old, new in row.parameters.items() if new in row.needs and new not in given]
        if missing:
            raise NotPossible(f"pass {' and '.join(missing)}")
        if row.numpy is True and self._is_on_host(original):
            template = template.replace("keras.ops.", "np.")
        found = fill(template, given, self.options)
        if found is None:
            raise NotPossible("a required argument is missing")
        return found

    # What is left

    def _stays(self, name: str, node: cst.CSTNode) -> bool:
        """Whether a name is part of an input pipeline that must stay unchanged."""
        if not self.options.keep_tf_data:
            return False
        if _is_of(name, _TF_DATA) and not _is_of(name, _SUPPORTED_BY_KEEPING):
            return True
        for parent in self.parents_of(node):
            if id(parent) in self._hosts:
                return True
            if isinstance(parent, cst.Call):
                called = self.full_name(parent.func) or ""
                if _is_of(called, _TF_DATA) and not _is_of(called, _SUPPORTED_BY_KEEPING):
                    return True
        return False

    def _is_in_function(self, node: cst.CSTNode) -> bool:
        return any(isinstance(parent, cst.FunctionDef | cst.Lambda) for parent in self.parents_of(node))

    def _is_on_host(self, node: cst.CSTNode) -> bool:
        return any(id(parent) in self._hosts for parent in self.parents_of(node))

    def _remark_on(self, name: str, symbol: Symbol) -> None:
        row = symbol.row
        if row.rename is not None:
            what = f"{name} has no counterpart"
            note = plain(row.note) if name == symbol.name else ""
        else:
            what = name
            own = row.here[row.names.index(symbol.name)] if len(row.here) == len(row.names) else None
            here = [own] if own is not None else dict.fromkeys(row.here)
            note = "; ".join(
                [*([f"use {_listed(list(here))}"] if row.here else []), *([plain(row.note)] if row.note else [])]
            )
        self.remark(f"{what}: {note}" if note else what, link=symbol.link)

    def _remark_on_unknown(self, name: str) -> None:
        if name in ("tf", "tfds", "hub"):
            self.remark(
                f"the module {name} is used as a value: replace it by hand", link=f"{PAGE}#the-table-of-symbols"
            )
            return
        self.remark(f"{name} has no counterpart: use keras.ops, or NumPy on the host", link=f"{PAGE}#operations")

    def special_range(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Rewrites `tf.range`: to Python's `range` in a loop, which JAX unrolls, or to `arange`."""
        parent = self.parent_of(original)
        is_looped = isinstance(parent, cst.For | cst.CompFor) and parent.iter is original
        args = [arg for arg in updated.args if arg.keyword is None or arg.keyword.value not in ("name", "delta")]
        if len(args) != len(updated.args):
            raise NotPossible("pass start, limit and delta by position")
        name = "range" if is_looped else "np.arange" if self._is_on_host(original) else "keras.ops.arange"
        return updated.with_changes(func=self.options.expression(name))

    def special_print(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Rewrites `tf.print` to `jax.debug.print` with a format string."""
        del original
        if any(arg.keyword is not None or arg.star for arg in updated.args):
            raise NotPossible("jax.debug.print accepts only a format and values")
        words, values = [], []
        for arg in updated.args:
            text = arg.value.evaluated_value if isinstance(arg.value, cst.SimpleString) else None
            if isinstance(text, str):
                words.append(text.replace("{", "{{").replace("}", "}}"))
            else:
                words.append("{}")
                values.append(cst.Arg(self._value(arg.value)))
        text = cst.SimpleString(
            '"' + " ".join(words).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        )
        return cst.Call(self.options.expression("jax.debug.print"), [cst.Arg(text), *values])

    def _value(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Converts a variable to its value, because functions of JAX do not accept Keras variables."""
        if last_name(node) not in self._variables:
            return node
        return cst.Call(self.options.expression("keras.ops.convert_to_tensor"), [cst.Arg(node)])

    def special_operation(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Rewrites operations whose replacement depends on their arguments."""
        template, given = OPERATIONS[self.full_name(original.func) or ""](updated)
        if self._is_on_host(original):
            template = template.replace("keras.ops.", "np.")
        found = fill(template, given, self.options)
        assert found is not None, "every place has its expression"
        return found

    def special_python_function(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Rewrites `tf.numpy_function` to a call of the function, because elements are NumPy arrays."""
        del original
        function, inputs = argument(updated, "func", position=0), argument(updated, "inp", position=1)
        if function is None or not isinstance(inputs, cst.List | cst.Tuple):
            raise NotPossible("call the function directly: elements are NumPy arrays")
        return cst.Call(function, without_last_comma([cst.Arg(element.value) for element in inputs.elements]))

    def special_loading(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Rewrites `load_model`, if it does not load a folder, to Keras's own."""
        del original
        return updated.with_changes(func=self.options.expression("keras.saving.load_model"))

    def special_devices(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        """Rewrites `tf.config.list_physical_devices` to JAX's devices of this process, of one kind or all kinds."""
        del original
        kind = argument(updated, "device_type", position=0)
        if kind is None:
            return self.options.expression("jax.local_devices()")
        if not isinstance(kind, cst.SimpleString):
            raise NotPossible("use jax.local_devices()")
        word = str(kind.evaluated_value).lower()
        return self.options.expression(f'[device for device in jax.local_devices() if device.platform == "{word}"]')


_SPECIAL: Final[Mapping[str, Any]] = {
    "tf.range": NamePass.special_range,
    "tf.print": NamePass.special_print,
    **dict.fromkeys(OPERATIONS, NamePass.special_operation),
    "tf.numpy_function": NamePass.special_python_function,
    "tf.py_function": NamePass.special_python_function,
    "tf.keras.models.load_model": NamePass.special_loading,
    "tf.keras.saving.load_model": NamePass.special_loading,
    "tf.config.list_physical_devices": NamePass.special_devices,
    "tf.config.list_logical_devices": NamePass.special_devices,
    "tf.config.experimental.list_physical_devices": NamePass.special_devices,
    "tf.config.experimental.list_logical_devices": NamePass.special_devices,
}


def imported_target(name: str) -> str | None:
    """Returns the replacement of a module or name that a script imports; None if there is not exactly one."""
    symbol = find_symbol(name)
    target = None if symbol is None else symbol.row.target_of(symbol.name)
    if symbol is None or target is None:
        return None
    target += name[len(symbol.name) :]
    return target if exists(target) else None


def _by_import(target: str) -> str:
    for module, name in (("numpy.", "np."), ("etils.epath.", "epath.")):
        if target.startswith(module):
            target = name + target[len(module) :]
    assert target.split(".")[0] in IMPORTS, target
    return target


def _by_name(arg: cst.Arg, keyword: str) -> cst.Arg:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return arg.with_changes(keyword=cst.Name(keyword), equal=equal)


def _by_position(arg: cst.Arg) -> cst.Arg:
    return arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)


def _as_learning_rate(arg: cst.Arg) -> cst.Arg:
    is_old = arg.keyword is not None and arg.keyword.value == "lr"
    return arg.with_changes(keyword=cst.Name("learning_rate")) if is_old else arg


def _device_names(node: Any) -> Any:
    """Rewrites TensorFlow's names of devices to JAX's, such as ``/gpu:0`` to ``gpu:0``."""

    class _Devices(cst.CSTTransformer):
        def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> Any:
            text = original_node.evaluated_value
            if not isinstance(text, str) or not _DEVICE.match(text):
                return updated_node
            quote = original_node.quote
            return cst.SimpleString(quote + _DEVICE.sub(lambda found: f"{found[1].lower()}:", text) + quote)

        def leave_FormattedStringText(self, original_node: Any, updated_node: Any) -> Any:
            return updated_node.with_changes(
                value=_DEVICE.sub(lambda found: f"{found[1].lower()}:", original_node.value)
            )

    return node.visit(_Devices())


def _listed(names: list[str]) -> str:
    *before, last = names
    return f"{', '.join(before)} or {last}" if before else last


def _is_of(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)
