"""The REST interface over a bench, served on the loopback interface, and clients for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import google.oauth2.credentials
import google_auth_httplib2
import httplib2
import httpx
import uvicorn
from googleapiclient.discovery import build
from sqlalchemy import Engine

from lockstep.doctor import Diagnosis
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.security.access import ALL_PROJECTS, Principal, Scope
from lockstep.service.checkup import Checkup
from lockstep.service.context import ServiceContext
from lockstep.service.front import Front
from lockstep.service.notifications.posting import RestrictedPost
from lockstep.service.notifications.webhooks import Operators, Webhooks
from lockstep.service.prediction.deployments import Deployments
from lockstep.service.prediction.request_logs import RequestLogs
from lockstep.service.prediction.routing import Routes
from lockstep.service.prediction.waking import Waking
from lockstep.service.security.keys import digest, make_key
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

HOME_TOKEN = "secret-of-the-test"
WAIT_S = 60.0
"""How long a client waits for a response, in seconds. httpx's 5 s pass on a machine that is busy."""


@final
class Served:
    """A served application, and clients for it.

    Args:
        bench: the bench to serve.
        certificate: the files of a certificate and of its key, for TLS.
        database: the database of the bench. By default, the home's own SQLite file.
        operators: the operator's webhooks.
    """

    def __init__(
        self,
        bench: Bench,
        *,
        certificate: tuple[Path, Path] | None = None,
        database: Engine | None = None,
        operators: Operators | None = None,
    ) -> None:
        database = database or open_database(f"sqlite:///{bench.home.database}")
        models, demands = ModelStore(database), DemandStore(database)
        routes = Routes(models=models, jobs=bench.store, vault=bench.vault)
        self.context = ServiceContext(
            checkup=Checkup(examine=lambda _: Diagnosis()),  # of no machine: tests of it have a process do it
            settings=bench.settings,
            token=HOME_TOKEN,
            keys=KeyStore(database),
            sessions=SessionStore(database),
            vault=bench.vault,
            jobs=bench.store,
            models=models,
            uploads=UploadStore(database),
            nodes=NodeStore(database),
            sizes=StoredSizeStore(database),
            cluster=bench.cluster,
            catalogue=load_catalogue(),
            provisioner=bench.provisioner,
            controller=bench.controller,
            deployments=Deployments(
                models=models,
                jobs=bench.store,
                demands=demands,
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
            waking=Waking(routes=routes, demands=demands),
            request_logs=RequestLogs(models=models),
            problems=bench.problems,
            webhooks=Webhooks(
                operators or {},
                store=WebhookStore(database),
                vault=bench.vault,
                restricted_post=RestrictedPost(bench.settings.webhook_targets),
            ),
            started_time_s=0.0,
        )
        self.front = Front(self.context)
        self.app: Any = self.front.api
        file, key = certificate or (None, None)
        config = uvicorn.Config(self.front, port=0, log_level="critical", ssl_certfile=file, ssl_keyfile=key)
        self.server = uvicorn.Server(config)
        self._ended = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.001)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
        self.closing: list[Callable[[], object]] = [database.dispose]
        self.http = self.client(HOME_TOKEN)

    def client(self, token: str | None) -> httpx.Client:
        """Returns an HTTP client that sends a key, or no key for None."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        made = httpx.Client(base_url=self.url, headers=headers, verify=False, timeout=WAIT_S)
        self.closing.append(made.close)
        return made

    def key(
        self,
        scope: Scope,
        *,
        project: str = ALL_PROJECTS,
        label: str = "ann",
        expire_time_s: float | None = None,
        **limits: Any,
    ) -> str:
        """Creates a key, and returns its secret. `limits` are further fields of its principal."""
        made = make_key()
        principal = Principal(label=label, scope=scope, project=project, key_id=made.id, **limits)
        self.context.keys.create(
            made.id, digest=digest(made.secret), principal=principal, created_by="test", expire_time_s=expire_time_s
        )
        return made.secret

    def google(self, token: str = HOME_TOKEN, *, connections: httplib2.Http | None = None) -> Any:
        """Returns the `projects` resource of Google's own client."""
        connections = connections or httplib2.Http()
        self.closing.append(connections.close)
        credentials = google.oauth2.credentials.Credentials(token)
        http = google_auth_httplib2.AuthorizedHttp(credentials, http=connections)
        options = {"api_endpoint": self.url}
        return build("ml", "v1", static_discovery=True, client_options=options, http=http).projects()

    def close(self) -> None:
        """Closes all clients and the database, and stops the server."""
        for close in self.closing:
            close()
        self._ended.set()
        self.thread.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self.server.config.get_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Serves until the end, as uvicorn's own `serve` does, which takes a fifth of a second to notice it."""
        self.server.config.load()
        self.server.lifespan = self.server.config.lifespan_class(self.server.config)
        await self.server.startup()
        await self.server.on_tick(0)  # makes the headers of all responses
        while not self._ended.is_set():
            await asyncio.sleep(0.01)
        for listening in self.server.servers:
            listening.close()
        state, deadline = self.server.server_state, time.monotonic() + WAIT_S
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await self.server.lifespan.shutdown()
