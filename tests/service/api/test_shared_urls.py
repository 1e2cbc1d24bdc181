"""The REST interface refuses places that its own process and a job's programs would not both find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.errors import InvalidInputError
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.security.access import HOME_PRINCIPAL
from lockstep.service.api.control.jobs import create
from lockstep.service.api.prediction.models import create_version
from lockstep.service.context import ServiceContext
from lockstep.service.notifications.posting import post
from lockstep.service.notifications.webhooks import Webhooks
from lockstep.service.prediction.deployments import Deployments
from lockstep.service.prediction.request_logs import RequestLogs
from lockstep.service.prediction.routing import Routes
from lockstep.service.prediction.waking import Waking
from lockstep.service.store import (
    DemandStore,
    KeyStore,
    ModelStore,
    NodeStore,
    SearchStore,
    SessionStore,
    StoredSizeStore,
    UploadStore,
    WebhookStore,
    open_database,
)
from lockstep.service.telemetry.scalars import ScalarCache
from lockstep.testing.bench import Bench


@pytest.fixture
def context(bench: Bench) -> Iterator[ServiceContext]:
    database = open_database(f"sqlite:///{bench.home.database}")
    models = ModelStore(database)
    routes = Routes(models=models, jobs=bench.store, vault=bench.vault)
    yield ServiceContext(
        settings=bench.settings,
        token="t",
        keys=KeyStore(database),
        sessions=SessionStore(database),
        vault=bench.vault,
        jobs=bench.store,
        models=models,
        uploads=UploadStore(database),
        nodes=NodeStore(database),
        sizes=StoredSizeStore(database),
        provisioner=None,
        cluster=bench.cluster,
        catalogue=load_catalogue(),
        controller=bench.controller,
        deployments=Deployments(
            models=models,
            jobs=bench.store,
            demands=DemandStore(database),
            cluster=bench.cluster,
            catalogue=load_catalogue(),
            bucket=bench.settings.bucket,
            folder=bench.home.spool / "deployments",
            wake=bench.controller.wake,
        ),
        scalars=ScalarCache(),
        searches=bench.searches,
        trials=SearchStore(database),
        routes=routes,
        request_logs=RequestLogs(models=models),
        waking=Waking(routes=routes, demands=DemandStore(database)),
        problems=bench.problems,
        webhooks=Webhooks({}, store=WebhookStore(database), vault=bench.vault, restricted_post=post),
        started_time_s=0.0,
    )
    database.dispose()


@pytest.mark.parametrize("url", ["out", "./out", "../out", "memory://out"])
@pytest.mark.parametrize("field", ["jobDir", "packageUris"])
def test_a_job_names_places_that_all_processes_find(context: ServiceContext, field: str, url: str) -> None:
    value: Any = [url] if field == "packageUris" else url
    body = {"jobId": "j", "trainingInput": {"scaleTier": "BASIC", "pythonModule": "m", field: value}}
    with pytest.raises(InvalidInputError, match=rf"^trainingInput\.{field}.*: must mean the same place"):
        create(project="local", body=body, context=context, principal=HOME_PRINCIPAL)
    assert context.jobs.unfinished() == []


def test_a_versions_packages_lie_where_all_processes_find_them(context: ServiceContext) -> None:
    context.models.create_model(project="local", name="m", description="", labels={})
    body = {"name": "v1", "deploymentUri": "/m", "packageUris": ["/p.tar.gz", "p.whl"]}
    with pytest.raises(InvalidInputError, match=r"^packageUris\.1: must mean the same place"):
        create_version(project="local", model="m", body=body, context=context, principal=HOME_PRINCIPAL)
    assert context.models.list_versions(project="local", model="m") == []


@pytest.mark.parametrize("url", ["model", "memory://model"])
def test_a_version_names_a_place_that_all_processes_find(context: ServiceContext, url: str) -> None:
    context.models.create_model(project="local", name="m", description="", labels={})
    with pytest.raises(InvalidInputError, match=r"^deploymentUri: must mean the same place"):
        create_version(
            project="local",
            model="m",
            body={"name": "v1", "deploymentUri": url},
            context=context,
            principal=HOME_PRINCIPAL,
        )
    assert context.models.list_versions(project="local", model="m") == []
