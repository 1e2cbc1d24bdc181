"""How one side measures itself; NumPy alone, since it runs in the peers' environments too."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median
from typing import Any, Final

import numpy as np
from harness.protocol import own_peak_bytes, say, serve_rounds

BATCH_OF_SMALL: Final = 128
BATCH_OF_PHOTOS: Final = 64
CROP: Final = 192
NUM_SMALL: Final = 60_000
NUM_PHOTOS: Final = 2_048
PHOTO_SIZE: Final = 224
QUALITY: Final = 90
NUM_SHARDS: Final = 8
MIB: Final = 2**20


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """Small images in an array, and their labels."""
    images = np.random.default_rng(0).integers(0, 256, (NUM_SMALL, 28, 28), np.uint8)
    return images, np.arange(NUM_SMALL) % 10


def serve(times: Callable[[], Iterator[tuple[float, float]]], *, num_epochs: int) -> None:
    """Says how much memory the imports have taken, and does a round when it is asked to.

    Args:
        times: opens what is read, and yields the seconds that this took and those of each epoch with its processor
            seconds, as they are asked for.
        num_epochs: how many epochs.
    """
    say({"imported_mib": own_peak_bytes() / MIB})

    def round_of() -> dict[str, Any]:
        epochs = list(islice(times(), num_epochs))
        first_s, *later_s = (wall_s for wall_s, _ in epochs)
        return {
            "first_s": first_s,
            "later_s": median(later_s or [first_s]),
            "processor_s": epochs[-1][1],
            "peak_mib": own_peak_bytes() / MIB,
        }

    serve_rounds(round_of)


def read_times(make: Callable[[], Any]) -> Iterator[tuple[float, float]]:
    """Goes through the batches again and again; the first time has the opening, too."""
    begun, used = time.perf_counter(), time.process_time()
    batches = make()
    while True:
        for values, labels in batches:
            assert len(values) == len(np.asarray(labels))
        yield time.perf_counter() - begun, time.process_time() - used
        begun, used = time.perf_counter(), time.process_time()


def pack_times(pack: Callable[[str], Any]) -> Iterator[tuple[float, float]]:
    """Packs into fresh folders again and again."""
    while True:
        with tempfile.TemporaryDirectory() as folder:
            begun, used = time.perf_counter(), time.process_time()
            pack(folder)
            yield time.perf_counter() - begun, time.process_time() - used
