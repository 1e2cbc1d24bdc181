"""Makes up names of jobs."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from typing import Final

MAX_STEM_LENGTH: Final = 64
_LETTERS: Final = "abcdefghijkmnpqrstuvwxyz23456789"  # without those that look alike


def make_job_name(stem: str) -> str:
    """Returns a new name for a job, such as ``train_20260131_120000_k7qd``: names sort by their time.

    Args:
        stem: what the job runs, such as the name of a function; other characters than a name's become ``_``.
    """
    text = re.sub(r"[^0-9a-zA-Z]+", "_", stem).strip("_")[:MAX_STEM_LENGTH]
    text = text if text[:1].isalpha() else f"job_{text}".rstrip("_")
    ending = "".join(secrets.choice(_LETTERS) for _ in range(4))
    return f"{text}_{datetime.now(tz=UTC):%Y%m%d_%H%M%S}_{ending}"
