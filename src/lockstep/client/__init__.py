"""The HTTP client of the service, for the command line and any other program."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from lockstep.client.addresses import RunningService, ServiceAddress, find_address, find_service
from lockstep.client.client import Client

if TYPE_CHECKING:
    from lockstep.client.job import Job
    from lockstep.client.job_cost import JobCost
    from lockstep.client.predictor import Predictor

__all__ = ["Client", "Job", "JobCost", "Predictor", "RunningService", "ServiceAddress", "find_address", "find_service"]

_LAZY: Final = {"Job": "job", "JobCost": "job_cost", "Predictor": "predictor"}
"""The modules of names that the command line starts without."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"lockstep.client.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'lockstep.client' has no attribute {name!r}")
