"""What decides the next step, saved and read back: atomic, numbered by step, under any strategy."""

from lockstep.checkpoints.directory import CheckpointDirectory
from lockstep.checkpoints.state import Position, TrainingState

__all__ = ["CheckpointDirectory", "Position", "TrainingState"]
