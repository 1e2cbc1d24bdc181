"""A step's gradients made smaller before they travel, and what stays behind added to the next ones: error feedback.

What a push leaves out (the smaller gradients, the digits that bfloat16 has not) is not lost: the worker keeps it in
full precision, and it goes along as soon as it is large enough (Seide et al. 2014; Karimireddy et al. 2019). All of it
is a part of the compiled step.
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

Rests: TypeAlias = list[dict[str, Any]]
"""For each server what has not travelled yet, of all gradients of a group and dtype, by the names that a push has."""

_MAX_PLACE: Final = 2**31 - 1


@final
class PushCompressor:
    """Makes pushes smaller. Pure: what is left of a push is given to it with the next one.

    Only what an optimizer takes is compressed: moving statistics and counts travel whole.

    Args:
        setup: what the servers keep.
        compression: how.

    Raises:
        InvalidInputError: a server has more gradients than can be counted by 32 bits.
    """

    def __init__(self, setup: Setup, compression: Compression) -> None:
        self._compression = compression
        self._sizes: list[dict[int, list[tuple[str, int]]]] = []  # by server and group: each shard's dtype and size
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

    def first_rests(self) -> Rests:
        """Returns what is left before the first push: nothing."""
        return [
            {
                f"{gradients_for(number)}:{dtype}": jnp.zeros(size, _full(dtype))
                for number, group in own.items()
                for dtype, size in _totals(group).items()
            }
            for own in self._sizes
        ]

    def compress(
        self, arrays: Sequence[dict[str, Any]], parts: Sequence[tuple[Part, ...]], rests: Rests
    ) -> tuple[list[dict[str, Any]], list[tuple[Part, ...]], Rests]:
        """Makes a push smaller, within a compiled step or without.

        Args:
            arrays: for each server the push's arrays, by kind and dtype.
            parts: for each server, what they are of.
            rests: what is left of the pushes before.

        Returns:
            Arrays and parts as they travel, and what is left now.
        """
        found = [dict(own) for own in arrays]
        left = [dict(own) for own in rests]
        packed: list[tuple[Part, ...]] = []
        for server, own in enumerate(parts):
            packed.append(
                tuple(self._compress_part(part, self._sizes[server], found[server], left[server]) for part in own)
            )
        return found, packed, left

    def _compress_part(
        self, part: Part, sizes: dict[int, list[tuple[str, int]]], arrays: dict[str, Any], rests: dict[str, Any]
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
            pieces = _cut(rests[name], [size for size, _ in own])
            there = [piece for piece, (_, given) in zip(pieces, own, strict=True) if given]
            total = arrays[name].astype(_full(dtype)) + _joined(there)
            if isinstance(self._compression, TopK):
                count = self._compression.count(total.size)
                indices = jnp.sort(jax.lax.top_k(jnp.abs(total), count)[1])
                sent = _rounded(total[indices], dtype)
                rest = total.at[indices].add(-sent)
                arrays[f"{indices_for(part.group)}:{dtype}"] = indices.astype(jnp.int32)
                arrays[name] = sent.astype(dtype)
            else:
                sent = _rounded(total, BFLOAT16)
                rest = total - sent
                arrays[name] = sent.astype(BFLOAT16)
            rest = jnp.where(jnp.isfinite(rest), rest, 0.0)  # what overflows is seen by the model, once
            new = iter(_cut(rest, [size for size, given in own if given]))
            rests[name] = _joined(
                [next(new) if given else piece for piece, (_, given) in zip(pieces, own, strict=True)]
            )
        return replace(part, packing=Packing.TOP if isinstance(self._compression, TopK) else Packing.BFLOAT16)


@final
class ErrorFeedback:
    """A worker's compression, with what its pushes have left so far.

    Belongs to one thread.

    Args:
        setup: what the servers keep.
        compression: how; None where all travels, and nothing is left.
        lend: puts arrays where steps are computed.

    Attributes:
        rests: what is left; a step is given it, and what it has returned is assigned.

    Raises:
        InvalidInputError: as for `PushCompressor`.
    """

    def __init__(self, setup: Setup, compression: Compression | None, *, lend: Callable[[Rests], Rests]) -> None:
        self._compressor = None if compression is None else PushCompressor(setup, compression)
        self._lend = lend
        self.rests: Rests = [] if self._compressor is None else lend(self._compressor.first_rests())
        self._unanswered: dict[int, tuple[tuple[int, int], dict[str, Any], dict[str, Any]]] = {}

    @property
    def is_used(self) -> bool:
        """Whether pushes leave anything out."""
        return self._compressor is not None

    def compress(
        self, arrays: list[dict[str, Any]], parts: list[tuple[Part, ...]], rests: Rests
    ) -> tuple[list[dict[str, Any]], list[tuple[Part, ...]], Rests]:
        """Makes a push smaller: see `PushCompressor.compress`. Changes nothing here."""
        if self._compressor is None:
            return arrays, parts, rests
        return self._compressor.compress(arrays, parts, rests)

    def settle(self, push: Push, *, before: Rests, after: Rests, outcomes: Sequence[Pushed | None]) -> None:
        """Has what earlier pushes had left go along later, where a push, of which it was a part, did not count.

        A server that has not answered counts as one that has lost it. Where that one says later that the same push
        had counted, it has.

        Args:
            push: the push.
            before: what was left before it.
            after: what is left by it; other pushes may have been since.
            outcomes: what each server said of it; None where there was no answer.
        """
        if self._compressor is None:
            return
        key = (push.closure, push.number)
        for server, state in enumerate(outcomes):
            unanswered = None
            if server in self._unanswered and self._unanswered[server][0] == key:  # others may come before it again
                unanswered = self._unanswered.pop(server)
            if state is not None and state.is_applied:
                continue
            self._add(server, before[server], less=after[server])
            if state is None:
                self._unanswered[server] = (key, before[server], after[server])
            elif state.was_applied and unanswered is not None:
                self._add(server, unanswered[2], less=unanswered[1])

    def take_back(self, before: Rests, after: Rests) -> None:
        """Has what earlier pushes had left go along later: a push, of which it was a part, was never sent.

        Args:
            before: what was left before it.
            after: what was left by it.
        """
        for server in range(len(self.rests)):
            self._add(server, before[server], less=after[server])

    def forget(self) -> None:
        """Has nothing be left: training goes on from values that what is left is not of."""
        if self._compressor is not None:
            self.rests = self._lend(self._compressor.first_rests())
            self._unanswered.clear()

    def _add(self, server: int, more: dict[str, Any], *, less: dict[str, Any]) -> None:
        rests = {name: rest + (more[name] - less[name]) for name, rest in self.rests[server].items()}
        self.rests = [rests if index == server else own for index, own in enumerate(self.rests)]


def _rounded(values: Any, dtype: str) -> Any:
    """Returns values as a dtype would have them; XLA may leave out a conversion there and back, but not this."""
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
