"""Tells what each of an optimizer's variables is: a slot of one trained variable, or of all of them.

Keras returns an optimizer's variables as one list, in an order and under names that each optimizer chooses. So an
optimizer with the same settings is built over small stand-in variables with unique names. These appear in the names of
their slots.
"""

# Keras is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import keras
import numpy as np

from lockstep.parameter_server.optimizers import OptimizerSpec, build_optimizer
from lockstep.parameter_server.placement import VariableSpec
from lockstep.upstream.keras_variables import set_path

_TAG: Final = re.compile(r"standin(\d+)end_?(.*)$")


@final
@dataclass(frozen=True, kw_only=True)
class Slot:
    """One of an optimizer's variables.

    Attributes:
        variable: the index of the trained variable that it belongs to; None if it belongs to all of them, as the count
            of steps does.
        kind: Keras's name for it, such as "momentum". Empty if it has no name except that of the trained variable.
        number: its index among those with the same variable and kind.
    """

    variable: int | None
    kind: str
    number: int


def slots_of(spec: OptimizerSpec, variables: Sequence[VariableSpec]) -> tuple[Slot, ...]:
    """Returns the slot of each of an optimizer's variables, in the optimizer's order.

    Args:
        spec: the optimizer.
        variables: the variables that it trains, in its order. Only the number of dimensions of their shapes matters.
    """
    # With a name, because Keras would otherwise increment its counter of default names.
    config = {**spec.config, "config": {**spec.config["config"], "name": "standin"}}
    optimizer = build_optimizer(
        replace(spec, config=config, decays=(True,) * len(variables), constraints=(None,) * len(variables)),
        [_make_stand_in(number, variable) for number, variable in enumerate(variables)],
    )
    seen: Counter[tuple[int | None, str]] = Counter()
    found: list[Slot] = []
    for own in optimizer.variables:
        tag = _TAG.search(own.name)
        # A variable of all trained ones is known by its index: Keras numbers the names of some of these per process.
        key = (int(tag[1]), str(tag[2])) if tag is not None else (None, "")
        found.append(Slot(variable=key[0], kind=key[1], number=seen[key]))
        seen[key] += 1
    return tuple(found)


def _make_stand_in(number: int, variable: VariableSpec) -> Any:
    tag = f"standin{number}end"
    made = keras.Variable(np.zeros((1,) * len(variable.shape)), dtype=variable.dtype, name=tag)
    set_path(made, f"{variable.path}/{tag}")
    return made
