"""Runs ``train_step(self, data)``, the form of Keras 2, under Keras 3's ``fit``.

GANs and distillation are often written in this form: the step reads the model's variables, applies optimizers, updates
metrics and returns their results. (Keras 3's own form on JAX takes and returns the whole state.) Such a step is lifted
into one compiled program, as `lockstep.function` lifts a loop's step, with every variable that it uses as state. As
always in ``fit``, the result is what one device computes on the global batch. ``test_step(self, data)`` and
``predict_step(self, data)`` run in the same way.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

import inspect
import logging
from contextlib import nullcontext
from typing import Any, Final, final
from weakref import WeakKeyDictionary, ref

import jax

from lockstep.errors import InvalidInputError
from lockstep.strategies import updates
from lockstep.strategies.loops.lifting import Lifted, current_scope
from lockstep.strategies.mesh import AbstractLayout
from lockstep.upstream.keras_variables import set_stored_value

logger = logging.getLogger(__name__)

TRAIN: Final = "train"
TEST: Final = "test"
PREDICT: Final = "predict"

KINDS: Final = {
    "fit": TRAIN,
    "train_on_batch": TRAIN,
    "evaluate": TEST,
    "test_on_batch": TEST,
    "predict": PREDICT,
    "predict_on_batch": PREDICT,
}
"""The kind of step that each method of a model runs."""

_GROUPS: Final = {
    TRAIN: ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"),
    TEST: ("trainable_variables", "non_trainable_variables", "metrics_variables"),
    PREDICT: ("trainable_variables", "non_trainable_variables"),
}
"""The groups of variables in the state of Keras's loop, by kind of step."""


def is_stateful(model: Any, kind: str) -> bool:
    """Whether a model's step takes only the batch, and no state.

    Args:
        model: a Keras model.
        kind: "train", "test" or "predict".
    """
    parameters = inspect.signature(getattr(model, f"{kind}_step")).parameters.values()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters if one.kind in by_position and one.default is one.empty]
    has_more = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return len(required) == 1 and not has_more


def reject_under_parameter_servers(model: Any, kind: str, layout: AbstractLayout) -> None:
    """Rejects steps that take only the batch. For strategies whose ``fit`` does not run as one program.

    Raises:
        InvalidInputError: the model has such a step.
    """
    if is_stateful(model, kind):
        raise InvalidInputError(
            f"fit under {layout.name} cannot run a step that takes the batch alone",
            received=f"{type(model).__name__}.{kind}_step(self, data)",
            allowed=f"{kind}_step(self, state, data), as Keras 3 has it on JAX",
            action="or write the step as a closure: coordinator.schedule(step, args=(iterator,))",
        )


@final
class StatefulStep:
    """A step that takes only the batch, as a function that Keras's loop can call with the state.

    Args:
        model: the model. It is not kept alive.
        kind: "train", "test" or "predict".
        layout: the layout of the model's variables; None without a strategy.

    Attributes:
        is_built: whether the variables that the step creates exist.
    """

    def __init__(self, model: Any, kind: str, layout: AbstractLayout | None) -> None:
        self._model = ref(model)
        self._kind = kind
        self._layout = layout
        self._sets_aside = layout is not None and layout.updates_on_host and kind == TRAIN
        self._lifted = self._lift()
        self.is_built = False

    def build(self, data: Any) -> None:
        """Creates the variables that the step creates: those of layers, optimizers and metrics. Nothing is computed.

        Args:
            data: a batch.
        """
        self._call("discover", data)
        self._owner.built = self.is_built = True

    def __call__(self, state: Any, data: Any) -> Any:
        """Runs the step.

        Args:
            state: the values of the model's variables, in Keras's groups.
            data: a batch.

        Returns:
            The result of the step, and the new values.
        """
        model = self._owner
        for group, values in zip(_GROUPS[self._kind], state, strict=True):
            # The loop has removed the values from the variables. Not strict, because a layer that was built meanwhile
            # has added variables.
            for variable, value in zip(_variables(model, group), values, strict=False):
                set_stored_value(variable, value)
        is_compiled = model.jit_compile and not model.run_eagerly
        if is_compiled or (self._layout is not None and self._layout.updates_on_host):
            outputs = self._call("__call__", data)
        else:
            outputs = self._run(data)
        return outputs, tuple([variable.value for variable in group] for group in state_of(model, self._kind))

    @property
    def _owner(self) -> Any:
        model = self._model()
        assert model is not None, "called by its own loop"
        return model

    def _run(self, data: Any) -> Any:
        if isinstance(data, tuple):  # `train_on_batch` passes None for missing parts
            given = [position for position, part in enumerate(data) if part is not None]
            data = data[: given[-1] + 1] if given else data
        return getattr(self._owner, f"{self._kind}_step")(data)

    def _call(self, method: str, data: Any) -> Any:
        try:
            return getattr(self._lifted, method)(data)
        except updates.NotUpdatedError:
            if not self._sets_aside:
                raise
            # For example, a GAN's generator learns from the discriminator that was just updated.
            logger.info(
                "train_step of %s reads parameters that it has just updated; "
                "updating them on the compute devices instead",
                self._name,
            )
            self._sets_aside = False
            self._lifted = self._lift()
            return getattr(self._lifted, method)(data)

    @property
    def _name(self) -> str:
        return str(self._owner.name)

    def _lift(self) -> Lifted:
        layout, sets_aside = self._layout, self._sets_aside

        def step(data: Any) -> Any:
            scope = current_scope()
            assert scope is not None, "runs lifted"
            if layout is not None:
                scope.root.layouts.append(layout)
            with updates.deferred_updates(scope.root.deferred) if sets_aside else nullcontext():
                outputs = self._run(data)
            if layout is not None and self._kind == PREDICT:
                outputs = jax.lax.with_sharding_constraint(outputs, layout.replicated)
            return outputs

        return Lifted(step, name=f"{self._kind}_step of {self._name}")


_steps: WeakKeyDictionary[Any, dict[str, StatefulStep]] = WeakKeyDictionary()


def get_step(model: Any, kind: str, layout: AbstractLayout | None) -> StatefulStep:
    """Returns a model's step of a kind. It is the same object until `clear_steps` is called.

    Args:
        model: a model whose step `is_stateful`.
        kind: "train", "test" or "predict".
        layout: the layout of the model's variables; None without a strategy.
    """
    steps = _steps.setdefault(model, {})
    found = steps.get(kind)
    if found is None or found._layout is not layout:
        found = steps[kind] = StatefulStep(model, kind, layout)
    return found


def clear_steps(model: Any) -> None:
    """Drops a model's compiled steps, because the model was compiled again in Keras's sense."""
    _steps.pop(model, None)


def state_of(model: Any, kind: str) -> tuple[list[Any], ...]:
    """Returns the variables of a model whose values are the state of a step, in Keras's groups.

    Args:
        model: the model.
        kind: "train", "test" or "predict".
    """
    return tuple(_variables(model, group) for group in _GROUPS[kind])


def _variables(model: Any, group: str) -> list[Any]:
    if group == "optimizer_variables":
        return [] if model.optimizer is None else list(model.optimizer.variables)
    return list(getattr(model, group))
