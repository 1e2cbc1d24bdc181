"""Answers the bodies of requests: with a model, a routine of the user's own, or a server in the user's container."""

from __future__ import annotations

from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.answering.base import AbstractAnswering, ContainerServer
from lockstep.serving.answering.models import ModelAnswering
from lockstep.serving.answering.routines import RoutineAnswering
from lockstep.serving.batch_policy import BatchPolicy
from lockstep.serving.lanes import Lanes
from lockstep.serving.routine import Routine

__all__ = [
    "AbstractAnswering",
    "ContainerServer",
    "ModelAnswering",
    "RoutineAnswering",
    "Served",
    "answering_with",
]

Served = AbstractModel | Routine | ContainerServer
"""What may answer requests: a model, warmed up, a custom prediction routine, or a server in a container."""


def answering_with(served: Served, *, policy: BatchPolicy, lanes: Lanes) -> AbstractAnswering:
    """Returns what answers requests.

    Args:
        served: the model, the routine, or the server in a container.
        policy: how requests share runs. Without a model, only the number that may wait counts.
        lanes: runs what takes long apart from the event loop.
    """
    if isinstance(served, Routine):
        return RoutineAnswering(served, max_waiting=policy.max_waiting, lanes=lanes)
    if isinstance(served, ContainerServer):
        # Imported here because other servers need no HTTP client, which takes a tenth of a second to import.
        from lockstep.serving.answering.containers import ContainerAnswering

        return ContainerAnswering(served, max_open=policy.max_waiting)
    return ModelAnswering(served, policy=policy, lanes=lanes)
