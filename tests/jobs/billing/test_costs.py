"""What jobs cost together."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import InvalidInputError
from lockstep.jobs.billing.bills import ReplicaUsage
from lockstep.jobs.billing.costs import JobUsage, report_costs
from lockstep.jobs.billing.served_models import ServedModel
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import NodeRecord

CATALOGUE = load_catalogue()
DAY_S = 86400.0
MIDNIGHT_S = datetime(2026, 11, 22, tzinfo=UTC).timestamp()


def usage(start_s: float, end_s: float, *, machine_type: str = "n1-standard-4") -> ReplicaUsage:
    return ReplicaUsage(replica="master-replica-0", machine_type=machine_type, start_time_s=start_s, end_time_s=end_s)


def usage_of(job: str, *usages: ReplicaUsage, simulated: bool = False, **labels: str) -> JobUsage:
    return JobUsage(uid=f"uid-{job}", project="p", job=job, labels=labels, simulated=simulated, usages=usages)


def test_the_reference_jobs_dollars_are_those_of_its_running_time() -> None:
    v100 = AcceleratorConfig(type=AcceleratorType.NVIDIA_TESLA_V100, count=2)
    whole = ReplicaUsage(
        replica="master-replica-0", machine_type="n1-standard-8", accelerator=v100, start_time_s=0.0, end_time_s=591.0
    )
    report = report_costs([usage_of("reference", whole)], by="job", catalogue=CATALOGUE)
    # 591 s at $5.34 an hour; the job's own bill, of 1.79 units, says $0.8771.
    assert (report.total.ml_units, report.total.cost_usd) == (Decimal("1.7891"), Decimal("0.8767"))


def test_a_night_is_divided_between_its_days() -> None:
    night = usage(MIDNIGHT_S - 3600, MIDNIGHT_S + 7200)
    report = report_costs([usage_of("a", night)], by="day", catalogue=CATALOGUE)
    assert [(row.name, row.machine_hours) for row in report.rows] == [
        ("2026-11-21", Decimal("1.0000")),
        ("2026-11-22", Decimal("2.0000")),
    ]
    assert [row.cost_usd for row in report.rows] == [Decimal("0.1900"), Decimal("0.3800")]


def test_what_lies_outside_of_the_time_asked_for_is_left_out() -> None:
    runs = [usage_of("before", usage(0, 50)), usage_of("across", usage(50, 3650)), usage_of("after", usage(9000, 9999))]
    report = report_costs(runs, by="job", catalogue=CATALOGUE, since_s=50.0, until_s=1850.0)
    assert [(row.name, row.machine_hours) for row in report.rows] == [("across", Decimal("0.5000"))]


def test_labels_divide_and_what_has_none_is_named() -> None:
    runs = [
        usage_of("a", usage(0, 3600), team="x"),
        usage_of("b", usage(0, 3600), team="x"),
        usage_of("c", usage(0, 3600)),
    ]
    report = report_costs(runs, by="label:team", catalogue=CATALOGUE)
    assert [(row.name, row.cost_usd) for row in report.rows] == [
        ("(none)", Decimal("0.1900")),
        ("x", Decimal("0.3800")),
    ]


def test_simulated_machines_have_a_list_price_and_nothing_is_owed() -> None:
    report = report_costs(
        [usage_of("real", usage(0, 3600)), usage_of("simulated", usage(0, 3600), simulated=True)],
        by="job",
        catalogue=CATALOGUE,
    )
    assert [(row.cost_usd, row.owed_usd) for row in report.rows] == [
        (Decimal("0.1900"), Decimal("0.1900")),
        (Decimal("0.1900"), Decimal("0.0000")),
    ]
    assert (report.total.cost_usd, report.total.owed_usd) == (Decimal("0.3800"), Decimal("0.1900"))


def test_what_has_no_price_is_named_and_in_no_sum() -> None:
    unpriced = usage(0, 3600, machine_type="n1-highmem-4")
    report = report_costs([usage_of("a", unpriced, usage(0, 3600))], by="job", catalogue=CATALOGUE)
    (row,) = report.rows
    assert (row.machine_hours, row.cost_usd, row.unpriced) == (Decimal("2.0000"), Decimal("0.1900"), ("n1-highmem-4",))


def test_nodes_are_owed_from_up_to_down_and_divided_as_wanted() -> None:
    node = NodeRecord(
        name="n",
        slot="cpu-0",
        node_type="cpu",
        asked_for="uid-a",
        asked_time_s=MIDNIGHT_S - 3600,
        up_time_s=MIDNIGHT_S - 3600,
        ready_time_s=MIDNIGHT_S - 1800,
        down_time_s=MIDNIGHT_S + 7200,
        usd_per_hour="0.2",
        price_source="cluster.yaml",
    )
    ran = replace(usage(MIDNIGHT_S - 1800, MIDNIGHT_S + 3600), machine="n")
    runs = [usage_of("a", ran, team="x")]
    whole = {"provisioning": Decimal("0.1"), "used": Decimal("0.3"), "idle": Decimal("0.2"), "failed": Decimal(0)}
    for by, name in (("job", "a"), ("project", "p"), ("label:team", "x"), ("node-type", "cpu")):
        [row] = report_costs(runs, by=by, catalogue=CATALOGUE, nodes=[node], project="p").rows
        assert row.name == name
        assert [amount.length_s for amount in row.nodes.values()] == [5400, 1800, 3600, 0]
        assert {share.value: amount.cost_usd for share, amount in row.nodes.items()} == whole
        assert (row.owed_usd, row.cost_usd) == (
            Decimal("0.6"),
            Decimal("0.285"),
        )  # what the node cost, and the list price
    days = report_costs(runs, by="day", catalogue=CATALOGUE, nodes=[node]).rows
    assert [(row.name, row.owed_usd) for row in days] == [
        ("2026-11-21", Decimal("0.2")),
        ("2026-11-22", Decimal("0.4")),
    ]
    simulated = replace(node, simulated=True)
    assert report_costs(runs, by="job", catalogue=CATALOGUE, nodes=[simulated]).total.owed_usd == 0
    unpriced = report_costs(runs, by="job", catalogue=CATALOGUE, nodes=[replace(node, usd_per_hour=None)]).total
    assert (unpriced.unpriced, unpriced.owed_usd) == (("node cpu",), 0)
    nobodys = report_costs([], by="project", catalogue=CATALOGUE, nodes=[replace(node, asked_for=None)])
    assert [row.name for row in nobodys.rows] == ["(none)"]
    assert report_costs(runs, by="job", catalogue=CATALOGUE, nodes=[node], project="q").rows == ()


@pytest.mark.parametrize("by", ["", "jobs", "label", "label:", "Day", "models"])
def test_another_division_is_refused(by: str) -> None:
    with pytest.raises(InvalidInputError, match="allowed: job, day, project, node-type, model, version or label:KEY"):
        report_costs([], by=by, catalogue=CATALOGUE)


@given(
    intervals=st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 400_000)), max_size=8),
    window=st.tuples(st.integers(0, 400_000), st.integers(0, 400_000)),
)
def test_days_and_windows_lose_nothing(intervals: list[tuple[int, int]], window: tuple[int, int]) -> None:
    runs = [usage_of(f"job{n}", usage(min(pair), max(pair))) for n, pair in enumerate(intervals)]
    whole = report_costs(runs, by="job", catalogue=CATALOGUE).total
    assert report_costs(runs, by="day", catalogue=CATALOGUE).total == whole
    cut_s = float(min(window))
    hours = [
        report_costs(runs, by="job", catalogue=CATALOGUE, since_s=since_s, until_s=until_s).total.machine_hours
        for since_s, until_s in ((0.0, cut_s), (cut_s, 1e10))
    ]
    assert abs(sum(hours) - whole.machine_hours) <= Decimal("0.0001")


def test_the_time_in_which_a_prediction_server_had_no_request_is_told() -> None:
    used = replace(usage_of("m/v1/a", usage(0, 3600)), busy_s=900.0)
    unused = replace(usage_of("m/v1/b", usage(0, 1800)), busy_s=0.0)
    report = report_costs([used, unused, usage_of("train", usage(0, 7200))], by="job", catalogue=CATALOGUE)
    rows = {row.name: row for row in report.rows}
    # An n1-standard-4 costs $0.19 an hour: 0.75 h of the first and 0.5 h of the second were unused.
    assert (rows["m/v1/a"].server_hours, rows["m/v1/a"].unused_hours) == (Decimal("1.0000"), Decimal("0.7500"))
    assert rows["m/v1/a"].unused_usd == Decimal("0.1425")
    assert (rows["m/v1/b"].unused_hours, rows["m/v1/b"].unused_usd) == (Decimal("0.5000"), Decimal("0.0950"))
    assert (rows["train"].server_hours, rows["train"].unused_hours) == (Decimal("0.0000"), Decimal("0.0000"))
    total = report.total
    assert (total.machine_hours, total.server_hours, total.unused_hours) == (
        Decimal("3.5000"),
        Decimal("1.5000"),
        Decimal("1.2500"),
    )
    assert total.unused_usd == Decimal("0.2375")


def test_a_part_of_a_servers_time_has_the_same_share_of_it() -> None:
    server = replace(usage_of("m/v1/a", usage(MIDNIGHT_S - 3600, MIDNIGHT_S + 10800)), busy_s=7200.0)
    report = report_costs([server], by="day", catalogue=CATALOGUE)
    assert [(row.server_hours, row.unused_hours) for row in report.rows] == [
        (Decimal("1.0000"), Decimal("0.5000")),
        (Decimal("3.0000"), Decimal("1.5000")),
    ]


@pytest.mark.parametrize("busy_s", [3601.0, 1e12])
def test_a_server_that_claims_more_than_its_time_was_used_all_the_time(busy_s: float) -> None:
    report = report_costs([replace(usage_of("a", usage(0, 3600)), busy_s=busy_s)], by="job", catalogue=CATALOGUE)
    assert (report.total.server_hours, report.total.unused_hours) == (Decimal("1.0000"), Decimal("0.0000"))


def _server(name: str, *usages: ReplicaUsage, busy_s: float, project: str = "p") -> JobUsage:
    model, version, _ = name.split("/")
    served = ServedModel(model=model, version=version)
    return replace(usage_of(name, *usages), busy_s=busy_s, served=served, project=project)


def test_models_and_versions_have_their_servers_and_the_time_without_requests() -> None:
    runs = [
        _server("m/v1/a", usage(0, 3600), busy_s=900.0),
        _server("m/v1/b", usage(0, 3600), busy_s=0.0),
        _server("m/v2/c", usage(0, 1800), busy_s=1800.0),
        _server("n/v1/d", usage(0, 3600), busy_s=3600.0),
        replace(usage_of("batch", usage(0, 3600)), served=ServedModel(model="m", version=None)),
        usage_of("train", usage(0, 7200)),
    ]

    def rows(by: str, **options: Any) -> dict[str, tuple[str, ...]]:
        report = report_costs(runs, by=by, catalogue=CATALOGUE, **options)
        assert report.total == report_costs(runs, by="job", catalogue=CATALOGUE, **options).total
        return {
            row.name: (str(row.machine_hours), str(row.server_hours), str(row.unused_hours), str(row.unused_usd))
            for row in report.rows
        }

    assert rows("model", project="p") == {
        "(none)": ("2.0000", "0.0000", "0.0000", "0.0000"),
        "m": ("3.5000", "2.5000", "1.7500", "0.3325"),
        "n": ("1.0000", "1.0000", "0.0000", "0.0000"),
    }
    assert rows("version", project="p") == {
        "(none)": ("2.0000", "0.0000", "0.0000", "0.0000"),
        "m": ("1.0000", "0.0000", "0.0000", "0.0000"),
        "m/v1": ("2.0000", "2.0000", "1.7500", "0.3325"),
        "m/v2": ("0.5000", "0.5000", "0.0000", "0.0000"),
        "n/v1": ("1.0000", "1.0000", "0.0000", "0.0000"),
    }
    runs.append(_server("m/v1/e", usage(0, 3600), busy_s=0.0, project="q"))
    assert list(rows("model")) == ["(none)", "p/m", "p/n", "q/m"]
    assert list(rows("version"))[1:4] == ["p/m", "p/m/v1", "p/m/v2"]


def test_a_models_nodes_are_those_of_its_servers() -> None:
    node = NodeRecord(
        name="n",
        slot="cpu-0",
        node_type="cpu",
        asked_for="uid-m/v1/a",
        asked_time_s=0.0,
        up_time_s=0.0,
        ready_time_s=0.0,
        down_time_s=7200.0,
        usd_per_hour="0.2",
        price_source="cluster.yaml",
    )
    server = _server("m/v1/a", replace(usage(0, 3600), machine="n"), busy_s=0.0)
    for by, name in (("model", "m"), ("version", "m/v1")):
        [row] = report_costs([server], by=by, catalogue=CATALOGUE, nodes=[node], project="p").rows
        assert (row.name, row.owed_usd) == (name, Decimal("0.4"))
