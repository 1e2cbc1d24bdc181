"""The exceptions which mean that the database cannot be used now, although the request was correct."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

DATABASE_FAULTS: Final = (OperationalError, InterfaceError, InternalError, PoolTimeoutError)
"""Raised if the server is gone, silent or read-only, a lock is held for too long, the disk is full, or no connection is
free."""


def describe_fault(error: Exception) -> str:
    """Returns the message of a fault, in one line, without the statement and its values.

    Args:
        error: one of `DATABASE_FAULTS`.
    """
    if isinstance(error, PoolTimeoutError):
        return "all its connections are in use"
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return said.strip().partition("\n")[0] or type(error).__name__
