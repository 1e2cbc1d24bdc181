"""Which version and which servers a request gets, without the database if it was read a moment ago."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from lockstep.errors import NotFoundError, UnavailableError
from lockstep.home import Home
from lockstep.jobs.running.orders import ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.states import JobState
from lockstep.service.prediction.routing import FORGET_S, MAX_AGE_S, NoServerReadyError, Routes
from lockstep.service.security.vault import Vault
from lockstep.service.store import (
    JobKind,
    JobRecord,
    ModelChanges,
    ModelStore,
    ReplicaRecord,
    SecretStore,
    VersionState,
    open_database,
)

WAIT_S = 20.0


class Servers:
    """The prediction servers, as the store of jobs has them: one for each version, unless it was taken away."""

    def __init__(self) -> None:
        self.uids: dict[str, str] = {}
        self.num_reads = 0
        self.may_read = threading.Event()
        self.may_read.set()

    def servers(self) -> list[JobRecord]:
        self.num_reads += 1
        assert self.may_read.wait(WAIT_S)
        return [_server(name, version_uid=uid) for name, uid in self.uids.items()]


def _server(name: str, *, version_uid: str) -> JobRecord:
    status = ReplicaStatus(
        name="master-replica-0", phase=ReplicaPhase.RUNNING, host="node", address=f"{name}:80", ready_time_s=1.0
    )
    return JobRecord(
        uid=f"server-of-{name}",
        project="p",
        job_id=f"m/{name}/1",
        kind=JobKind.SERVER,
        training_input={},
        labels={},
        state=JobState.RUNNING,
        version=1,
        create_time_s=0.0,
        replicas=(ReplicaRecord(status=status, machine_type="n1-standard-4"),),
        version_uid=version_uid,
    )


class Site:
    """A model with versions v1, v2 and v3, whose clock the test moves."""

    def __init__(self, path: Path) -> None:
        home = Home(path=path)
        self.database: Engine = open_database(f"sqlite:///{path}/lockstep.db")
        self.models, self.servers, self.now_s = ModelStore(self.database), Servers(), 100.0
        self.routes = Routes(
            models=self.models,
            jobs=self.servers,  # type: ignore[arg-type]
            vault=Vault(store=SecretStore(self.database), key_path=home.secret_key),
            clock=lambda: self.now_s,
            shuffle=random.Random(1).shuffle,
        )
        self.models.create_model(project="p", name="m", description="", labels={})
        for name in ("v1", "v2", "v3"):
            self.add(name)
        self.num_statements = 0
        event.listen(self.database, "before_cursor_execute", self._count)

    def _count(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        self.num_statements += statement.startswith("SELECT")

    def add(self, name: str) -> None:
        self.models.create_version(
            project="p", model="m", name=name, description="", labels={}, deployment_uri="/m", machine_type="t"
        )
        version = self.models.get_version(project="p", model="m", name=name)
        assert self.models.update_version(version, state=VersionState.READY)
        self.servers.uids[name] = version.uid

    def split(self, **percents: int) -> None:
        def change(_: object) -> ModelChanges:
            return ModelChanges(split=percents)

        self.models.patch_model(project="p", name="m", change=change, changed_by="ann")

    def send(self, version: str | None = None, *, kept: str | None = None) -> str:
        """Returns the version that a request gets, after a check of its server."""
        route = asyncio.run(self.routes.route(project="p", model="m", version=version, kept=kept))
        assert [server.url for server in route.servers] == [f"http://{route.version}:80"]
        return route.version


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.database.dispose()


def test_requests_are_split_exactly_however_often_the_database_is_read(site: Site) -> None:
    assert {site.send() for _ in range(5)} == {"v1"}, "the first that was ready has all traffic"
    site.split(v1=70, v2=20, v3=10)
    site.now_s += MAX_AGE_S
    counted: Counter[str] = Counter()
    for _ in range(1000):
        counted[site.send()] += 1
        site.now_s += MAX_AGE_S / 7
    assert counted == {"v1": 700, "v2": 200, "v3": 100}
    assert {site.send("v3") for _ in range(5)} == {"v3"}, "a request that names a version gets it"


def test_a_change_of_the_traffic_is_noticed_in_time(site: Site) -> None:
    assert site.send() == "v1"
    site.split(v2=100)
    assert site.send() == "v1"
    site.now_s += MAX_AGE_S
    assert site.send() == "v2"


def test_what_was_just_read_is_not_read_again(site: Site) -> None:
    site.split(v1=50, v2=50)
    assert {site.send() for _ in range(2)} == {"v1", "v2"}
    site.num_statements = site.servers.num_reads = 0
    for _ in range(20):
        site.send()
    assert (site.num_statements, site.servers.num_reads) == (0, 0)


def test_requests_at_the_same_time_share_the_reads(site: Site) -> None:
    site.send()

    async def send_many() -> None:
        route = site.routes.route
        sent = [asyncio.create_task(route(project="p", model="m", version=None)) for _ in range(200)]
        assert {found.version for found in await asyncio.gather(*sent)} == {"v1"}

    for _ in range(3):
        site.now_s += MAX_AGE_S
        site.num_statements = site.servers.num_reads = 0
        asyncio.run(send_many())
        assert site.servers.num_reads == 1
        assert site.num_statements <= 3, "the model, the version, and what a connection asks first"


def test_threads_at_the_same_time_share_the_read_of_the_servers(site: Site) -> None:
    site.servers.may_read.clear()

    def find(version: str) -> None:
        site.routes.find(project="p", model="m", version=version)

    threads = [threading.Thread(target=find, args=(name,)) for name in ("v1", "v2", "v3")]
    for thread in threads:
        thread.start()
    site.servers.may_read.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert site.servers.num_reads == 1


def test_a_request_keeps_its_version_while_that_has_traffic(site: Site) -> None:
    site.split(v1=50, v2=50)
    assert {site.send(kept="v1") for _ in range(10)} == {"v1"}
    site.split(v2=50, v3=50)
    site.now_s += MAX_AGE_S
    assert {site.send(kept="v1") for _ in range(10)} == {"v2", "v3"}


def test_the_share_of_a_version_without_servers_goes_to_no_other(site: Site) -> None:
    site.split(v1=90, v2=10)
    del site.servers.uids["v2"]
    counted: Counter[str] = Counter()
    for _ in range(100):
        try:
            counted[site.send()] += 1
        except NoServerReadyError as error:
            counted[f"no server of {error.version.name}"] += 1
    assert counted == {"v1": 90, "no server of v2": 10}


def test_a_version_that_gets_traffic_as_soon_as_it_is_ready_has_its_server_found(site: Site) -> None:
    site.send("v1")
    site.now_s += MAX_AGE_S * 0.4
    site.send()
    site.now_s += MAX_AGE_S * 0.7
    site.send("v1")  # the servers are read now, and the traffic earlier
    site.add("v4")
    site.split(v4=100)
    site.now_s += MAX_AGE_S * 0.4
    assert site.send() == "v4"


@pytest.mark.parametrize("removed", [False, True])
def test_a_request_never_fails_because_its_version_was_deleted_after_the_traffic_had_left_it(
    site: Site, removed: bool
) -> None:
    site.send("v1")
    site.now_s += MAX_AGE_S * 0.6
    site.send()  # the traffic is read later than the version
    site.split(v2=100)
    site.models.begin_delete_version(project="p", model="m", name="v1")
    if removed:
        site.models.remove_version(site.models.get_version(project="p", model="m", name="v1"))
    site.now_s += MAX_AGE_S * 0.6
    assert site.send() == "v2"
    with pytest.raises((NoServerReadyError, NotFoundError)):
        site.send("v1")


def test_a_model_without_traffic_says_so_at_once_and_answers_again_when_it_has_some(site: Site) -> None:
    site.split()
    with pytest.raises(UnavailableError, match="the newest of its versions, v3, is READY; give it traffic"):
        site.send()
    site.split(v3=100)
    assert site.send() == "v3"
    with pytest.raises(NotFoundError, match="no model 'other'"):
        asyncio.run(site.routes.route(project="p", model="other", version=None))


def test_decks_of_models_without_requests_are_forgotten(site: Site) -> None:
    site.send()
    assert site.routes._decks
    site.now_s += FORGET_S
    site.send("v1")
    assert not site.routes._decks


def test_open_requests_count_for_the_order_of_servers(site: Site) -> None:
    site.servers.uids = dict.fromkeys(("a", "b"), site.servers.uids["v1"])
    first, second = site.routes.find(project="p", model="m", version="v1")
    site.routes.begin(first)
    route = asyncio.run(site.routes.route(project="p", model="m", version=None))
    assert route.servers == [second, first]
    site.routes.end(first)
