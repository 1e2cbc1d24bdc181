"""Processes of this machine: permanent identities, programs that end with the process that started them, and ports."""

from __future__ import annotations

from lockstep.processes.exit_codes import describe_exit
from lockstep.processes.identities import POLL_S, ProcessIdentity, find_marked

__all__ = ["POLL_S", "ProcessIdentity", "describe_exit", "find_marked"]
