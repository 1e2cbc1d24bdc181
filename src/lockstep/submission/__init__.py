"""What a submitter sends, for the command line and Python: a program's code, packed and staged, and the job's document.

The names below are imported on use: the command line and a submitted function's job start without them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lockstep.submission.reporting import report
    from lockstep.submission.submitting import submit
    from lockstep.submission.tuning import tune

__all__ = ["report", "submit", "tune"]

_LAZY: Final = {"report": "reporting", "submit": "submitting", "tune": "tuning"}
"""The modules of the names."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"lockstep.submission.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'lockstep.submission' has no attribute {name!r}")
