"""``lockstep top``: the command, what it reads of jobs, and the tables that it draws."""

from __future__ import annotations

from lockstep.cli.top.command import top

__all__ = ["top"]
