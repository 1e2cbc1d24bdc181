"""``python -m lockstep.service``: the service process. `lockstep.service.lifecycle.up` starts it."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import json
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, final

import uvicorn
from sqlalchemy import Engine

from lockstep.clusters import AbstractCluster, open_cluster, read_choice
from lockstep.errors import AlreadyRunningError, LockstepError
from lockstep.home import Home
from lockstep.jobs.billing.prices import apply_prices
from lockstep.jobs.machines.catalogue import Catalogue, load_catalogue
from lockstep.jobs.parsing.yaml_documents import read_yaml
from lockstep.processes import ProcessIdentity
from lockstep.service.billing.spending import open_spending
from lockstep.service.billing.storage_meter import StorageMeter
from lockstep.service.context import ServiceContext
from lockstep.service.control.controller import Controller
from lockstep.service.control.leftovers import LeftoverUploader
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.front import Front
from lockstep.service.listening import LOOPBACK, bind, check_binding, local_url, read_certificate
from lockstep.service.notifications.posting import RestrictedPost
from lockstep.service.notifications.webhooks import Webhooks, read_webhooks
from lockstep.service.prediction.deployments import Deployments
from lockstep.service.prediction.request_logs import RequestLogs
from lockstep.service.prediction.routing import Routes
from lockstep.service.prediction.uses import LastUses
from lockstep.service.prediction.waking import Waking
from lockstep.service.problems import Problems
from lockstep.service.process.ends import record_unobserved_death
from lockstep.service.process.keeper import LOCK_FLAG, Keeper, write_keeper
from lockstep.service.security.job_folders import JobFolders, job_folders
from lockstep.service.security.users import decide_users, users_warning
from lockstep.service.security.vault import Vault
from lockstep.service.settings import BUDGETS, QUOTAS, Settings, home_name
from lockstep.service.store import (
    DATABASE_FAULTS,
    DemandStore,
    JobStore,
    KeyStore,
    Lease,
    ModelStore,
    NodeStore,
    SearchStore,
    SecretStore,
    SessionStore,
    SpendingStore,
    StoredSizeStore,
    UploadStore,
    WebhookStore,
    holder_of,
    open_database,
    take_password,
)
from lockstep.service.telemetry.scalars import ScalarCache
from lockstep.service.tuning.searches import Searches
from lockstep.serving.connections import LimitedProtocol
from lockstep.storage import open_bucket

LOGGER: Final = logging.getLogger("lockstep.service")
FLUSH_S: Final = 10.0
"""How long the end of the service waits until sampled requests are written, in seconds."""
SHUTDOWN_S: Final = 3
"""How long open requests are answered after SIGTERM, in seconds."""
GC_THRESHOLDS: Final = (5000, 20, 50)
"""After how many new objects garbage is collected; see `gc.set_threshold`. With 10,000 queued jobs, a full collection
takes 0.15 s, in which nobody gets an answer. With Python's thresholds there would be one every ten seconds.
"""
KEEP_ALIVE_S: Final = 15
"""How long a connection stays open without a request: longer than clients pause that look every 5 or 10 seconds."""
MAX_CONNECTIONS: Final = 1000
"""The maximum number of open connections. Requests beyond it are answered with status 503."""


def _parse(arguments: list[str]) -> tuple[Settings, int | None]:
    """Returns the settings, and the file descriptor of the lifecycle lock if the starting process passed one."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.service")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tls-certificate", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--database", default="")
    parser.add_argument("--max-running-jobs", type=int, required=True)
    parser.add_argument("--quotas", default="{}")
    parser.add_argument("--budgets", default="{}")
    parser.add_argument("--prices", type=Path)
    parser.add_argument("--webhooks", type=Path)  # the file and not its content: URLs may be secrets
    parser.add_argument("--allow-webhooks-to", action="append", default=[])
    parser.add_argument("--run-as", required=True)
    parser.add_argument("--kept-by-systemd", action="store_true")
    parser.add_argument(LOCK_FLAG, type=int)
    asked = parser.parse_args(arguments)
    settings = Settings(
        home=(home := Home(path=asked.home)),
        engine=read_choice(home, catalogue=load_catalogue()),
        host=asked.host,
        port=asked.port,
        tls_certificate=asked.tls_certificate,
        tls_key=asked.tls_key,
        bucket=asked.bucket,
        database=asked.database,
        max_running_jobs=asked.max_running_jobs,
        quotas=QUOTAS.validate_json(asked.quotas),
        budgets=BUDGETS.validate_json(asked.budgets),
        prices=asked.prices,
        webhooks=asked.webhooks,
        allow_webhooks_to=tuple(asked.allow_webhooks_to),
        run_as=asked.run_as,
        kept_by_systemd=asked.kept_by_systemd,
    )
    return settings, asked.lifecycle_descriptor


def _lock(home: Home) -> Any:
    """Creates the home if needed, and acquires its lock, which is held while the returned file is open."""
    home.create()
    file = home.lock.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise AlreadyRunningError(f"a service runs on {home.path} already", action="see `lockstep status`") from None
    return file


def _token(home: Home) -> str:
    """Returns the home's token. The first start creates it; only its owner can read it."""
    if not home.token.exists():
        partial = home.token.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
        partial.replace(home.token)
    return home.token.read_text().strip()


def _with_users(settings: Settings) -> Settings:
    """Returns the settings with the users that programs run as, and denies these users access to the home."""
    home, bucket = settings.home, settings.bucket
    pool, note = decide_users(settings.run_as, home=home, bucket=bucket, nodes_are_here=settings.engine.is_local)
    if pool is not None:
        os.umask(0o077)  # before any file is created that programs could otherwise read
        JobFolders(home=home, bucket=bucket, pool=pool).prepare()
    LOGGER.info("programs run %s", note)
    warning = users_warning(settings.run_as, pool=pool, note=note, nodes_are_here=settings.engine.is_local)
    return replace(settings, users=pool, users_note=note, users_warning=warning)


def _announce(settings: Settings, port: int, *, certificate: str | None) -> None:
    """Writes the service's address to the home."""
    home = settings.home
    url = local_url(settings.host, port=port, has_tls=settings.has_tls)
    document = {"url": url, "certificate": certificate, "process": ProcessIdentity.of_self().to_json()}
    for path, content in ((home.path / "port.json", port), (home.address, document)):
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content))
        partial.replace(path)
    LOGGER.info("serving at port %d", port)


def _remember_database(settings: Settings) -> None:
    """Records the database that the home uses, for `lockstep down` and the next `lockstep up`."""
    path = settings.home.database_choice
    if settings.database:
        partial = path.with_suffix(".partial")
        partial.write_text(settings.database)
        partial.replace(path)
    else:
        path.unlink(missing_ok=True)


def _build(settings: Settings) -> ServiceContext:
    home, problems = settings.home, Problems()
    # The password is removed from the environment first, so that engine, programs and servers do not inherit it.
    database = open_database(settings.database_url, password=take_password(os.environ))
    lease, keys = _lease(settings, database), KeyStore(database)
    check_binding(settings.host, has_tls=settings.has_tls, has_keys=keys.has_valid())
    catalogue = _catalogue(settings)
    cluster = open_cluster(settings.engine, home=home, catalogue=catalogue)
    cluster.start()
    nodes = NodeStore(database, guard=lease.check)
    provisioner = _provisioner(cluster, nodes=nodes, catalogue=catalogue, problems=problems)
    vault = Vault(store=SecretStore(database), key_path=home.secret_key)
    jobs, models, scalars = JobStore(database), ModelStore(database), ScalarCache()
    routes = Routes(models=models, jobs=jobs, vault=vault)
    controller = Controller(
        store=JobStore(database, guard=lease.check),
        models=models,
        lease=lease,
        vault=vault,
        cluster=cluster,
        catalogue=catalogue,
        settings=settings,
        provisioner=provisioner,
        spending=open_spending(
            store=SpendingStore(database, guard=lease.check),
            catalogue=catalogue,
            budgets=settings.budgets,
            quotas=settings.quotas,
        ),
        problems=problems,
    )
    return ServiceContext(
        settings=settings,
        token=_token(home),
        keys=keys,
        sessions=SessionStore(database),
        vault=vault,
        jobs=jobs,
        models=models,
        uploads=UploadStore(database),
        cluster=cluster,
        catalogue=catalogue,
        nodes=nodes,
        sizes=StoredSizeStore(database, guard=lease.check),
        provisioner=provisioner,
        controller=controller,
        deployments=_deployments(
            database, lease, settings=settings, cluster=cluster, catalogue=catalogue, wake=controller.wake
        ),
        scalars=scalars,
        searches=_searches(database, lease, settings=settings, scalars=scalars, wake=controller.wake),
        trials=SearchStore(database),
        routes=routes,
        waking=Waking(routes=routes, demands=DemandStore(database)),
        request_logs=RequestLogs(models=models, folders=job_folders(settings)),
        problems=problems,
        webhooks=_webhooks(database, lease, settings=settings, vault=vault),
        started_time_s=time.time(),
    )


def _webhooks(database: Engine, lease: Lease, *, settings: Settings, vault: Vault) -> Webhooks:
    return Webhooks(
        read_webhooks(settings.webhooks),
        store=WebhookStore(database, guard=lease.check),
        vault=vault,
        restricted_post=RestrictedPost(settings.webhook_targets),
    )


def _searches(
    database: Engine, lease: Lease, *, settings: Settings, scalars: ScalarCache, wake: Callable[[], object]
) -> Searches:
    return Searches(
        store=SearchStore(database, guard=lease.check),
        jobs=JobStore(database, guard=lease.check),
        scalars=scalars,
        bucket=settings.bucket,
        wake=wake,
    )


def _deployments(
    database: Engine,
    lease: Lease,
    *,
    settings: Settings,
    cluster: AbstractCluster,
    catalogue: Catalogue,
    wake: Callable[[], object],
) -> Deployments:
    return Deployments(
        models=ModelStore(database, guard=lease.check),
        jobs=JobStore(database, guard=lease.check),
        demands=DemandStore(database),
        cluster=cluster,
        catalogue=catalogue,
        bucket=settings.bucket,
        folder=settings.home.spool / "deployments",
        folders=job_folders(settings),
        wake=wake,
    )


def _provisioner(
    cluster: AbstractCluster, *, nodes: NodeStore, catalogue: Catalogue, problems: Problems
) -> Provisioner | None:
    if cluster.provisioning is None:
        return None
    return Provisioner(
        store=nodes, cluster=cluster, provisioning=cluster.provisioning, catalogue=catalogue, problems=problems
    )


def _catalogue(settings: Settings) -> Catalogue:
    catalogue = load_catalogue()
    if settings.prices is None:
        return catalogue
    document = read_yaml(settings.prices, flag="--prices")
    return apply_prices(catalogue, document=document, source=str(settings.prices))


def _lease(settings: Settings, database: Engine) -> Lease:
    """Returns the service's lease, not yet acquired. On SQLite, the home's lock excludes all other services.

    Raises:
        AlreadyRunningError: If the jobs of the database run on an engine that this service cannot reach.
    """
    home = home_name(settings.home)
    cluster = settings.engine.identity(home)
    holder = holder_of(database) if settings.database else None
    if holder is not None and holder.engine != cluster and (not holder.expired or JobStore(database).placed_jobs()):
        raise AlreadyRunningError(
            f"the jobs of this database run on another engine, {holder.engine}; its service: {holder.description}",
            action="use that home, or end its jobs with `lockstep down --cancel` there; services that are to stand in "
            "for each other need an engine that both reach",
        )
    return Lease(
        database,
        home=home,
        process=f"pid {os.getpid()}",
        cluster=cluster,
        is_exclusive=not settings.database,
    )


def _loops(context: ServiceContext, *, stop: threading.Event, has_lease: Callable[[], bool]) -> list[threading.Thread]:
    """Returns the threads of the service's loops, which are joined at shutdown."""
    uploader = LeftoverUploader(context.settings.home.spool, problems=context.problems)
    uses = LastUses(routes=context.routes, models=context.models)
    loops = [
        threading.Thread(target=context.controller.run, args=(stop,), name="controller"),
        threading.Thread(
            target=context.deployments.run, args=(stop,), kwargs={"has_lease": has_lease}, name="deployments"
        ),
        threading.Thread(target=context.searches.run, args=(stop,), kwargs={"has_lease": has_lease}, name="searches"),
        threading.Thread(target=uploader.run, args=(stop,), name="leftovers"),
        threading.Thread(target=uses.run, args=(stop,), name="uses"),
    ]
    if context.provisioner is not None:
        loops.append(threading.Thread(target=context.provisioner.run, args=(stop,), name="provisioner"))
    return loops


def _certificate(settings: Settings) -> str | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return read_certificate(settings.tls_certificate, key=settings.tls_key)


@final
class _Server(uvicorn.Server):
    """A server that says when it begins to shut down: it waits for the requests that are being answered.

    Args:
        config: how it is set.
        ending: set when it begins to shut down.
    """

    def __init__(self, config: uvicorn.Config, *, ending: threading.Event) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._ending.set()
        super().handle_exit(sig, frame)


def _server(context: ServiceContext) -> uvicorn.Server:
    """Returns the server of the REST interface. SIGTERM and SIGINT end it."""
    config = uvicorn.Config(
        Front(context),
        http=LimitedProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        limit_concurrency=MAX_CONNECTIONS,
        ssl_certfile=context.settings.tls_certificate,
        ssl_keyfile=context.settings.tls_key,
    )
    server = _Server(config, ending=context.ending)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    return server


def serve(settings: Settings, *, lifecycle_descriptor: int | None = None) -> None:
    """Runs the service until SIGTERM or SIGINT. Jobs and prediction servers continue without it.

    Args:
        settings: the settings.
        lifecycle_descriptor: the file descriptor of the home's lifecycle lock; None if it is not held. The lock is
            held until the service has written its address, so `lockstep down` waits for that, even if the process
            that started the service has died.

    Raises:
        LockstepError: If the service cannot start.
    """
    if lifecycle_descriptor is not None:
        os.set_inheritable(lifecycle_descriptor, False)  # an engine that inherits the lock would hold it while it runs
    lock = _lock(settings.home)
    record_unobserved_death(settings.home)
    if settings.kept_by_systemd:
        write_keeper(settings.home, Keeper(process=ProcessIdentity.of_self(), is_systemd=True))
    settings = _with_users(settings)
    certificate = _certificate(settings)
    listener = bind(settings.host, port=settings.port, home=settings.home)
    open_bucket(settings.bucket).check_writable()
    context = _build(settings)
    _remember_database(settings)
    lease = context.controller.lease
    meter = StorageMeter(bucket=open_bucket(settings.bucket), sizes=context.sizes)

    def has_lease() -> bool:
        return lease.generation is not None

    stop = threading.Event()
    loops = _loops(context, stop=stop, has_lease=has_lease)
    server = _server(context)
    request_logs = threading.Thread(target=context.request_logs.run, args=(stop,), name="requests", daemon=True)
    request_logs.start()
    # A daemon thread, which is not joined: a bucket that does not answer would delay the shutdown.
    threading.Thread(
        target=meter.run, args=(stop,), kwargs={"has_lease": has_lease}, name="storage", daemon=True
    ).start()
    context.webhooks.start(stop, has_lease=has_lease)
    for loop in loops:
        loop.start()
    listener.listen()  # from here on, clients can connect, and wait until the server accepts them
    _announce(settings, listener.getsockname()[1], certificate=certificate)
    if lifecycle_descriptor is not None:
        os.close(lifecycle_descriptor)
    # The objects that exist now stay: garbage collections that traversed all of them delayed requests by 125 ms.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        server.run(sockets=[listener])
    finally:
        stop.set()
        context.controller.wake()
        for loop in loops:
            loop.join()
        context.webhooks.join()
        with contextlib.suppress(*DATABASE_FAULTS):  # otherwise the lease expires
            lease.release()
        request_logs.join(FLUSH_S)  # a bucket may not answer
        context.cluster.close()
        settings.home.address.unlink(missing_ok=True)
        lock.close()


def start_log() -> None:
    """Configures the log of this process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request with its whole URL: webhooks' too


def main() -> int:
    """Runs the service; returns its exit code."""
    start_log()
    try:
        settings, lifecycle_descriptor = _parse(sys.argv[1:])
        serve(settings, lifecycle_descriptor=lifecycle_descriptor)
    except LockstepError as error:
        sys.stderr.write(f"lockstep.service: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
