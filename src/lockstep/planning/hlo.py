"""Parses the text of a compiled program: its collectives, and the memory of each argument. Does not use JAX.

The text is XLA's HLO after compilation, in which every shape is the part of one device.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, final

_BITS: Final = {
    **dict.fromkeys(("pred", "s8", "u8"), 8),
    **dict.fromkeys(("s2", "u2"), 2),
    **dict.fromkeys(("s4", "u4", "f4e2m1fn"), 4),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 16),
    **dict.fromkeys(("s32", "u32", "f32"), 32),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 64),
    "c128": 128,
}

_KINDS: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")

_SHAPE: Final = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_INSTRUCTION: Final = re.compile(
    rf"^\s*(?:ROOT )?%?[\w.-]+ = (?P<result>.*?) (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\((?P<rest>.*)$"
)
_COMPUTATION: Final = re.compile(r"^(?:ENTRY )?%?([\w.-]+) (?:\([^)]*\)|\(.*\)) -> .*\{$")
_CALLED: Final = re.compile(r"(?:to_apply|calls|body|condition|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES: Final = re.compile(r"branch_computations=\{([^}]*)\}")
_BODY: Final = re.compile(r" while\(.*\bbody=%?([\w.-]+)")
_CHANNEL: Final = re.compile(r"\bchannel_id=\d+")
_FUSED_REDUCE_SCATTER: Final = "all-reduce-scatter"
"""The TPU compiler's name for a reduce-scatter: the fusion of an all-reduce and the slice of it that is kept."""

_GROUPS_LISTED: Final = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_GROUPS_IOTA: Final = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_GROUPS_MESH: Final = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_NUM_PARTITIONS: Final = re.compile(r"\bnum_partitions=(\d+)")
_NUM_REPLICAS: Final = re.compile(r"\breplica_count=(\d+)")


@final
@dataclass(frozen=True, kw_only=True)
class Collective:
    """The collectives of one kind, over groups of one size, in one run of a program.

    Attributes:
        kind: the name in HLO, such as "all-reduce".
        group_size: the number of devices that take part together.
        count: the number of instructions.
        payload_bytes: the size of their results (for a reduce-scatter: of their operands) on one device, without
            padding.
        sent_bytes: the minimum number of bytes that one device has to send with any algorithm: 2 (n-1)/n of the payload
            for an all-reduce, (n-1)/n for the others, all of the payload for a permutation.
        count_in_loops: the number of instructions that are in loops. Each is counted once, however often its loop runs.
    """

    kind: str
    group_size: int
    count: int
    payload_bytes: int
    sent_bytes: int
    count_in_loops: int = 0


def collectives(text: str) -> tuple[Collective, ...]:
    """Returns a program's collectives.

    Args:
        text: the text of the compiled program.

    Returns:
        One entry for each kind and group size, sorted by kind. Collectives of a single device are left out, because
        they move no data.
    """
    header = text.partition("\n")[0]
    num_devices = math.prod(int(m.group(1)) for p in (_NUM_PARTITIONS, _NUM_REPLICAS) if (m := p.search(header)))
    in_loops = _computations_in_loops(text)
    found: dict[tuple[str, int], list[tuple[int, int, bool]]] = defaultdict(list)
    channels: set[str] = set()
    for computation, line in _lines(text):
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        kind, size = match["kind"], _group_size(line, num_devices=num_devices)
        if size < 2 and kind != "collective-permute":
            continue
        if channel := _CHANNEL.search(line):
            if channel.group() in channels:
                continue  # the same asynchronous collective appears several times
            channels.add(channel.group())
        payload = _payload_bytes(match["result"], kind=kind, starts=match["start"] is not None)
        if kind == "reduce-scatter":
            payload *= size
        if kind == "all-reduce" and computation.startswith(_FUSED_REDUCE_SCATTER):
            kind = "reduce-scatter"
        sent = math.ceil(_sent_share(kind, size) * payload)
        found[kind, size].append((payload, sent, computation in in_loops))
    return tuple(
        Collective(
            kind=kind,
            group_size=size,
            count=len(entries),
            payload_bytes=sum(payload for payload, _, _ in entries),
            sent_bytes=sum(sent for _, sent, _ in entries),
            count_in_loops=sum(in_loop for _, _, in_loop in entries),
        )
        for (kind, size), entries in sorted(found.items())
    )


def argument_bytes(text: str) -> tuple[int, ...]:
    """Returns each argument's size in one device's memory, in bytes, including the padding to the memory's tiles.

    Args:
        text: the text of the compiled program.
    """
    header = text.partition("\n")[0]
    start = header.find("entry_computation_layout={(")
    assert start >= 0, "a compiled module says its arguments' layout"
    arguments, depth, begin = "", 0, start + len("entry_computation_layout={")
    for position in range(begin, len(header)):
        depth += {"(": 1, ")": -1}.get(header[position], 0)
        if depth == 0:
            arguments = header[begin + 1 : position]
            break
    return tuple(_padded_bytes(*match.groups()) for match in _SHAPE.finditer(arguments))


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yields each instruction with the name of its computation."""
    computation = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            match = _COMPUTATION.match(line)
            computation = match.group(1) if match else computation
        else:
            yield computation, line


def _computations_in_loops(text: str) -> frozenset[str]:
    called: dict[str, set[str]] = defaultdict(set)
    waiting: list[str] = []
    for computation, line in _lines(text):
        called[computation].update(_CALLED.findall(line))
        for branches in _BRANCHES.findall(line):
            called[computation].update(name.strip().removeprefix("%") for name in branches.split(","))
        waiting.extend(_BODY.findall(line))
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting.extend(called[name])
    return frozenset(reached)


def _group_size(line: str, *, num_devices: int) -> int:
    if match := _GROUPS_LISTED.search(line):
        return len(match.group(1).split(","))
    if match := _GROUPS_IOTA.search(line):
        return int(match.group(2))
    if match := _GROUPS_MESH.search(line):
        sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", match.group(1))}
        # A part of an axis is written as 'axis':(number of devices before it)size.
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", match.group(2))
        return math.prod(int(part) if part else sizes[axis] for axis, part in axes)
    return num_devices


def _sent_share(kind: str, size: int) -> float:
    if kind == "collective-permute":
        return 1.0
    return (2 if kind == "all-reduce" else 1) * (size - 1) / size


def _payload_bytes(result: str, *, kind: str, starts: bool) -> int:
    shapes = [_logical_bytes(dtype, dims) for dtype, dims, _ in _SHAPE.findall(result)]
    if starts and kind == "collective-permute":
        return shapes[1]  # operand, result, and two context values
    if starts and kind != "all-reduce":
        return sum(shapes[len(shapes) // 2 :])  # operands, then results
    return sum(shapes)


def _bits(dtype: str) -> int:
    return _BITS.get(dtype, 8)  # the many 8-bit formats, such as f8e4m3fn


def _dims(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size]


def _bytes(num_elements: int, dtype: str) -> int:
    return 0 if dtype == "token" else -(-num_elements * _bits(dtype) // 8)


def _logical_bytes(dtype: str, dims: str) -> int:
    return _bytes(math.prod(_dims(dims)), dtype)


def _padded_bytes(dtype: str, dims: str, layout: str | None) -> int:
    """Returns a shape's bytes in a layout such as ``1,0:T(8,128)(2,1)``: dimensions, minor one first, then tiles."""
    sizes = _dims(dims)
    order, _, rest = (layout or "").partition(":")
    tile_text = re.search(r"T\(([\d,]+)\)", rest)
    if tile_text is None:
        return _bytes(math.prod(sizes), dtype)
    minor_first = [sizes[int(dim)] for dim in order.split(",") if dim] or [1]
    tile = [int(size) for size in reversed(tile_text.group(1).split(","))]
    return _bytes(math.prod(_rounded_up(minor_first, tile)), dtype)


def _rounded_up(minor_first: list[int], tile: list[int]) -> Iterable[int]:
    for place in range(max(len(minor_first), len(tile))):
        size = minor_first[place] if place < len(minor_first) else 1
        step = tile[place] if place < len(tile) else 1
        yield -(-size // step) * step
