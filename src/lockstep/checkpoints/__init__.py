"""Saves and restores checkpoints: atomic, numbered by step, under any strategy."""

from lockstep.strategies.backend import require_jax_backend

require_jax_backend()  # before the modules below import Keras

# ruff: noqa: E402
from lockstep.checkpoints.directory import CheckpointDirectory
from lockstep.checkpoints.ending import mark_ended
from lockstep.checkpoints.objects import Checkpoint, CheckpointManager, latest_checkpoint
from lockstep.checkpoints.state import Position, TrainingState

__all__ = [
    "Checkpoint",
    "CheckpointDirectory",
    "CheckpointManager",
    "Position",
    "TrainingState",
    "latest_checkpoint",
    "mark_ended",
]
