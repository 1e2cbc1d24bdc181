"""Memory that a step frees is kept for the next one, in processes that train on CPUs alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import kept_memory

GLIBC = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
NUM_ARENAS = """
import ctypes, pathlib, tempfile

def num_arenas():
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.fclose.argtypes = [ctypes.c_void_p]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "info")
        file = libc.fopen(str(path).encode(), b"w")
        libc.malloc_info(0, file)
        libc.fclose(file)
        return path.read_text().count("<heap nr=")
"""
TRAINING = """
import lockstep
import keras
import numpy as np

with lockstep.strategies.MirroredStrategy().scope():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile("adam", "mse")
model.fit(np.ones((8, 64)), np.ones((8, 1)), verbose=0)
print(num_arenas())
"""
CALLING = """
import threading
import lockstep.client

barrier = threading.Barrier(4)
def allocate():
    barrier.wait()
    held = [bytearray(1000 + size) for size in range(1000)]
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(num_arenas())
"""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def arenas_of(program: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", NUM_ARENAS + program],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.skipif(not GLIBC, reason="needs glibc")
def test_all_threads_of_a_training_allocate_from_the_arena_whose_memory_is_kept() -> None:
    assert arenas_of(TRAINING) == 1


@pytest.mark.skipif(not GLIBC, reason="needs glibc")
def test_a_process_that_does_not_import_keras_keeps_its_settings() -> None:
    assert arenas_of(CALLING) > 1


def test_a_finder_of_keras_that_was_there_before_is_asked() -> None:
    finder = """
import sys
class Finder:
    def find_spec(self, name, *_):
        if name == "keras":
            print("asked")
sys.meta_path.insert(0, Finder())
import lockstep, keras
"""
    done = subprocess.run([sys.executable, "-c", finder], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "asked\n"


def test_memory_is_kept_unless_a_person_set_up_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not kept_memory.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "linux")
    assert kept_memory.keep_freed_memory() == bool(GLIBC)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not kept_memory.keep_freed_memory()


@pytest.mark.parametrize(
    ("named", "file", "is_kept"),
    [
        ("", "null", True),
        ("", "nvidia0", False),
        ("", "accel0", False),
        ("cpu", "nvidia0", True),
        ("cuda,cpu", "", False),
    ],
)
@pytest.mark.skipif(not GLIBC, reason="needs glibc")
def test_where_jax_may_use_an_accelerator_nothing_is_changed(
    named: str, file: str, *, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", named)
    monkeypatch.setattr(kept_memory, "_DEVICES", tmp_path)
    if file:
        (tmp_path / file).touch()
    assert kept_memory.keep_freed_memory() is is_kept
