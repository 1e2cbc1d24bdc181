"""Predicts the instances of a batch. An instance that does not fit the model does not affect the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lockstep.errors import InvalidInputError, ModelError
from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.batch.reading import ReadInstance
from lockstep.serving.instances import Arrays, read_instances

NOT_FINITE: Final = "the model's prediction is not a finite number"
_OUT_OF_MEMORY: Final = ("RESOURCE_EXHAUSTED", "out of memory", "OUT_OF_MEMORY")


@final
@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The prediction for an instance, or the reason why there is none.

    Attributes:
        read: the instance.
        outputs: the values by output name, without the batch dimension; None if there is no prediction.
        problem: why there is none.
    """

    read: ReadInstance
    outputs: Arrays | None = None
    problem: str = ""


def batches(instances: Iterable[ReadInstance], *, size: int) -> Iterator[list[ReadInstance]]:
    """Yields batches in which `size` instances can be predicted; the last one may have fewer.

    Instances that could not be read are in the batches too, in their place.
    """
    batch: list[ReadInstance] = []
    num_readable = 0
    for read in instances:
        batch.append(read)
        num_readable += read.instance is not None
        if num_readable == size:
            yield batch
            batch, num_readable = [], 0
    if batch:
        yield batch


def read_arrays(
    batch: Sequence[ReadInstance], *, model: AbstractModel
) -> tuple[list[tuple[list[int], Arrays]], dict[int, str]]:
    """Converts instances to arrays.

    Args:
        batch: the instances.
        model: the model.

    Returns:
        Arrays of instances of the same shapes, each with the instances' positions in the batch; and the reasons why the
        others cannot be predicted, by their positions.
    """
    problems = {at: read.problem for at, read in enumerate(batch) if read.instance is None}
    values = {at: read.instance.value for at, read in enumerate(batch) if read.instance is not None}
    if not values:
        return [], problems
    try:
        return [(list(values), read_instances(list(values.values()), specs=model.inputs))], problems
    except InvalidInputError:  # one of them does not fit, or they have different shapes
        groups: dict[tuple[tuple[int, ...], ...], list[tuple[int, Arrays]]] = {}
        for at, value in values.items():
            try:
                arrays = read_instances([value], specs=model.inputs)
            except InvalidInputError as error:
                problems[at] = str(error).replace("instances[0]", "the instance")
            else:
                groups.setdefault(tuple(array.shape for array in arrays.values()), []).append((at, arrays))
        return [_joined(members) for members in groups.values()], problems


def _joined(members: Sequence[tuple[int, Arrays]]) -> tuple[list[int], Arrays]:
    names = members[0][1]
    return [at for at, _ in members], {name: np.concatenate([part[name] for _, part in members]) for name in names}


def predict(
    batch: Sequence[ReadInstance],
    *,
    model: AbstractModel,
    groups: Sequence[tuple[list[int], Arrays]],
    problems: dict[int, str],
) -> list[Predicted]:
    """Predicts a batch.

    Args:
        batch: the instances.
        model: the model.
        groups: the arrays, as `read_arrays` returns them.
        problems: the reasons, as `read_arrays` returns them.

    Returns:
        A prediction, or a reason, for each instance, in order.

    Raises:
        ModelError: the machine does not have the memory for the batch.
    """
    problems = dict(problems)
    found: dict[int, Arrays] = {}
    for positions, arrays in groups:
        for rows, outputs in _run(arrays, len(positions), model=model):
            if isinstance(outputs, str):
                problems.update({positions[row]: outputs for row in rows})
                continue
            finite = _are_finite(outputs, num_rows=len(rows))
            for index, row in enumerate(rows):
                if finite[index]:
                    found[positions[row]] = {name: values[index] for name, values in outputs.items()}
                else:
                    problems[positions[row]] = NOT_FINITE
    return [Predicted(read=read, outputs=found.get(at), problem=problems.get(at, "")) for at, read in enumerate(batch)]


def _run(arrays: Arrays, num_rows: int, *, model: AbstractModel) -> Iterator[tuple[Sequence[int], Arrays | str]]:
    """Yields rows with their outputs, or with the reason why the model could not be run on them."""
    try:
        yield range(num_rows), model.predict(arrays)
        return
    except ModelError as error:
        if any(text in str(error) for text in _OUT_OF_MEMORY):
            raise ModelError(
                str(error), action="choose a smaller batchSize, or a larger lockstep.machineType"
            ) from error
        if num_rows == 1:
            yield [0], str(error)
            return
    for row in range(num_rows):  # whether one of them is to blame shows when each is alone
        only = {name: array[row : row + 1] for name, array in arrays.items()}
        for _, outputs in _run(only, 1, model=model):
            yield [row], outputs


def _are_finite(outputs: Arrays, *, num_rows: int) -> np.ndarray:
    finite = np.ones(num_rows, bool)
    for values in outputs.values():
        finite &= np.isfinite(values).reshape(num_rows, -1).all(axis=1)
    return finite
