"""The HTTP client of the service, for the command line and any other program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.client.addresses import RunningService, ServiceAddress, find_address, find_service
from lockstep.client.client import Client

if TYPE_CHECKING:
    from lockstep.client.predictor import Predictor

__all__ = ["Client", "Predictor", "RunningService", "ServiceAddress", "find_address", "find_service"]


def __getattr__(name: str) -> Any:
    if name == "Predictor":
        from lockstep.client.predictor import Predictor  # imports NumPy, which the command line starts without

        return Predictor
    raise AttributeError(f"module 'lockstep.client' has no attribute {name!r}")
