"""Estimates the memory and time of a training step on devices that are not present, by compiling it without running."""

from __future__ import annotations

from lockstep.planning.launch import plan_script
from lockstep.planning.measurement import Measurement, Memory, Work
from lockstep.planning.report import Report, make_report
from lockstep.planning.roofline import Floor, floor
from lockstep.planning.targets import Target

__all__ = ["Floor", "Measurement", "Memory", "Report", "Target", "Work", "floor", "make_report", "plan_script"]
