"""What code of a version's package may do: never more than a job's program on the same machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.clusters import EngineChoice
from lockstep.home import Home
from lockstep.service.prediction.version_code import code_rules
from lockstep.service.security.users import UserPool
from lockstep.service.settings import Settings
from lockstep.service.store import ModelStore, VersionRecord, open_database
from lockstep.serving import ServerCode


@pytest.fixture
def version(tmp_path: Path) -> VersionRecord:
    database = open_database(f"sqlite:///{tmp_path / 'd.db'}")
    models = ModelStore(database)
    models.create_model(project="p", name="m", description="", labels={})
    models.create_version(
        project="p",
        model="m",
        name="v1",
        description="",
        labels={},
        deployment_uri="/m.keras",
        machine_type="n1-standard-4",
        package_uris=["/p.tar.gz"],
        python_module="train",
    )
    made = models.get_version(project="p", model="m", name="v1")
    database.dispose()
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=Home(path=tmp_path), bucket=str(tmp_path / "bucket"))


def test_a_version_without_packages_is_served_as_before(settings: Settings, version: VersionRecord) -> None:
    rules = code_rules(replace(settings, users=UserPool(first=59000, last=59999)))
    assert rules.server_code(replace(version, package_uris=[]), taken=()) == ServerCode()


def test_where_jobs_programs_run_as_the_services_user_a_package_does_too(
    settings: Settings, version: VersionRecord
) -> None:
    code = code_rules(settings).server_code(version, taken=())
    assert (code.user, code.refusal, code.packages, code.program) == (None, None, ("/p.tar.gz",), "train")


def test_where_no_job_runs_on_the_services_machine_no_code_does(settings: Settings, version: VersionRecord) -> None:
    away = replace(settings, engine=EngineChoice(name="attached", address="10.0.0.1:6379"))
    code = code_rules(away).server_code(version, taken=())
    assert code.user is None
    assert "on a machine where no job's program runs" in (code.refusal or "")


def test_users_of_servers_are_no_jobs_and_each_one_versions(settings: Settings, version: VersionRecord) -> None:
    pool = UserPool(first=59000, last=59019)
    assert pool.of_servers == UserPool(first=59018, last=59019)
    assert pool.of_jobs == UserPool(first=59000, last=59017)
    rules = code_rules(replace(settings, users=pool))
    first = rules.server_code(version, taken=()).user
    assert first is not None
    assert {first, rules.server_code(version, taken={first}).user} == {59018, 59019}
    assert "no user id of 59018-59019 is free" in (rules.server_code(version, taken={59018, 59019}).refusal or "")


def test_a_pool_of_fewer_than_ten_users_has_none_for_servers(settings: Settings, version: VersionRecord) -> None:
    pool = UserPool(first=59000, last=59008)
    assert (pool.of_jobs, pool.of_servers) == (pool, None)
    code = code_rules(replace(settings, users=pool)).server_code(version, taken=())
    assert code.user is None
    assert "59000-59008, are fewer than ten" in (code.refusal or "")
