"""Handles logs as pure data and decisions: severities, grouping of lines into entries, and the entries.

The filter of logs is not imported here, because it needs a parser that a runner does without: see
`lockstep.jobs.logs.filters`.
"""

from lockstep.jobs.logs.entries import LogEntry, StoredEntry, decode_entry, encode_entry
from lockstep.jobs.logs.grouping import ORDINARY, EntryGrouper, LineClass
from lockstep.jobs.logs.severities import Severity, severity_named, severity_of

__all__ = [
    "ORDINARY",
    "EntryGrouper",
    "LineClass",
    "LogEntry",
    "Severity",
    "StoredEntry",
    "decode_entry",
    "encode_entry",
    "severity_named",
    "severity_of",
]
