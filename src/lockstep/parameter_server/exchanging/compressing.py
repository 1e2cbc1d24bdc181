"""Compresses a step's gradients before they are sent, and adds what is left out to the next ones: error feedback.

What a push leaves out (the smaller gradients, or the digits that bfloat16 lacks) is not lost. The worker keeps it in
full precision, and sends it as soon as it is large enough (Seide et al. 2014; Karimireddy et al. 2019). All of this is
part of the compiled step.
"""

# JAX is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, final

import jax
import jax.numpy as jnp

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.compression import BFLOAT16, Compression, TopK
from lockstep.parameter_server.protocol import Packing, Part, Push, Pushed, Setup, gradients_for, indices_for

Residuals: TypeAlias = list[dict[str, Any]]
"""For each server, what has not been sent yet of all gradients of a group and dtype, by the names that a push uses."""

_MAX_PLACE: Final = 2**31 - 1


@final
class PushCompressor:
    """Compresses pushes. Pure: the caller passes what one push leaves out to the next one.

    Only gradients for optimizers are compressed. Moving statistics and counts are sent whole.

    Args:
        setup: what the servers keep.
        compression: the kind of compression.

    Raises:
        InvalidInputError: a server has more gradients than 32-bit indices can count.
    """

    def __init__(self, setup: Setup, compression: Compression) -> None:
        self._compression = compression
        self._sizes: list[dict[int, list[tuple[str, int]]]] = []  # dtype and size of each shard, by server and group
        for shards in setup.placement.by_server:
            groups: dict[int, list[tuple[str, int]]] = {}
            for number, group in enumerate(setup.groups):
                if group.optimizer is None:
                    continue
                own = [shards[index] for index in group.members(shards)]
                dtypes = [setup.placement.variables[shard.variable].dtype for shard in own]
                sizes = [math.prod(setup.placement.shard_shape(shard)) for shard in own]
                groups[number] = list(zip(dtypes, sizes, strict=True))
            self._sizes.append(groups)
        largest = max(
            (size for own in self._sizes for group in own.values() for size in _totals(group).values()), default=0
        )
        if isinstance(compression, TopK) and largest > _MAX_PLACE:
            raise InvalidInputError(
                "TopK over so many gradients of one server",
                received=largest,
                allowed=f"up to {_MAX_PLACE}",
                action="have more servers, and a variable_partitioner",
            )

    def first_residuals(self) -> Residuals:
        """Returns what is left out before the first push: zeros."""
        return [
            {
                f"{gradients_for(number)}:{dtype}": jnp.zeros(size, _full(dtype))
                for number, group in own.items()
                for dtype, size in _totals(group).items()
            }
            for own in self._sizes
        ]

    def compress(
        self, arrays: Sequence[dict[str, Any]], parts: Sequence[tuple[Part, ...]], residuals: Residuals
    ) -> tuple[list[dict[str, Any]], list[tuple[Part, ...]], Residuals]:
        """Compresses a push, inside a compiled step or outside.

        Args:
            arrays: for each server, the arrays of the push by kind and dtype.
            parts: for each server, the groups that its arrays are for.
            residuals: what the previous pushes left out.

        Returns:
            The arrays and the parts to be sent, and what is left out now.
        """
        found = [dict(own) for own in arrays]
        left = [dict(own) for own in residuals]
        packed: list[tuple[Part, ...]] = []
        for server, own in enumerate(parts):
            packed.append(
                tuple(self._compress_part(part, self._sizes[server], found[server], left[server]) for part in own)
            )
        return found, packed, left

    def _compress_part(
        self, part: Part, sizes: dict[int, list[tuple[str, int]]], arrays: dict[str, Any], residuals: dict[str, Any]
    ) -> Part:
        group = sizes.get(part.group)
        if group is None:
            return part
        mask = part.has_gradient if part.has_gradient is not None else (True,) * len(group)
        for dtype in _totals(group):
            name = f"{gradients_for(part.group)}:{dtype}"
            if name not in arrays:
                continue
            own = [(size, given) for (of, size), given in zip(group, mask, strict=True) if of == dtype]
            pieces = _cut(residuals[name], [size for size, _ in own])
            there = [piece for piece, (_, given) in zip(pieces, own, strict=True) if given]
            total = arrays[name].astype(_full(dtype)) + _joined(there)
            if isinstance(self._compression, TopK):
                count = self._compression.count(total.size)
                indices = jnp.sort(jax.lax.top_k(jnp.abs(total), count)[1])
                sent = _rounded(total[indices], dtype)
                residual = total.at[indices].add(-sent)
                arrays[f"{indices_for(part.group)}:{dtype}"] = indices.astype(jnp.int32)
                arrays[name] = sent.astype(dtype)
            else:
                sent = _rounded(total, BFLOAT16)
                residual = total - sent
                arrays[name] = sent.astype(BFLOAT16)
            residual = jnp.where(jnp.isfinite(residual), residual, 0.0)  # the model sees an overflow once
            new = iter(_cut(residual, [size for size, given in own if given]))
            residuals[name] = _joined(
                [next(new) if given else piece for piece, (_, given) in zip(pieces, own, strict=True)]
            )
        return replace(part, packing=Packing.TOP if isinstance(self._compression, TopK) else Packing.BFLOAT16)


@final
class ErrorFeedback:
    """A worker's compression, with what its pushes have left out so far.

    Belongs to one thread.

    Args:
        setup: what the servers keep.
        compression: the kind of compression; None to send everything and leave nothing out.
        put_on_devices: a function that puts arrays onto the devices that compute steps.

    Attributes:
        residuals: what was left out so far. A step receives it, and its new value is assigned here.

    Raises:
        InvalidInputError: as for `PushCompressor`.
    """

    def __init__(
        self, setup: Setup, compression: Compression | None, *, put_on_devices: Callable[[Residuals], Residuals]
    ) -> None:
        self._compressor = None if compression is None else PushCompressor(setup, compression)
        self._put_on_devices = put_on_devices
        self.residuals: Residuals = (
            [] if self._compressor is None else put_on_devices(self._compressor.first_residuals())
        )
        self._unanswered: dict[int, tuple[tuple[int, int], dict[str, Any], dict[str, Any]]] = {}

    @property
    def is_used(self) -> bool:
        """Whether pushes leave anything out."""
        return self._compressor is not None

    def compress(
        self, arrays: list[dict[str, Any]], parts: list[tuple[Part, ...]], residuals: Residuals
    ) -> tuple[list[dict[str, Any]], list[tuple[Part, ...]], Residuals]:
        """Compresses a push; see `PushCompressor.compress`. Changes nothing in this object."""
        if self._compressor is None:
            return arrays, parts, residuals
        return self._compressor.compress(arrays, parts, residuals)

    def settle(self, push: Push, *, before: Residuals, after: Residuals, outcomes: Sequence[Pushed | None]) -> None:
        """Keeps what earlier pushes left out for later, if a push that carried it did not count.

        A server without an answer counts as not having applied the push. If it later answers that the same push had
        been applied before, this is undone.

        Args:
            push: the push.
            before: what was left out before the push.
            after: what was left out after the push. There may have been other pushes since.
            outcomes: the answer of each server; None if there was none.
        """
        if self._compressor is None:
            return
        key = (push.closure, push.number)
        for server, state in enumerate(outcomes):
            unanswered = None
            if server in self._unanswered and self._unanswered[server][0] == key:  # others may come in between
                unanswered = self._unanswered.pop(server)
            if state is not None and state.is_applied:
                continue
            self._add(server, before[server], less=after[server])
            if state is None:
                self._unanswered[server] = (key, before[server], after[server])
            elif state.was_applied and unanswered is not None:
                self._add(server, unanswered[2], less=unanswered[1])

    def restore_residuals(self, before: Residuals, after: Residuals) -> None:
        """Keeps what earlier pushes left out for later, because a push that carried it was never sent.

        Args:
            before: what was left out before the push.
            after: what was left out after the push.
        """
        for server in range(len(self.residuals)):
            self._add(server, before[server], less=after[server])

    def forget(self) -> None:
        """Drops everything that was left out, because training continues from other values."""
        if self._compressor is not None:
            self.residuals = self._put_on_devices(self._compressor.first_residuals())
            self._unanswered.clear()

    def _add(self, server: int, more: dict[str, Any], *, less: dict[str, Any]) -> None:
        residuals = {name: residual + (more[name] - less[name]) for name, residual in self.residuals[server].items()}
        self.residuals = [residuals if index == server else own for index, own in enumerate(self.residuals)]


def _rounded(values: Any, dtype: str) -> Any:
    """Returns values rounded to a dtype. XLA may remove a conversion to the dtype and back, but not this operation."""
    info = jnp.finfo(dtype)
    return jax.lax.reduce_precision(values, exponent_bits=info.nexp, mantissa_bits=info.nmant)


def _full(dtype: str) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def _totals(group: Sequence[tuple[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for dtype, size in group:
        totals[dtype] = totals.get(dtype, 0) + size
    return totals


def _cut(buffer: Any, sizes: Sequence[int]) -> list[Any]:
    if len(sizes) == 1:
        return [buffer]
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [buffer[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _joined(pieces: Sequence[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)
