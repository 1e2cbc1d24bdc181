"""Sums the gradients of a training step over the devices in a few buffers, instead of one by one.

``fit`` is one program over the whole batch. XLA divides it over the devices, and sums each gradient where it is
computed. On CPUs, each sum is an exchange of its own, and an exchange takes milliseconds whatever its size is: seven
small sums of four processes took 36 ms, and 6 ms as one.

`in_buckets` changes a traced step. It looks for the operations that add up a gradient over the batch: products,
convolutions and sums. They are computed for each device's rows instead, and their results are added up together
(`lockstep.strategies.loops.collectives`). Nothing else changes, so statistics over the batch and random numbers stay
those of the whole batch. A large gradient stays as it is, and so does one that is added up in another way, such as an
embedding's.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, final

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.api_util import debug_info
from jax.extend import core
from jax.sharding import PartitionSpec

from lockstep.strategies.loops.collectives import CommunicationOptions, all_sum
from lockstep.strategies.mesh import BATCH_AXIS, AbstractLayout, ReplicatedLayout

PACKED_BYTES: Final = 2**20
"""The maximum size of a gradient that is sent with others. To pack a larger one takes longer than an exchange costs."""

_MARK: Final = "lockstep_gradient"
_PASSED: Final = frozenset({
    "add_any", "concatenate", "convert_element_type", "copy", "mul", "name", "neg", "reduce_sum", "reshape", "slice",
    "split", "squeeze", "transpose",
})  # fmt: skip
"""The operations between a sum over the batch and the gradient that the optimizer is given."""

_marking: ContextVar[bool] = ContextVar("lockstep_marks_gradients", default=False)


def mark_gradients(gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients that an optimizer is given, marked for `in_buckets` if it traces the step."""
    if not _marking.get():
        return list(gradients)
    return [None if gradient is None else checkpoint_name(gradient, _MARK) for gradient in gradients]


def sums_in_buckets(layout: AbstractLayout) -> bool:
    """Whether steps under a layout are faster with `in_buckets`: CPUs of several processes have all parameters.

    Devices of one process exchange values in microseconds, and NCCL sends several arrays at once.
    """
    return isinstance(layout, ReplicatedLayout) and layout.num_processes > 1 and layout.devices[0].platform == "cpu"


def in_buckets(step: Callable[..., Any], layout: AbstractLayout) -> Callable[..., Any]:
    """Returns a training step that sums gradients in buckets. It has to be called while a program is traced.

    Args:
        step: a function of state and batch, and of further arguments, on global arrays.
        layout: a layout that keeps all parameters on each device.
    """

    @functools.wraps(step)
    def wrapper(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        num_rows = next((leaf.shape[0] for leaf in jax.tree.leaves(args[1]) if leaf.ndim), 1)
        num_groups = math.gcd(num_rows, layout.num_replicas)

        def step_of_leaves(*values: Any) -> Any:
            return step(*jax.tree.unflatten(structure, values))

        with _marked():
            program, results = jax.make_jaxpr(step_of_leaves, return_shape=True)(*leaves)
        sums = () if program.effects or num_groups == 1 else find_sums(program.jaxpr, num_rows)
        add_up = functools.partial(_add_up, mesh=layout.data_mesh(num_groups))
        return jax.tree.unflatten(jax.tree.structure(results), _evaluate(program, sums, leaves, add_up))

    return wrapper


@contextmanager
def _marked() -> Generator[None]:
    token = _marking.set(True)
    try:
        yield
    finally:
        _marking.reset(token)


@final
@dataclass(frozen=True, kw_only=True)
class BatchSum:
    """An operation of a traced program that adds up over the batch, with the transposes of its result.

    A transpose belongs to its product, because XLA's products have no operands to exchange without it
    (`lockstep.strategies.xla_cpu.lowering_transposed_products`).

    Attributes:
        operations: the operation, and the transposes that follow it. Each has one result.
        dims: for each operand of the first operation, the dim over which it adds up.
    """

    operations: tuple[Any, ...]
    dims: tuple[int, ...]

    @property
    def operands(self) -> list[Any]:
        """The program's values that are added up."""
        return list(self.operations[0].invars)

    @property
    def result(self) -> Any:
        """The program's value that the rest of the program uses."""
        return self.operations[-1].outvars[0]

    def run(self, *operands: Any) -> Any:
        """Returns the result for some rows of the operands."""
        first, *transposes = self.operations
        value = first.primitive.bind(*operands, **first.params)
        for transpose in transposes:
            value = transpose.primitive.bind(value, **transpose.params)
        return value


def find_sums(jaxpr: Any, num_rows: int) -> tuple[BatchSum, ...]:
    """Returns the sums over the batch that make up marked gradients, in the program's order.

    A sum is left out if another one's operands depend on its result.

    Args:
        jaxpr: a ``jax.extend.core.Jaxpr``.
        num_rows: the rows of the batch. Any dim of this size that an operation adds up may be divided.
    """
    made_by = {result: (position, made) for position, made in enumerate(jaxpr.eqns) for result in made.outvars}
    waiting = [made.invars[0] for made in jaxpr.eqns if made.primitive.name == "name" and made.params["name"] == _MARK]
    users = _users_of(jaxpr)
    found: list[tuple[int, BatchSum]] = []
    seen: set[Any] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, core.Literal) or value in seen or value not in made_by:
            continue
        seen.add(value)
        position, made = made_by[value]
        dims = _summed_dims(made, num_rows)
        if dims is not None:
            if _size_bytes(value) <= PACKED_BYTES:
                found.append((position, BatchSum(operations=(made, *_transposes(made, users)), dims=dims)))
        elif made.primitive.name in _PASSED:
            waiting.extend(made.invars)
    return _independent(jaxpr, [one for _, one in sorted(found, key=lambda pair: pair[0])])


def _users_of(jaxpr: Any) -> dict[Any, list[Any]]:
    """Returns the operations that use each value; None stands for the program's results."""
    users: dict[Any, list[Any]] = {}
    for user, operands in [*((made, made.invars) for made in jaxpr.eqns), (None, jaxpr.outvars)]:
        for operand in operands:
            if not isinstance(operand, core.Literal):
                users.setdefault(operand, []).append(user)
    return users


def _transposes(made: Any, users: dict[Any, list[Any]]) -> list[Any]:
    """Returns the transposes of an operation's result, if nothing else uses it."""
    found: list[Any] = []
    while True:
        match users.get(made.outvars[0]):
            case [made] if made is not None and made.primitive.name == "transpose":
                found.append(made)
            case _:
                return found


def _size_bytes(value: Any) -> int:
    return math.prod(value.aval.shape) * value.aval.dtype.itemsize


def _summed_dims(made: Any, num_rows: int) -> tuple[int, ...] | None:
    """Returns, for each operand, the dim of ``num_rows`` that an operation adds up; None if there is no such dim."""
    if any(isinstance(operand, core.Literal) for operand in made.invars):
        return None
    shapes = [operand.aval.shape for operand in made.invars]
    name, params = made.primitive.name, made.params
    pairs: list[tuple[int, ...]] = []
    if name == "dot_general":
        pairs = list(zip(*params["dimension_numbers"][0], strict=True))
    elif name == "reduce_sum":
        pairs = [(axis,) for axis in params["axes"]]
    elif name == "conv_general_dilated" and params["feature_group_count"] == params["batch_group_count"] == 1:
        numbers = params["dimension_numbers"]
        pairs = [(numbers.lhs_spec[1], numbers.rhs_spec[1])]
    return next((dims for dims in pairs if shapes[0][dims[0]] == num_rows), None)


def _independent(jaxpr: Any, sums: Sequence[BatchSum]) -> tuple[BatchSum, ...]:
    """Leaves out sums that the operands of another one depend on, such as those of batch normalisation's gradient."""
    needed = {operand for one in sums for operand in one.operands}
    for made in reversed(jaxpr.eqns):
        if any(result in needed for result in made.outvars):
            needed.update(operand for operand in made.invars if not isinstance(operand, core.Literal))
    return tuple(one for one in sums if one.result not in needed)


def _depends(made: Any, values: set[Any]) -> bool:
    return any(not isinstance(operand, core.Literal) and operand in values for operand in made.invars)


def _evaluate(
    program: Any, sums: Sequence[BatchSum], arguments: Sequence[Any], add_up: Callable[..., list[Any]]
) -> list[Any]:
    """Runs a program: first what depends on no sum, then all sums at once, then the rest."""
    if len(sums) < 2:  # nothing to put together
        return list(core.jaxpr_as_fun(program)(*arguments))
    jaxpr = program.jaxpr
    replaced = {id(made) for one in sums for made in one.operations}
    results = [one.result for one in sums]
    later = set(results)
    first: list[Any] = []
    rest: list[Any] = []
    for made in jaxpr.eqns:
        if id(made) in replaced:
            continue
        if _depends(made, later):
            later.update(made.outvars)
            rest.append(made)
        else:
            first.append(made)

    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *arguments], strict=True))
    operands = [operand for one in sums for operand in one.operands]
    used = [operand for made in rest for operand in made.invars]
    _run(first, known, wanted=[*operands, *used, *jaxpr.outvars])
    known |= zip(results, add_up(sums, [known[operand] for operand in operands]), strict=True)
    _run(rest, known, wanted=jaxpr.outvars)
    return [one.val if isinstance(one, core.Literal) else known[one] for one in jaxpr.outvars]


def _run(operations: Sequence[Any], known: dict[Any, Any], *, wanted: Sequence[Any]) -> None:
    """Runs a part of a program, and adds the wanted values to those that are known."""
    made = {result for one in operations for result in one.outvars}
    results = [value for value in _values(wanted) if value in made]
    operands = [value for value in _values(value for one in operations for value in one.invars) if value not in made]
    arguments = [known[operand] for operand in operands]
    described = debug_info(
        "a part of a training step", _named, arguments, {}, result_paths_thunk=lambda: ("",) * len(results)
    )
    part = core.ClosedJaxpr(core.Jaxpr((), operands, results, operations, debug_info=described), ())
    known |= zip(results, core.jaxpr_as_fun(part)(*arguments), strict=True)


def _named(*values: Any) -> Any:
    """Has the parameters of a part of a program, for JAX's messages."""
    return values


def _values(operands: Iterable[Any]) -> list[Any]:
    """Returns operands without literals, each once, in their order."""
    return list(dict.fromkeys(one for one in operands if not isinstance(one, core.Literal)))


def _add_up(sums: Sequence[BatchSum], operands: Sequence[Any], *, mesh: Any) -> list[Any]:
    """Returns the results of sums over the batch. Each device adds up its rows, and then all devices' results are."""
    dims = [dim for one in sums for dim in one.dims]

    def of_own_rows(*blocks: Any) -> list[Any]:
        waiting = iter(blocks)
        parts = [one.run(*[next(waiting) for _ in one.dims]) for one in sums]
        parts.reverse()  # the backward pass computes the last layer's gradients first
        return all_sum(parts, options=CommunicationOptions())[::-1]

    return jax.shard_map(
        of_own_rows,
        mesh=mesh,
        in_specs=tuple(PartitionSpec(*[None] * dim, BATCH_AXIS) for dim in dims),
        out_specs=PartitionSpec(),
    )(*operands)
