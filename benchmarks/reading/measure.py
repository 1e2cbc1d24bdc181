"""How one side measures itself; NumPy alone, since it runs in the peers' environments too."""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

BATCH_OF_SMALL: Final = 128
BATCH_OF_PHOTOS: Final = 64
CROP: Final = 192
NUM_SMALL: Final = 60_000
NUM_PHOTOS: Final = 2_048
PHOTO_SIZE: Final = 224
QUALITY: Final = 90
NUM_SHARDS: Final = 8


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """Small images in an array, and their labels."""
    images = np.random.default_rng(0).integers(0, 256, (NUM_SMALL, 28, 28), np.uint8)
    return images, np.arange(NUM_SMALL) % 10


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(make: Callable[[], Any], *, num_epochs: int) -> None:
    """Goes through the batches, and prints seconds of each epoch, processor seconds of the last, and memory."""
    imported_mib = peak_mib()
    begun = time.perf_counter()
    batches = make()
    opened_s = time.perf_counter() - begun
    epochs_s: list[float] = []
    used = 0.0
    for _ in range(num_epochs):
        used = processor_s()
        begun = time.perf_counter()
        for values, labels in batches:
            assert len(values) == len(np.asarray(labels))
        epochs_s.append(time.perf_counter() - begun)
        used = processor_s() - used
    tell(epochs_s, opened_s=opened_s, processor_s=used, imported_mib=imported_mib)


def measure_packing(pack: Callable[[str], Any], *, num_times: int) -> None:
    """Packs into fresh folders, and prints the same."""
    imported_mib = peak_mib()
    times_s: list[float] = []
    used = 0.0
    for _ in range(num_times):
        with tempfile.TemporaryDirectory() as folder:
            used = processor_s()
            begun = time.perf_counter()
            pack(folder)
            times_s.append(time.perf_counter() - begun)
            used = processor_s() - used
    tell(times_s, opened_s=0.0, processor_s=used, imported_mib=imported_mib)


def tell(epochs_s: list[float], **more: float) -> None:
    print(json.dumps({"epochs_s": epochs_s, "peak_mib": peak_mib(), **more}))
