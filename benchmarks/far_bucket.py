"""Measures how long training waits for raw records of a bucket that answers slowly.

``python benchmarks/far_bucket.py [--latency-ms 50] [--rounds 5] [--folder FOLDER]``. The bucket is local storage in a
wrapper that answers each request after so many milliseconds. The records are read by their ranges, in a shuffled order,
and feed a compiled step of Keras under a strategy; what is timed is ``fit``, and within it how long no step ran for
want of a batch. Prints a table as Markdown, one row a setting, and writes JSON. The settings take turns.
"""

from __future__ import annotations

import io
import os
import time
from statistics import median
from typing import Any, BinaryIO, Final

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np
from harness import columns
from harness.environments import own_versions
from harness.options import count
from harness.program import DATA, Program
from harness.results import measure_in_turn
from harness.tables import console
from reading.data import prepare
from reading.measure import PHOTO_SIZE

import lockstep
from lockstep.data import Batches, ExampleParser, FixedLenFeature, RawFeature, RecordSource
from lockstep.data.reading.read_ahead import ReadAhead
from lockstep.storage import AbstractBucket, glob_urls, registry
from lockstep.storage.base import StoredObject
from lockstep.storage.local import LocalBucket

BATCH_SIZE: Final = 64
RECORD_BYTES: Final = PHOTO_SIZE * PHOTO_SIZE * 3
latency_s, folder, num_times = 0.05, DATA, 3


class FarBucket(AbstractBucket):
    """A folder that answers late."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._bucket = LocalBucket(str(folder / url.removeprefix("far://")))

    def _read(self, key: str, start_byte: int, end_byte: int | None) -> bytes:
        time.sleep(latency_s)
        return self._bucket._read(key, start_byte, end_byte)

    def _size_bytes(self, key: str) -> int:
        time.sleep(latency_s)
        return self._bucket._size_bytes(key)

    def _list(self, prefix: str, *, follows_links: bool) -> list[StoredObject]:
        time.sleep(latency_s)
        return self._bucket._list(prefix, follows_links=follows_links)

    def _open(self, key: str) -> BinaryIO:
        return io.BufferedReader(FarFile(self, key))

    def _refuse(self, *_: Any) -> Any:
        raise PermissionError("it is read by ranges, and nothing else")

    _create = _write = _upload = _download = _move = _delete = _refuse


class FarFile(io.RawIOBase):
    """A file of such a folder, read range by range."""

    def __init__(self, bucket: FarBucket, key: str) -> None:
        super().__init__()
        self._bucket, self._key, self._position = bucket, key, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._bucket._size_bytes(self._key)}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._bucket._read(self._key, self._position, self._position + len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def make_model(width: int) -> Any:
    model = keras.Sequential(
        [
            keras.Input((PHOTO_SIZE, PHOTO_SIZE, 3), dtype="uint8"),
            keras.layers.Rescaling(1 / 127.5, -1),
            keras.layers.Conv2D(width, 16, strides=16, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return model


def step_s(width: int) -> float:
    """Returns how long a step takes on a batch that is there already: the middle one of several."""
    model = make_model(width)
    images = np.zeros((BATCH_SIZE, PHOTO_SIZE, PHOTO_SIZE, 3), np.uint8)
    times_s: list[float] = []
    for _ in range(12):
        begun = time.perf_counter()
        model.train_on_batch(images, np.zeros(BATCH_SIZE))
        times_s.append(time.perf_counter() - begun)
    return median(times_s[2:])


def fitting_width(rate: float) -> int:
    """Returns the width of a model that trains on so many megabytes a second, as long as it need not wait."""
    wanted_s = BATCH_SIZE * RECORD_BYTES / 1e6 / rate
    narrow, wide = 32, 128
    narrow_s, wide_s = step_s(narrow), step_s(wide)
    return max(1, round(narrow + (wanted_s - narrow_s) * (wide - narrow) / (wide_s - narrow_s)))


def train(width: int, **options: Any) -> dict[str, float]:
    """Trains for an epoch; returns megabytes a second, and which part of the time was waiting, in percent."""
    num_connections = options.pop("num_connections", 128)
    parse = ExampleParser({"image": RawFeature((PHOTO_SIZE,) * 2 + (3,)), "label": FixedLenFeature((), np.int64)})

    def transform(records: Any) -> tuple[np.ndarray, np.ndarray]:
        columns = parse(records)
        return columns["image"], columns["label"]

    # The same files several times over: an epoch long enough for its beginning not to be what is measured.
    files = glob_urls("far://raw/*.tfrec") * num_times
    source = RecordSource(files, held_bytes=0, num_connections=num_connections)
    batches = Batches(source, batch_size=BATCH_SIZE, transform=transform, seed=0, **options)
    with lockstep.strategies.MirroredStrategy(["cpu:0"]).scope():
        model = make_model(width)
    model.train_on_batch(np.zeros((BATCH_SIZE, PHOTO_SIZE, PHOTO_SIZE, 3), np.uint8), np.zeros(BATCH_SIZE))
    waited: list[float] = []
    take = ReadAhead.take

    def timed(self: ReadAhead, batch: int) -> Any:
        # Steps run on their own while the program goes on: what counts is how long nothing runs for want of a batch.
        state = keras.tree.flatten(getattr(model, "_jax_state", None))
        jax.block_until_ready([leaf for leaf in state if isinstance(leaf, jax.Array) and not leaf.is_deleted()])
        begun = time.perf_counter()
        try:
            return take(self, batch)
        finally:
            waited.append(time.perf_counter() - begun)

    ReadAhead.take = timed
    try:
        begun = time.perf_counter()
        model.fit(batches, epochs=1, verbose=0)
        elapsed_s = time.perf_counter() - begun
    finally:
        ReadAhead.take = take
    return {"rate": len(source) * RECORD_BYTES / 1e6 / elapsed_s, "waiting": 100 * sum(waited) / elapsed_s}


SETTINGS: Final = {
    "as it comes": {},
    "32 connections": {"num_connections": 32},
    "nothing read ahead": {"read_ahead": 0},
}
SHOWN: Final = {
    "setting": columns.side,
    "MB/s trained on": columns.values(0),
    "waiting for data, %": columns.more("waiting", 1),
}


def main() -> None:
    """Runs the benchmark."""
    global latency_s, folder, num_times
    program = Program(__doc__, num_rounds=5)
    program.add("--latency-ms", type=float, default=50)
    program.add("--rate", type=float, default=115, help="megabytes a second that the step is sized for")
    program.add("--times", type=count, default=3, help="how often an epoch has each file (default: %(default)s)")
    options = program.parse(small={"rounds": 1, "latency_ms": 5, "times": 1})
    prepare(options.folder)
    registry._CLASSES["far"] = f"{__name__}:FarBucket"  # pyright: ignore[reportIndexIssue] - a bucket of this file's
    latency_s, folder, num_times = options.latency_ms / 1000, options.folder, options.times
    width = fitting_width(options.rate)
    console.print(f"a step alone takes {step_s(width) * 1000:.0f} ms for {BATCH_SIZE * RECORD_BYTES / 1e6:.1f} MB\n")
    results = measure_in_turn(
        [(f"{options.latency_ms:g} ms a request", name) for name in SETTINGS],
        lambda _case, name: train(width, **SETTINGS[name]),
        num_rounds=options.rounds,
        value="rate",
        unit="megabytes a second",
    )
    program.finish(results, SHOWN, packages={"Lockstep": own_versions()})


if __name__ == "__main__":
    main()
