"""Which of an optimizer's variables is what: a slot of one of the variables that it trains, or all of theirs.

Keras gives an optimizer's variables as one list, in an order and under names that each optimizer chooses by itself. So
an optimizer of the same settings is built over small variables, each with a name that no other one has, which the names
of their slots then tell.
"""

# Keras is partly without types: what comes from it is unknown to the checker, in this file alone.
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
        variable: which of the trained variables it belongs to, by its index among them; None for one that belongs to
            all of them, as the count of steps does.
        kind: what Keras calls it: "momentum". Empty where it has no name but the variable's.
        number: its index among those of this variable and kind.
    """

    variable: int | None
    kind: str
    number: int


def slots_of(spec: OptimizerSpec, variables: Sequence[VariableSpec]) -> tuple[Slot, ...]:
    """Returns what each of an optimizer's variables is, in the order in which the optimizer has them.

    Args:
        spec: the optimizer.
        variables: what it trains, in its order. Of their shapes the number of dims counts alone.
    """
    config = {**spec.config, "config": {**spec.config["config"], "name": "standin"}}  # else Keras counts one up
    optimizer = build_optimizer(
        replace(spec, config=config, decays=(True,) * len(variables), constraints=(None,) * len(variables)),
        [_stand_in(number, variable) for number, variable in enumerate(variables)],
    )
    seen: Counter[tuple[int | None, str]] = Counter()
    found: list[Slot] = []
    for own in optimizer.variables:
        tag = _TAG.search(own.name)
        # What belongs to all is known by its index: Keras counts names of some of these up within a process.
        key = (int(tag[1]), str(tag[2])) if tag is not None else (None, "")
        found.append(Slot(variable=key[0], kind=key[1], number=seen[key]))
        seen[key] += 1
    return tuple(found)


def _stand_in(number: int, variable: VariableSpec) -> Any:
    tag = f"standin{number}end"
    made = keras.Variable(np.zeros((1,) * len(variable.shape)), dtype=variable.dtype, name=tag)
    set_path(made, f"{variable.path}/{tag}")
    return made
