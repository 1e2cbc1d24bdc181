"""The names by which a script, or the submitter of a function, chooses a strategy."""

from __future__ import annotations

from typing import Final

AUTO: Final = "auto"
STRATEGY_NAMES: Final = (AUTO, "one_device", "mirrored", "multi_worker", "tpu", "central_storage", "sharded")
"""The values that a script's ``--strategy`` flag takes."""
