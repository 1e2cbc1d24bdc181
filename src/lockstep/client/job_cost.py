"""What a job has cost, as exact numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self, final


@final
@dataclass(frozen=True, kw_only=True)
class JobCost:
    """What a job has cost so far, or in the end.

    Attributes:
        usd: the cost in US dollars; None if no price is known for a part of it.
        ml_units: the consumed ML units; None if they are not known for a part of it.
        is_final: whether the job is over, so that this is its bill.
        note: which prices apply, and whether they are owed.
    """

    usd: Decimal | None
    ml_units: Decimal | None
    is_final: bool
    note: str

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> Self:
        """Returns the cost of a job in the contract's JSON form."""
        own = job["lockstep"]
        bill = own["bill"] or own["accrued"]
        if bill is None:
            return cls(usd=Decimal(0), ml_units=Decimal(0), is_final=False, note="it has not run")
        return cls(
            usd=_decimal(bill["costUsd"]),
            ml_units=_decimal(bill["mlUnits"]),
            is_final=own["bill"] is not None,
            note=bill["note"],
        )

    def __str__(self) -> str:
        usd = "unknown cost" if self.usd is None else f"${self.usd}"
        units = "" if self.ml_units is None else f", {self.ml_units} ML units"
        return f"{usd}{'' if self.is_final else ' so far'}{units} ({self.note})"


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
