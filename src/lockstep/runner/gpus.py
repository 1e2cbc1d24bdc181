"""Reads the metrics of a replica's GPUs from NVIDIA's management library (NVML)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, final


@final
class GpuReader:
    """Reads the GPUs of a replica. It reads nothing if there is no library, no driver or no GPU.

    Args:
        visible: the value of ``CUDA_VISIBLE_DEVICES``: numbers or UUIDs, separated by commas; None for all of the node.
        library: NVML's bindings (``pynvml``); by default, imported if installed.
    """

    def __init__(self, visible: str | None, *, library: ModuleType | Any | None = None) -> None:
        self._library = library or _find_library()
        self._handles: Sequence[Any] = ()
        if self._library is not None:
            with contextlib.suppress(self._library.NVMLError):
                self._library.nvmlInit()
                self._handles = [self._handle(name) for name in self._names(visible)]

    def read(self) -> Mapping[str, float]:
        """Returns the metrics of the GPUs by name; an empty mapping if there are none, or if they do not answer."""
        if not self._handles or self._library is None:
            return {}
        try:
            busy = [self._library.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in self._handles]
            used = [self._library.nvmlDeviceGetMemoryInfo(handle).used for handle in self._handles]
        except self._library.NVMLError:
            return {}
        return {"gpuUtilization": round(sum(busy) / len(busy), 4), "gpuMemoryBytes": float(sum(used))}

    def _names(self, visible: str | None) -> list[str]:
        assert self._library is not None
        if visible is None:
            return [str(number) for number in range(self._library.nvmlDeviceGetCount())]
        return [name for name in visible.replace(" ", "").split(",") if name not in ("", "-1", "NoDevFiles")]

    def _handle(self, name: str) -> Any:
        assert self._library is not None
        if name.isdecimal():
            return self._library.nvmlDeviceGetHandleByIndex(int(name))
        return self._library.nvmlDeviceGetHandleByUUID(name)


def _find_library() -> ModuleType | None:
    try:
        import pynvml  # of the extra "cuda"  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return pynvml
