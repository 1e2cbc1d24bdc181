"""What a submitter sends, for the command line and Python: a program's code, packed and staged, and the job's document.

`submit` is imported on use: the command line and a submitted function's job start without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.submission.submitting import submit

__all__ = ["submit"]


def __getattr__(name: str) -> Any:
    if name == "submit":
        from lockstep.submission.submitting import submit

        return submit
    raise AttributeError(f"module 'lockstep.submission' has no attribute {name!r}")
