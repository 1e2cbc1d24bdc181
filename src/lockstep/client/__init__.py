"""The HTTP client of the service, for the command line and any other program."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockstep.client.addresses import RunningService, ServiceAddress, find_address, find_service
    from lockstep.client.client import Client
    from lockstep.client.job import Job
    from lockstep.client.job_cost import JobCost
    from lockstep.client.predictor import Predictor
    from lockstep.client.trials import Trial

__all__ = [
    "Client",
    "Job",
    "JobCost",
    "Predictor",
    "RunningService",
    "ServiceAddress",
    "Trial",
    "find_address",
    "find_service",
]

_LAZY: Final = {
    "Client": "client",
    "Job": "job",
    "JobCost": "job_cost",
    "Predictor": "predictor",
    "RunningService": "addresses",
    "ServiceAddress": "addresses",
    "Trial": "trials",
    "find_address": "addresses",
    "find_service": "addresses",
}
"""The modules of the names, which are imported on use: the command line uses other modules without the HTTP library."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"lockstep.client.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'lockstep.client' has no attribute {name!r}")
