"""Logs as pure data and decisions: severities, which lines are one entry, entries.

Their filter is `lockstep.jobs.logs.filters`, which brings a parser with it that a runner does not need.
"""

from lockstep.jobs.logs.entries import LogEntry, StoredEntry, decode_entry, encode_entry
from lockstep.jobs.logs.grouping import PLAIN, EntryGrouper, Reading
from lockstep.jobs.logs.severities import Severity, severity_named, severity_of

__all__ = [
    "PLAIN",
    "EntryGrouper",
    "LogEntry",
    "Reading",
    "Severity",
    "StoredEntry",
    "decode_entry",
    "encode_entry",
    "severity_named",
    "severity_of",
]
