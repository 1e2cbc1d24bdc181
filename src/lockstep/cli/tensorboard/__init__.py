"""``lockstep tensorboard``: TensorBoard on the event files of jobs, wherever these are."""

from __future__ import annotations

from lockstep.cli.tensorboard.command import tensorboard

__all__ = ["tensorboard"]
