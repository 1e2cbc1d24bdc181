"""Checks of a machine and of what it can reach: devices, disks, clocks, keys, versions, and what breaks them.

Each check is a function of its own, independent of the others and bounded in time; all run at the same time. What is
wrong is a `Finding`, with the command that mends it. `diagnose` runs all checks.
"""

from lockstep.doctor.catalogue import CHECKS, diagnose, find_faults
from lockstep.doctor.findings import Diagnosis, Finding, Remark, Result, Severity
from lockstep.doctor.running import Check, run_checks
from lockstep.doctor.surroundings import Surroundings

__all__ = [
    "CHECKS",
    "Check",
    "Diagnosis",
    "Finding",
    "Remark",
    "Result",
    "Severity",
    "Surroundings",
    "diagnose",
    "find_faults",
    "run_checks",
]
