"""What jobs keep in the bucket costs."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest

from lockstep.errors import ConfigError
from lockstep.jobs.billing.costs import CostReport, report_costs
from lockstep.jobs.billing.prices import apply_prices
from lockstep.jobs.billing.storage_costs import GIB_BYTES, StoredSpan
from lockstep.jobs.machines.catalogue import StoragePrice, load_catalogue

HOUR_S = 3600.0
MIDNIGHT_S = datetime(2026, 11, 22, tzinfo=UTC).timestamp()
PRICE = StoragePrice(usd_per_gib_month=Fraction("0.020"), source="list")
OWN = {"date": "2026-11-01", "source": "ours", "storagePerGibMonth": "0.01"}


def kept(job: str, gib: int, start_h: float, end_h: float, *, project: str = "p", **labels: str) -> StoredSpan:
    return StoredSpan(
        project=project,
        job=job,
        labels=labels,
        size_bytes=gib * GIB_BYTES,
        start_s=MIDNIGHT_S + start_h * HOUR_S,
        end_s=MIDNIGHT_S + end_h * HOUR_S,
    )


def report(by: str, *stored: StoredSpan, price: StoragePrice | None = PRICE, project: str | None = "p") -> CostReport:
    return report_costs([], by=by, catalogue=load_catalogue(), stored=stored, storage_price=price, project=project)


def rows(found: CostReport) -> dict[str, tuple[Decimal, Decimal | None]]:
    return {row.name: (row.stored_gib_months, row.stored_usd) for row in (*found.rows, found.total)}


def test_a_gib_for_a_month_of_730_hours_costs_the_price() -> None:
    found = report("job", kept("a", 100, 0, 365), kept("a", 300, 365, 730), kept("b", 7, 0, 73, project="other"))
    assert rows(found) == {
        "a": (Decimal("200.000000"), Decimal("4.0000")),
        "total": (Decimal("200.000000"), Decimal("4.0000")),
    }
    assert found.total.owed_usd == 0


def test_it_is_divided_as_everything_is() -> None:
    spans = (kept("a", 730, -1, 1, team="x"), kept("b", 730, 0, 2))
    assert rows(report("day", *spans)) == {
        "2026-11-21": (Decimal("1.000000"), Decimal("0.0200")),
        "2026-11-22": (Decimal("3.000000"), Decimal("0.0600")),
        "total": (Decimal("4.000000"), Decimal("0.0800")),
    }
    assert list(rows(report("label:team", *spans))) == ["(none)", "x", "total"]
    assert list(rows(report("node-type", *spans))) == ["(bucket)", "total"]
    assert list(rows(report("project", *spans, project=None))) == ["p", "total"]


def test_without_a_price_it_is_unpriced_and_not_free() -> None:
    assert rows(report("job", kept("a", 730, 0, 1), price=None))["a"] == (Decimal("1.000000"), None)


@pytest.mark.parametrize(
    ("url", "listed", "own"),
    [
        pytest.param("gs://bucket", Fraction("0.020"), Fraction("0.01"), id="Cloud Storage"),
        pytest.param("s3://bucket", None, Fraction("0.01"), id="anybody's"),
        pytest.param("/data/bucket", None, Fraction("0.01"), id="a folder"),
    ],
)
def test_a_price_is_that_of_a_list_or_the_operators_own(url: str, listed: Fraction | None, own: Fraction) -> None:
    found = load_catalogue().storage_price(url)
    assert (None if found is None else found.usd_per_gib_month) == listed
    ours = apply_prices(load_catalogue(), document=OWN, source="prices").storage_price(url)
    assert ours == StoragePrice(usd_per_gib_month=own, source="ours, 2026-11-01")


def test_a_price_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="storagePerGibMonth"):
        apply_prices(load_catalogue(), document={**OWN, "storagePerGibMonth": 0.01}, source="prices")
