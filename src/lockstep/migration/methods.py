"""Rewrites methods and arguments that have another name in Keras 3 or in Lockstep's strategies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, final

import libcst as cst
import libcst.matchers as m

from lockstep.migration.scripts import AbstractPass, Options, argument, last_name, string_of, without_last_comma
from lockstep.migration.symbols import PAGE

LINK: Final = f"{PAGE}#keras-2-to-3"
SAVING: Final = f"{PAGE}#saving-and-loading"

_RENAMED: Final[Mapping[str, str]] = {
    "reset_states": "reset_state",
    "predict_proba": "predict",
    "fit_generator": "fit",
    "evaluate_generator": "evaluate",
    "predict_generator": "predict",
    "experimental_run_v2": "run",
    "experimental_distribute_datasets_from_function": "distribute_datasets_from_function",
    "unwrap": "experimental_local_results",
}
_GONE: Final[Mapping[str, str]] = {
    "add_metric": "create the metric in __init__ of a layer or model, and update it in call or train_step",
    "set_shape": "arrays have fixed shapes; remove the call",
}
_DROPPED: Final[Mapping[str, tuple[str, ...]]] = {
    "fit": ("workers", "use_multiprocessing", "max_queue_size"),
    "evaluate": ("workers", "use_multiprocessing", "max_queue_size"),
    "predict": ("workers", "use_multiprocessing", "max_queue_size"),
    "compile": ("experimental_run_tf_function",),
}
_STATUS: Final = ("expect_partial", "assert_consumed", "assert_existing_objects_matched")
_WEIGHT: Final = ("name", "shape", "dtype", "initializer", "regularizer", "trainable")
"""The parameters of Keras 2's `add_weight`, in order; in Keras 3, the first parameter is the shape."""
_WEIGHTS: Final = ".weights.h5"
_MODEL: Final = ".keras"
_MODEL_NAME: Final = re.compile(r"(?:^|_)model(?:_?\d+)?$", re.IGNORECASE)
_CHECKPOINT: Final = "tf.keras.callbacks.ModelCheckpoint"
_LOADING: Final = ("tf.keras.models.load_model", "tf.keras.saving.load_model")
_OLD_ENDINGS: Final = (_WEIGHTS, ".h5", ".hdf5", ".ckpt", ".tf", _MODEL)
_MAKING_MODELS: Final = ("tf.keras.Model", "tf.keras.Sequential", "tf.keras.models.", "tf.keras.applications.")


@final
class MethodPass(AbstractPass):
    """Rewrites methods of models, metrics, optimizers, tensors and strategies."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._models: set[str] = set()
        self._values: dict[str, list[cst.BaseExpression]] = {}
        self._endings: dict[int, str] = {}
        self._has_tensors_of_others = False
        self._needs_chief = False

    def visit_Module(self, node: cst.Module) -> None:
        """Finds the names of models, and the file names that need another ending."""
        for assign in m.findall(node, m.Assign()):
            assert isinstance(assign, cst.Assign), "just found"
            for target in assign.targets:
                name = last_name(target.target)
                self._values.setdefault(name, []).append(assign.value)
                if isinstance(assign.value, cst.Call) and self._makes_model(assign.value):
                    self._models.add(name)
        for found in m.findall(node, m.Import() | m.ImportFrom()):
            self._has_tensors_of_others |= "torch" in cst.Module([]).code_for_node(found)  # type: ignore[arg-type]
        self._needs_chief = "MultiWorkerMirroredStrategy" in node.code and "strategy.is_chief" not in node.code
        for call in m.findall(node, m.Call()):
            assert isinstance(call, cst.Call), "just found"
            self._mark_endings(call)

    def visit_Import(self, node: cst.Import) -> bool:
        """Leaves imports to another pass."""
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Leaves imports to another pass."""
        return False

    def _makes_model(self, call: cst.Call) -> bool:
        name = self.full_name(call.func) or ""
        return any(name == one or (one.endswith(".") and name.startswith(one)) for one in _MAKING_MODELS)

    def _is_model(self, node: cst.BaseExpression) -> bool:
        name = last_name(node)
        return name in self._models or _MODEL_NAME.search(name) is not None

    # Names of files

    def _mark_endings(self, call: cst.Call) -> None:
        """Marks the file names in a call that need another ending in Keras 3."""
        if self.full_name(call.func) == _CHECKPOINT:
            weights = argument(call, "save_weights_only")
            ending = _WEIGHTS if isinstance(weights, cst.Name) and weights.value == "True" else _MODEL
            self._mark(argument(call, "filepath", position=0), ending)
        elif last_name(call.func) in ("save_weights", "load_weights") and isinstance(call.func, cst.Attribute):
            self._mark(argument(call, "filepath", position=0), _WEIGHTS)

    def _mark(self, path: Any, ending: str) -> None:
        match path:
            case cst.SimpleString() | cst.FormattedString():
                self._endings[id(path)] = ending
            case cst.Call(func=func, args=[*_, last]) if last_name(func) == "join":
                self._mark(last.value, ending)
            case cst.BinaryOperation(operator=cst.Add(), right=right):
                self._mark(right, ending)
            case cst.Name(value=name) if len(self._values.get(name, [])) == 1:
                self._mark(self._values[name][0], ending)
            case _:
                return

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> Any:
        """Changes the ending of a marked file name."""
        ending = self._endings.get(id(original_node))
        if ending is None:
            return updated_node
        quote = original_node.quote
        body = original_node.raw_value
        return updated_node.with_changes(value=f"{original_node.prefix}{quote}{_ended(body, ending)}{quote}")

    def leave_FormattedString(self, original_node: cst.FormattedString, updated_node: cst.FormattedString) -> Any:
        """Changes the ending of a marked file name."""
        ending = self._endings.get(id(original_node))
        if ending is None:
            return updated_node
        *parts, last = updated_node.parts
        if isinstance(last, cst.FormattedStringText):
            return updated_node.with_changes(parts=[*parts, last.with_changes(value=_ended(last.value, ending))])
        return updated_node.with_changes(parts=[*parts, last, cst.FormattedStringText(ending)])

    # Attributes and calls

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        """Changes an assignment of the variable KERAS_BACKEND to "jax"."""
        is_choice = m.matches(
            original_node,
            m.Assign(
                targets=[
                    m.AssignTarget(
                        target=m.Subscript(slice=[m.SubscriptElement(slice=m.Index(value=m.SimpleString()))])
                    )
                ],
                value=m.SimpleString(),
            ),
        )
        if not is_choice or '"KERAS_BACKEND"' not in _code(original_node).replace("'", '"'):
            return updated_node
        return (
            updated_node
            if string_of(original_node.value) == "jax"
            else updated_node.with_changes(value=cst.SimpleString('"jax"'))
        )

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        """Rewrites an optimizer's `lr`, and remarks on `strategy.extended`."""
        owner = last_name(original_node.value).lower()
        if original_node.attr.value == "lr" and (owner.endswith("optimizer") or owner in ("opt", "optim")):
            return updated_node.with_changes(attr=cst.Name("learning_rate"))
        if original_node.attr.value == "extended" and "strategy" in owner:
            self.remark("strategy.extended has no counterpart", link=f"{PAGE}#methods-and-attributes-of-a-strategy")
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        """Rewrites the call of a method."""
        func = updated_node.func
        if self.full_name(original_node.func) in _LOADING:
            return self._loaded(original_node, updated_node)
        if self.full_name(original_node.func) == _CHECKPOINT and argument(original_node, "period") is not None:
            self.remark("Keras 3 has no period=: use save_freq=, a number of batches or 'epoch'", link=LINK)
        if self.full_name(original_node.func) == _CHECKPOINT and self._needs_chief:
            self.remark(
                "every process would write this file: use the callback only if strategy.is_chief",
                link="docs/strategies/multi_worker.md#saving",
            )
        if not isinstance(func, cst.Attribute) or not isinstance(original_node.func, cst.Attribute):
            return updated_node
        if self.full_name(original_node.func) is not None:
            return updated_node  # a function of a package, not a method
        name = func.attr.value
        if name == "save" and self._is_model(original_node.func.value):
            return self._saved(func, updated_node)
        if name in ("add_weight", "add_variable"):
            return _made_weight(func, updated_node)
        if name in _STATUS and isinstance(func.value, cst.Call) and last_name(func.value.func) == "load_weights":
            return func.value  # Keras 3's load_weights returns None
        if name == "get_shape" and not updated_node.args:
            return func.with_changes(attr=cst.Name("shape"), lpar=updated_node.lpar, rpar=updated_node.rpar)
        if name == "as_list" and last_name(func.value) == "shape":
            return cst.Call(cst.Name("list"), [cst.Arg(func.value)])
        if name in _GONE:
            self.remark(f"{name}() no longer exists: {_GONE[name]}", link=LINK)
            return updated_node
        if name == "numpy" and not updated_node.args:
            return self._as_array(func, updated_node, parent=self.parent_of(original_node))
        if name == "predict_classes":
            predicted = updated_node.with_changes(func=func.with_changes(attr=cst.Name("predict")))
            return cst.Call(self.options.expression("np.argmax"), [cst.Arg(predicted), *_named(axis="-1")])
        if name == "compiled_loss":
            return self._computed_loss(func, updated_node)
        if name == "reset_states" and self._is_model(original_node.func.value):
            self.remark("Keras 3 models have no reset_states(): call reset_state() on the recurrent layers", link=LINK)
            return updated_node
        if name == "unwrap" and "strategy" not in last_name(original_node.func.value).lower():
            return updated_node
        if name in ("load_weights", "save_weights"):
            return self._weights(original_node, updated_node)
        new = _RENAMED.get(name, name)
        args = [
            arg for arg in updated_node.args if arg.keyword is None or arg.keyword.value not in _DROPPED.get(new, ())
        ]
        if name == "run" and "strategy" in last_name(original_node.func.value).lower():
            args = [arg for arg in args if arg.keyword is None or arg.keyword.value != "options"]
        if name == "compile":
            args = [_renamed(arg, "experimental_steps_per_execution", "steps_per_execution") for arg in args]
        if new != name:
            updated_node = updated_node.with_changes(func=func.with_changes(attr=cst.Name(new)))
        if len(args) != len(updated_node.args):
            args = without_last_comma(args)
        return updated_node.with_changes(args=args)

    def _as_array(self, func: cst.Attribute, call: cst.Call, *, parent: cst.CSTNode) -> cst.BaseExpression:
        if self._has_tensors_of_others:
            self.remark("Keras 3 tensors have no .numpy() on JAX: use np.asarray(...)", link=LINK)
            return call
        if isinstance(parent, cst.Attribute) and parent.attr.value == "decode":
            return func.value  # a text of a data set, which is bytes already
        return cst.Call(self.options.expression("np.asarray"), [cst.Arg(func.value)], lpar=call.lpar, rpar=call.rpar)

    def _computed_loss(self, func: cst.Attribute, call: cst.Call) -> cst.Call:
        target, predicted = argument(call, "y_true", position=0), argument(call, "y_pred", position=1)
        if target is None or predicted is None:
            self.remark("Keras 3 has no compiled_loss: use self.compute_loss(y=..., y_pred=...)", link=LINK)
            return call
        weights = argument(call, "sample_weight", position=2)
        args = _named(y=target, y_pred=predicted, **({} if weights is None else {"sample_weight": weights}))
        return cst.Call(func.with_changes(attr=cst.Name("compute_loss")), args)

    def _saved(self, func: cst.Attribute, call: cst.Call) -> cst.BaseExpression:
        path = argument(call, "filepath", position=0)
        others = {arg.keyword.value for arg in call.args if arg.keyword is not None} - {
            "filepath",
            "save_format",
            "overwrite",
        }
        if path is None or others:
            if others:
                self.remark(f"lockstep.training.save_model does not accept {', '.join(sorted(others))}", link=SAVING)
            return call
        if (string_of(path) or "").endswith((".h5", ".hdf5")):
            return call  # Keras 3 supports this, too
        return cst.Call(
            self.options.expression("lockstep.training.save_model"),
            [cst.Arg(func.value, comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))), cst.Arg(path)],
        )

    def _loaded(self, original: cst.Call, call: cst.Call) -> cst.BaseExpression:
        path = argument(call, "filepath", position=0)
        text = string_of(path) or ""
        if text.endswith((".h5", ".hdf5")) or (len(call.args) > 1 and text.endswith(_MODEL)):
            return call
        if path is None or len(call.args) > 1:
            self.remark(
                "to load a folder, use lockstep.training.load_model(url); custom classes must be registered",
                link=SAVING,
            )
            return call
        del original
        return cst.Call(self.options.expression("lockstep.training.load_model"), [cst.Arg(path)])

    def _weights(self, original: cst.Call, call: cst.Call) -> cst.BaseExpression:
        path = argument(original, "filepath", position=0)
        if isinstance(path, cst.Call) and self.full_name(path.func) == "tf.train.latest_checkpoint" and path.args:
            folder = cst.Module([]).code_for_node(path.args[0].value)
            latest = f'max(glob.glob(os.path.join({folder}, "*{_WEIGHTS}")), key=os.path.getmtime)'
            return call.with_changes(args=[cst.Arg(self.options.expression(latest))])
        if path is not None and _WEIGHTS not in _code(path) and not self._endings_known(path):
            self.remark(f"the name of a weights file must end in {_WEIGHTS}", link=SAVING)
        return call

    def _endings_known(self, path: Any) -> bool:
        match path:
            case cst.SimpleString() | cst.FormattedString():
                return True
            case cst.Call(func=func, args=[*_, last]) if last_name(func) == "join":
                return self._endings_known(last.value)
            case cst.BinaryOperation(operator=cst.Add(), right=right):
                return self._endings_known(right)
            case cst.Name(value=name) if len(self._values.get(name, [])) == 1:
                return self._endings_known(self._values[name][0])
            case _:
                return False


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _ended(path: str, ending: str) -> str:
    path = path.rstrip("/")
    if path.endswith(ending):
        return path
    old = next((one for one in _OLD_ENDINGS if path.endswith(one)), "")
    return path[: len(path) - len(old)] + ending


def _named(**values: Any) -> list[cst.Arg]:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return [
        cst.Arg(cst.parse_expression(value) if isinstance(value, str) else value, keyword=cst.Name(name), equal=equal)
        for name, value in values.items()
    ]


def _made_weight(func: cst.Attribute, call: cst.Call) -> cst.Call:
    """Returns a call of `add_weight`, with keyword arguments if its first positional one is a name, as in Keras 2."""
    args = list(call.args)
    positional = [arg for arg in args if arg.keyword is None and not arg.star]
    if positional and string_of(positional[0].value) is not None and len(positional) <= len(_WEIGHT):
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        for number, arg in enumerate(positional):
            args[number] = arg.with_changes(keyword=cst.Name(_WEIGHT[number]), equal=equal)
    return call.with_changes(func=func.with_changes(attr=cst.Name("add_weight")), args=args)


def _renamed(arg: cst.Arg, old: str, new: str) -> cst.Arg:
    is_it = arg.keyword is not None and arg.keyword.value == old
    return arg.with_changes(keyword=cst.Name(new)) if is_it else arg
