"""Answers the bodies of requests: with a model that takes arrays, or with a routine of the user's own."""

from __future__ import annotations

from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.answering.base import AbstractAnswering
from lockstep.serving.answering.models import ModelAnswering
from lockstep.serving.answering.routines import RoutineAnswering
from lockstep.serving.batcher import BatchPolicy
from lockstep.serving.lanes import Lanes
from lockstep.serving.routine import Routine

__all__ = ["AbstractAnswering", "ModelAnswering", "RoutineAnswering", "answering_with"]


def answering_with(served: AbstractModel | Routine, *, policy: BatchPolicy, lanes: Lanes) -> AbstractAnswering:
    """Returns what answers requests with a model or a routine.

    Args:
        served: the model, warmed up, or the routine.
        policy: how requests share runs. For a routine, only the number that may wait counts.
        lanes: runs what takes long apart from the event loop.
    """
    if isinstance(served, Routine):
        return RoutineAnswering(served, max_waiting=policy.max_waiting, lanes=lanes)
    return ModelAnswering(served, policy=policy, lanes=lanes)
