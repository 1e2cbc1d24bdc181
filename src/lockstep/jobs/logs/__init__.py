"""Logs as pure data and decisions: severities, which lines are one entry, entries, and their filter."""

from lockstep.jobs.logs.entries import LogEntry, StoredEntry, decode_entry, encode_entry
from lockstep.jobs.logs.filters import LOG_FIELDS, parse_log_filter, quoted
from lockstep.jobs.logs.grouping import PLAIN, EntryGrouper, Reading
from lockstep.jobs.logs.severities import Severity, severity_named, severity_of

__all__ = [
    "LOG_FIELDS",
    "PLAIN",
    "EntryGrouper",
    "LogEntry",
    "Reading",
    "Severity",
    "StoredEntry",
    "decode_entry",
    "encode_entry",
    "parse_log_filter",
    "quoted",
    "severity_named",
    "severity_of",
]
