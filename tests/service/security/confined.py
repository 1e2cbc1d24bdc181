"""A place where other users than root may run Python."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from lockstep.service.security.users import UserPool

POOL = UserPool(first=59500, last=59600)

IS_ROOT = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may start programs as other users"
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder that others may pass through, and a Python in it that they may run."""

    folder: Path
    python: Path
