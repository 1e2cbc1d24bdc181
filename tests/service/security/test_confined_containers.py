"""A version in a container, in a service whose programs have users of their own; the engine only acts as one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import httpx
import psutil
import pytest
from tests.service.conftest import IMAGE
from tests.service.prediction.test_container_versions import SERVER
from tests.service.security.confined import IS_ROOT, POOL, Place, Site, processes_of

from lockstep.jobs.running.order_parts import ContainerRoutes
from lockstep.processes.ports import reserve_address
from lockstep.service.prediction.routing import Routes
from lockstep.service.store import VersionContainer, VersionState
from lockstep.testing.container_engine import FakeContainerEngine

pytestmark = IS_ROOT


@pytest.fixture
def port() -> Iterator[int]:
    with closing(reserve_address("127.0.0.1")) as held:
        yield int(held.address.rpartition(":")[2])


@pytest.mark.heavy
def test_the_gateway_is_a_user_of_its_own_and_ends_with_the_version(
    site: Site, place: Place, engine: FakeContainerEngine, port: int
) -> None:
    site.models.create_model(project="mine", name="m", description="", labels={})
    site.models.create_version(
        project="mine",
        model="m",
        name="v1",
        description="",
        labels={},
        deployment_uri="",
        machine_type="n1-standard-4",
        container=VersionContainer(
            image=IMAGE,
            command=(str(place.python), "-c", SERVER),
            arguments=("$(AIP_HTTP_PORT)",),
            routes=ContainerRoutes(port=port, predict="/predict", health="/alive"),
        ),
    )
    site.step_until(lambda: site.version.state is VersionState.READY)
    users = range(POOL.first, POOL.last + 1)
    (gateway,) = processes_of(users)
    assert any(word.startswith("--container=") for word in gateway.cmdline())
    assert gateway.uids().real == gateway.uids().saved == gateway.gids().real
    routes = Routes(models=site.models, jobs=site.bench.store, vault=site.bench.vault)
    (address,) = routes.find(project="mine", model="m", version="v1")
    headers = {"authorization": f"Bearer {address.token}"}
    answer = httpx.post(f"{address.url}/predict", json={"instances": [7]}, headers=headers, timeout=60)
    assert answer.json()["predictions"] == [7]
    pid = site.server.replicas[0].status.pid
    assert pid is not None
    assert psutil.Process(pid).uids().real == 0, "this engine isolates nothing"
    site.delete()
    assert processes_of(users) == []
    assert engine.containers() == []
