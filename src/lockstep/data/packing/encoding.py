"""Encodes items as framed records, in several threads and in the order of the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, final

from lockstep.data.examples.example import encode_example
from lockstep.data.examples.features import AbstractFeature
from lockstep.data.files.framing import frame
from lockstep.data.sources.base import AbstractPart, Item
from lockstep.errors import CorruptDataError, InvalidInputError

MAX_ITEMS_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = 1 << 19
_ITEMS_AT_ONCE: Final = 32
_CHUNKS_AHEAD: Final = 2


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PackingItem:
    """An item to encode as a record.

    Attributes:
        position: the item's position in the packing order, from 0.
        split: the name of the item's split.
        item: the item.
    """

    position: int
    split: str
    item: Item


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """The result of encoding an item.

    Attributes:
        packing_item: the item with its position.
        framed: the framed record; None if the item is damaged.
        data_bytes: the length of the record's data without the frame, in bytes.
        reason: the description of the damage; "" if the item is not damaged.
    """

    packing_item: PackingItem
    framed: bytes | None
    data_bytes: int
    reason: str


@final
class Encoder:
    """Encodes items as records. May be called from several threads.

    Args:
        part: the part of the source, which loads the items.
        features: the features of each record, by name.
    """

    def __init__(self, part: AbstractPart, features: Mapping[str, AbstractFeature]) -> None:
        self.part = part
        self._features = features

    def encode(self, packing_items: Sequence[PackingItem]) -> list[Encoded]:
        """Encodes items as records.

        Raises:
            InvalidInputError: an item's values do not match the features.
        """
        return [self._encode(packing_item) for packing_item in packing_items]

    def _encode(self, packing_item: PackingItem) -> Encoded:
        try:
            values = self.part.load(packing_item.item)
        except CorruptDataError as error:
            return Encoded(packing_item=packing_item, framed=None, data_bytes=0, reason=str(error))
        number = packing_item.item.number
        if values.keys() != self._features.keys():
            raise InvalidInputError(
                f"example {number} does not have the declared features",
                received=sorted(values),
                allowed=sorted(self._features),
            )
        encoded: dict[str, Any] = {}
        for name, feature in self._features.items():
            try:
                encoded[name] = feature.encode(values[name])
            except (InvalidInputError, OverflowError, TypeError, ValueError) as error:
                raise InvalidInputError(f"feature {name!r} of example {number}: {error}") from None
        try:
            data = encode_example(encoded)
        except InvalidInputError as error:
            raise InvalidInputError(f"example {number}: {error}") from None
        return Encoded(packing_item=packing_item, framed=frame(data), data_bytes=len(data), reason="")


def encode_in_order(
    encoder: Encoder, packing_items: Iterator[PackingItem], *, num_workers: int
) -> Generator[list[Encoded]]:
    """Encodes all items in order, and holds only a bounded number of records in memory.

    Args:
        encoder: the encoder.
        packing_items: the items. The caller's thread iterates over them.
        num_workers: the number of threads that encode; 1 encodes in the caller's thread.

    Yields:
        Chunks of encoded items.
    """
    chunks = _chunks(packing_items, items_at_once(encoder.part))
    if num_workers == 1:
        yield from map(encoder.encode, chunks)
        return
    executor = ThreadPoolExecutor(num_workers, "lockstep-pack")
    try:
        waiting: deque[Future[list[Encoded]]] = deque()
        for chunk in chunks:
            waiting.append(executor.submit(encoder.encode, chunk))
            if len(waiting) >= num_workers + _CHUNKS_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        executor.shutdown(cancel_futures=True)


def items_at_once(part: AbstractPart) -> int:
    """Returns the number of items in a chunk for a thread: about 512 KiB of items if their length is known."""
    if not part.num_items or part.size_bytes is None:
        return _ITEMS_AT_ONCE
    return max(1, min(MAX_ITEMS_AT_ONCE, _BYTES_AT_ONCE * part.num_items // max(part.size_bytes, 1)))


def _chunks(packing_items: Iterator[PackingItem], num_items: int) -> Iterator[list[PackingItem]]:
    while chunk := list(islice(packing_items, num_items)):
        yield chunk
