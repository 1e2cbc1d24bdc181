"""What a project may use at once, what it uses, and the words for it."""

from __future__ import annotations

from decimal import Decimal

import pytest
from tests.jobs.scheduling.simulated import demand, job

from lockstep.errors import ConfigError
from lockstep.jobs.scheduling import QueuedJob, Quota, parse_quotas
from lockstep.jobs.scheduling.quotas import Quotas


def p_job(uid: str, count: int = 1, **accelerators: int) -> QueuedJob:
    return job(uid, demand(count, name="", vcpus=1, **accelerators), project="p")


def test_without_an_entry_there_is_no_limit() -> None:
    quotas = Quotas({"p": Quota(accelerators={"V100": 2}), "q": Quota()})
    huge = demand(1000, H100=8)
    for project in ("q", "r"):
        assert quotas.why_impossible(job("x", huge, project=project)) is None
        assert quotas.why_blocked(job("x", huge, project=project), promised=()) is None
    assert ("q" in quotas, "r" in quotas) == (True, False)
    assert quotas.why_blocked(p_job("x", 1000, H100=8), promised=()) is None


def test_what_could_never_start_is_told() -> None:
    quotas = Quotas({"p": Quota(machines=3, accelerators={"V100": 4})})
    assert quotas.why_impossible(p_job("x", 3)) is None
    assert quotas.why_impossible(p_job("x", 4)) == "quota of project p: 4 machines asked for, 3 allowed"
    assert quotas.why_impossible(p_job("x", 2, V100=2)) is None
    assert quotas.why_impossible(p_job("x", 1, V100=5)) == "quota of project p: 5 V100 asked for, 4 allowed"


def test_machines_are_counted_and_given_back() -> None:
    quotas = Quotas({"p": Quota(machines=3)})
    first, second = p_job("a", 2), p_job("b")
    quotas.hold(first)
    assert quotas.why_blocked(p_job("x"), promised=()) is None
    assert quotas.why_blocked(p_job("x", 2), promised=()) == "quota of project p: 2 of 3 machines in use by job job_a"
    quotas.hold(second)
    assert (
        quotas.why_blocked(p_job("x"), promised=())
        == "quota of project p: 3 of 3 machines in use by job job_a and 1 more"
    )
    quotas.release(first)
    assert quotas.why_blocked(p_job("x", 2), promised=()) is None
    assert quotas.why_blocked(p_job("x", 3), promised=()) == "quota of project p: 1 of 3 machines in use by job job_b"


def test_accelerators_name_only_those_that_use_them() -> None:
    quotas = Quotas({"p": Quota(accelerators={"V100": 8})})
    for held in (p_job("cpu", 5), p_job("a", 2, V100=2), p_job("b", V100=4), p_job("h", H100=4)):
        quotas.hold(held)
    assert quotas.why_blocked(p_job("x", V100=1), promised=()) == (
        "quota of project p: 8 of 8 V100 in use by job job_a and 1 more"
    )
    assert quotas.why_blocked(p_job("x", H100=9), promised=()) is None


def test_projects_do_not_count_for_each_other() -> None:
    quotas = Quotas({"p": Quota(machines=1), "q": Quota(machines=1)})
    quotas.hold(job("a", demand(vcpus=1), project="q"))
    assert quotas.why_blocked(p_job("x"), promised=[job("b", demand(vcpus=1), project="q")]) is None


def test_what_is_promised_is_as_good_as_in_use() -> None:
    quotas = Quotas({"p": Quota(machines=4, accelerators={"V100": 8})})
    ahead = [p_job("a", V100=4), p_job("b", V100=2)]
    assert quotas.why_blocked(p_job("x", 2, V100=1), promised=ahead) is None
    assert quotas.why_blocked(p_job("x", V100=4), promised=ahead) == (
        "quota of project p: 0 of 8 V100 in use, 6 kept for job job_a and 1 more ahead of it"
    )
    quotas.hold(p_job("c", 2))
    assert quotas.why_blocked(p_job("x"), promised=ahead[:1]) is None
    assert quotas.why_blocked(p_job("x"), promised=ahead) == (
        "quota of project p: 2 of 4 machines in use by job job_c, 2 kept for job job_a and 1 more ahead of it"
    )


def test_limits_change_and_use_does_not() -> None:
    quotas = Quotas({})
    quotas.hold(p_job("a", 2))
    quotas.replace_limits({"p": Quota(machines=2)})
    assert quotas.why_blocked(p_job("x"), promised=()) == "quota of project p: 2 of 2 machines in use by job job_a"
    quotas.replace_limits({"p": Quota(machines=1)})
    assert quotas.why_blocked(p_job("x"), promised=()) == "quota of project p: 2 of 1 machines in use by job job_a"
    quotas.replace_limits({})
    assert quotas.why_blocked(p_job("x"), promised=()) is None


def test_a_quota_file_is_read() -> None:
    document = {"projects": {"p": {"machines": 0, "accelerators": {"NVIDIA_TESLA_V100": 8}}, "q": {}}}
    assert parse_quotas(document, source="quotas.yaml") == {
        "p": Quota(machines=0, accelerators={"NVIDIA_TESLA_V100": 8}),
        "q": Quota(),
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"machine": 1},
        {"machines": -1},
        {"accelerators": {"V100": 1}},
        {"accelerators": {"NVIDIA_TESLA_V100": -1}},
    ],
    ids=["key", "machines", "type", "accelerators"],
)
def test_a_quota_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"quotas\.yaml"):
        parse_quotas({"projects": {"p": wrong}}, source="quotas.yaml")


def test_dollars_a_day_are_read_and_nothing_at_all_refuses() -> None:
    quotas = parse_quotas({"projects": {"p": {"dollarsPerDay": "40.00"}, "q": {"dollarsPerDay": "0"}}}, source="file")
    assert quotas == {"p": Quota(dollars_per_day=Decimal(40)), "q": Quota(dollars_per_day=Decimal(0))}
    assert quotas["p"].why_impossible(p_job("x")) is None
    assert quotas["q"].why_impossible(p_job("x")) == "quota of project p: $0.00 a day is allowed"
    with pytest.raises(ConfigError, match="US dollars in quotes"):
        parse_quotas({"projects": {"p": {"dollarsPerDay": 40}}}, source="file")
