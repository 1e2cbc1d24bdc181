"""The traffic of a model in the database: what it may be, its changes, and what they protect from deletion."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, select

from lockstep.errors import NotFoundError, WrongStateError
from lockstep.service.store import ModelChanges, ModelRecord, ModelStore, VersionState, split_of
from lockstep.service.store.prediction.traffic import make_traffic
from lockstep.service.store.prediction.traffic_rows import MAX_CHANGES
from lockstep.service.store.tables import TRAFFIC_CHANGES


class Site:
    """A model, and what a test does with it."""

    def __init__(self, database: Engine) -> None:
        self.now_s = 1000.0
        self.models = ModelStore(database, clock=lambda: self.now_s)
        self.models.create_model(project="p", name="m", description="", labels={})

    def add(self, name: str, state: VersionState | None = VersionState.READY) -> None:
        """Records a version, later than all others: CREATING if no state is given."""
        self.now_s += 1.0
        self.models.create_version(
            project="p", model="m", name=name, description="", labels={}, deployment_uri="/m", machine_type="t"
        )
        if state is not None:
            self.become(name, state)

    def become(self, name: str, state: VersionState) -> None:
        version = self.models.get_version(project="p", model="m", name=name)
        assert self.models.update_version(version, state=state)

    def patch(self, **changes: Any) -> None:
        def change(_: ModelRecord) -> ModelChanges:
            return ModelChanges(**changes)

        self.models.patch_model(project="p", name="m", change=change, changed_by="ann")

    def split(self, **percents: int) -> None:
        self.patch(split=percents)

    def rollback(self) -> dict[str, int]:
        restored = self.models.rollback(project="p", model="m", check=lambda _: None, changed_by="bob")
        return split_of(restored.traffic)

    def delete(self, name: str, *, removed: bool = False) -> None:
        self.models.begin_delete_version(project="p", model="m", name=name, deleted_by="ann")
        if removed:
            self.models.remove_version(self.models.get_version(project="p", model="m", name=name))

    def model(self) -> ModelRecord:
        return self.models.get_model(project="p", name="m")

    def traffic(self) -> dict[str, int]:
        return split_of(self.model().traffic)

    def changes(self) -> list[tuple[str, dict[str, int]]]:
        found = self.models.list_traffic_changes(project="p", model="m")
        return [(change.changed_by, split_of(change.traffic)) for change in found]

    def retire(self, newest: str) -> list[str]:
        return self.models.retire_versions(self.models.get_version(project="p", model="m", name=newest))

    def states(self) -> dict[str, str]:
        return {version.name: version.state.value for version in self.models.list_versions()}


@pytest.fixture
def site(database: Engine) -> Site:
    return Site(database)


@pytest.mark.parametrize(
    ("split", "default", "expected"),
    [
        ({"v1": 90, "v2": 10}, "v1", {"v1": 90, "v2": 10}),
        ({"v1": 10, "v2": 90}, "v1", {"v2": 90, "v1": 10}),
        ({"v1": 50, "v2": 50}, "v2", {"v2": 50, "v1": 50}),
        ({"v2": 50, "v1": 50}, "v3", {"v1": 50, "v2": 50}),
        ({"v2": 50, "v1": 50}, None, {"v1": 50, "v2": 50}),
        ({"v1": 0, "v2": 100}, "v1", {"v2": 100}),
        ({}, "v1", {}),
    ],
)
def test_the_default_version_has_the_largest_share(
    split: dict[str, int], default: str | None, expected: dict[str, int]
) -> None:
    traffic = make_traffic(split, uids={name: f"uid-{name}" for name in split}, default=default)
    assert list(split_of(traffic).items()) == list(expected.items())
    assert [share.uid for share in traffic] == [f"uid-{name}" for name in expected]


def test_the_first_version_that_is_ready_has_all_traffic_and_another_one_none(site: Site) -> None:
    site.add("v1", state=None)
    site.add("v2")
    site.become("v1", VersionState.READY)
    assert (site.traffic(), site.model().default_version) == ({"v2": 100}, "v2")
    assert site.changes() == [("service", {"v2": 100})]


def test_only_versions_that_answer_get_traffic(site: Site) -> None:
    site.add("v1")
    site.add("v2", state=None)
    before = site.model()
    with pytest.raises(WrongStateError, match="version v2 of m is CREATING, and answers no requests"):
        site.split(v1=90, v2=10)
    with pytest.raises(NotFoundError, match="no version 'v3'"):
        site.split(v1=90, v3=10)
    assert site.model() == before


def test_the_default_version_is_never_another_than_the_traffic_says(site: Site) -> None:
    for name in ("v1", "v2"):
        site.add(name)
    site.split(v1=60, v2=40)
    assert site.model().default_version == "v1"
    site.split(v1=40, v2=60)
    assert site.model().default_version == "v2"
    site.models.set_default(project="p", model="m", name="v1", changed_by="ann")
    assert (site.traffic(), site.model().default_version) == ({"v1": 100}, "v1")


def test_changes_are_kept_with_who_made_them_and_a_change_to_the_same_is_none(site: Site) -> None:
    for name in ("v1", "v2"):
        site.add(name)
    site.now_s = 2000.0
    site.split(v1=90, v2=10)
    site.split(v2=10, v1=90)
    site.models.set_default(project="p", model="m", name="v2", changed_by="bob")
    assert site.changes() == [("bob", {"v2": 100}), ("ann", {"v1": 90, "v2": 10}), ("service", {"v1": 100})]
    assert site.models.list_traffic_changes(project="p", model="m")[1].time_s == 2000.0
    for percent in range(1, MAX_CHANGES + 5):
        site.split(v1=percent, v2=100 - percent)
    kept = site.changes()
    assert len(kept) == MAX_CHANGES
    assert [split["v1"] for _, split in kept] == list(range(MAX_CHANGES + 4, 4, -1))


def test_a_rollback_restores_what_was_before_and_a_second_one_takes_it_back(site: Site) -> None:
    for name in ("v1", "v2"):
        site.add(name)
    site.split(v1=90, v2=10)
    site.split(v2=100)
    revision = site.model().revision
    assert site.rollback() == {"v1": 90, "v2": 10} == site.traffic()
    assert site.model().revision > revision, "so it changes the etag"
    assert site.changes()[0] == ("bob", {"v1": 90, "v2": 10})
    assert site.rollback() == {"v2": 100}


def test_a_rollback_to_what_cannot_answer_changes_nothing(site: Site) -> None:
    site.add("v1")
    with pytest.raises(WrongStateError, match="no version of m had traffic before the last change of it"):
        site.rollback()
    site.add("v2")
    site.split(v2=100)
    site.become("v1", VersionState.FAILED)
    with pytest.raises(WrongStateError, match="version v1, which had 100% of the traffic of m before, is FAILED"):
        site.rollback()
    site.delete("v1", removed=True)
    with pytest.raises(WrongStateError, match="before, was deleted; choose versions with `lockstep models traffic m"):
        site.rollback()
    site.add("v1")
    with pytest.raises(WrongStateError, match="was deleted"):  # this is another version of the same name
        site.rollback()
    assert site.traffic() == {"v2": 100}


def test_a_rollback_that_is_refused_by_its_check_changes_nothing(site: Site) -> None:
    for name in ("v1", "v2"):
        site.add(name)
    site.split(v2=100)

    def refuse(_: ModelRecord) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        site.models.rollback(project="p", model="m", check=refuse, changed_by="bob")
    assert site.traffic() == {"v2": 100}


def test_a_version_with_traffic_is_deleted_only_as_the_last_one(site: Site) -> None:
    for name in ("v1", "v2"):
        site.add(name)
    site.split(v1=90, v2=10)
    for name, message in (("v1", "has 90% of the traffic of m, and is its default; give"), ("v2", "10% of the tra")):
        with pytest.raises(WrongStateError, match=f"version {name} .*{message}"):
            site.delete(name)
    site.split()
    assert site.model().default_version is None
    site.delete("v1", removed=True)
    site.split(v2=100)
    site.delete("v2")
    assert site.traffic() == {}, "what is being deleted gets no request"
    site.add("v3")
    assert site.traffic() == {"v3": 100}, "it does not wait until the other one is gone"


def test_the_changes_go_with_their_model(site: Site, database: Engine) -> None:
    site.add("v1")
    site.delete("v1", removed=True)
    site.models.delete_model(project="p", name="m")
    with database.connect() as connection:
        assert connection.execute(select(TRAFFIC_CHANGES)).all() == []


def test_the_oldest_versions_beyond_the_number_are_deleted(site: Site) -> None:
    for name in ("v1", "v2", "v3", "v4"):
        site.add(name)
    assert site.retire("v4") == [], "a model keeps all versions, unless it says otherwise"
    site.patch(columns={"max_versions": 2})
    assert site.retire("v4") == ["v2", "v3"], "v1 has all traffic"
    assert site.states() == {"v1": "READY", "v2": "DELETING", "v3": "DELETING", "v4": "READY"}
    operations = site.models.page_operations(project="p", size=20)
    assert {operation.version for operation in operations if operation.kind == "DELETE_VERSION"} == {"v2", "v3"}


def test_what_failed_counts_and_what_is_not_finished_does_not(site: Site) -> None:
    site.patch(columns={"max_versions": 2})
    site.add("v1", state=VersionState.FAILED)
    site.add("v2", state=None)
    site.add("v3")
    assert site.retire("v3") == []
    site.add("v4")
    assert site.retire("v4") == ["v1"]
    assert site.retire("v4") == [], "what is being deleted does not count any more"


def test_versions_with_traffic_and_those_of_a_rollback_and_the_newest_stay(site: Site) -> None:
    for name in ("v1", "v2", "v3"):
        site.add(name)
    site.patch(columns={"max_versions": 1})
    site.split(v2=90, v1=10)
    site.split(v3=100)
    assert site.retire("v3") == []
    assert site.rollback() == {"v2": 90, "v1": 10}
    site.split(v2=100)
    site.split(v3=100)
    assert site.retire("v3") == ["v1"], "it would not get traffic by a rollback any more"
    site.add("v4", state=None)
    site.add("v5")
    site.split(v5=100)
    site.become("v4", VersionState.READY)
    assert site.retire("v4") == ["v2"], "v4 is older, but it has just become READY"
