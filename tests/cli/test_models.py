"""The commands on deployed models, against the real REST interface. No prediction server runs."""

from __future__ import annotations

import http.server
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.validating import validated
from tests.service.recorded_servers import make_ready, record_server, report
from typer.testing import CliRunner, Result

from lockstep.cli import undeploy
from lockstep.cli.app import app
from lockstep.cli.operations import split_version
from lockstep.errors import (
    ConfigError,
    InvalidInputError,
    LockstepError,
    NotFoundError,
    UnavailableError,
    WrongStateError,
)
from lockstep.home import Home
from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType
from lockstep.jobs.running.metrics import Sample, encode_sample
from lockstep.jobs.running.order_parts import ContainerRoutes, FileOrder
from lockstep.jobs.running.orders import ReplicaPhase
from lockstep.jobs.scheduling import NodeSpec
from lockstep.runner.series import sample_key
from lockstep.service.control.job_urls import metrics_url
from lockstep.service.prediction.servers import server_name
from lockstep.service.settings import Settings
from lockstep.service.store import (
    Batching,
    JobRecord,
    RequestLogging,
    ScalingPolicy,
    VersionContainer,
    VersionRecord,
    VersionState,
)
from lockstep.storage import open_bucket
from lockstep.testing.bench import Bench, open_bench
from lockstep.testing.served import HOME_TOKEN, Served

BOX = NodeSpec(name="box", node_type="box", resources={"vcpus": 8, "memory_mib": 32_768})


class Site:
    """A served bench with a model, and the command line on it."""

    def __init__(self, bench: Bench, served: Served, folder: Path) -> None:
        self.bench = bench
        self.served = served
        self.file = folder / "net.keras"
        self.file.write_text("a model")
        self.models = served.context.models
        self.models.create_model(project="local", name="m", description="of the test", labels={"team": "a"})

    def version(self, name: str, *, state: VersionState | None = VersionState.READY, **fields: Any) -> None:
        """Records a version: CREATING if no state is given."""
        self.models.create_version(
            project="local",
            model="m",
            name=name,
            description="",
            labels={},
            **{"deployment_uri": str(self.file), "machine_type": "n1-standard-4", **fields},
        )
        if state is not None:
            record = self.models.get_version(project="local", model="m", name=name)
            assert self.models.update_version(record, state=state, error_message="it broke" * (state == "FAILED"))

    def record(self, name: str) -> VersionRecord:
        return self.models.get_version(project="local", model="m", name=name)

    def serve(self, name: str) -> JobRecord:
        """Records a server of a version that is ready, though no process runs."""
        if not self.record(name).has_files:
            files = (FileOrder(url=str(self.file), name="net.keras", sha256="0"),)
            assert self.models.update_version(self.record(name), files=files)
        jobs = self.served.context.jobs
        return make_ready(jobs, record_server(jobs, self.record(name), bucket=str(self.bench.home.bucket)))

    def step(self) -> None:
        self.served.context.deployments.step()
        self.bench.step()

    def names(self) -> list[str]:
        return [record.name for record in self.models.list_versions()]

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    home = Home(path=tmp_path / "home")
    home.path.mkdir()
    with open_bench(Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)) as bench:
        bench.cluster.set_nodes((BOX,), in_use={"box": BOX.resources})  # so that no server starts
        served = Served(bench)
        monkeypatch.setenv("LOCKSTEP_URL", served.url)
        monkeypatch.setenv("LOCKSTEP_TOKEN", HOME_TOKEN)
        yield Site(bench, served, tmp_path)
        served.close()


@pytest.fixture
def deploying(site: Site) -> Iterator[Site]:
    """The site, with the loops that advance versions and servers."""
    stop = threading.Event()

    def advance() -> None:
        while not stop.wait(0.02):
            site.step()

    thread = threading.Thread(target=advance)
    thread.start()
    yield site
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def test_models_are_listed_with_their_default_versions(site: Site) -> None:
    assert site.run("models", "list").stdout.splitlines()[1].split() == ["m", "-", "-", "-", "-", "of", "the", "test"]
    site.version("v1")
    (line,) = [line for line in site.run("models", "list", "--filter", "name:m").stdout.splitlines()[1:] if line]
    assert line.split()[:4] == ["m", "v1", "READY", "0/1"]
    site.serve("v1")
    line = site.run("models", "list").stdout.splitlines()[1]
    assert line.split()[:4] == ["m", "v1", "READY", "1/1"]
    assert site.run("models", "list", "--filter", "name:other").stdout == "no models\n"


def test_versions_are_listed_with_what_they_wait_for_or_why_they_failed(site: Site) -> None:
    assert site.run("models", "versions", "m").stdout == "model m has no versions\n"
    site.version("good")
    site.version("bad", state=VersionState.FAILED)
    site.version("new", state=None)
    for _ in range(3):  # its file is copied, its server is recorded, and finds no place
        site.step()
    rows = {line.split()[0]: line for line in site.run("models", "versions", "m").stdout.splitlines()}
    assert rows["good"].split()[1:5] == ["READY", "100%", "0/1", "n1-standard-4"]
    assert rows["bad"].split()[1:4] == ["FAILED", "0%", "0/1"]
    assert rows["bad"].rstrip().endswith("it broke")
    waits = site.served.http.get("/v1/projects/local/models/m/versions/new").json()["lockstep"]["waitingFor"]
    assert rows["new"].rstrip().endswith(waits)
    shown = site.run("models", "describe", "m/new").stdout
    assert shown.startswith("version m/new: CREATING\n")
    assert f"waiting for: {waits}" in shown
    with pytest.raises(NotFoundError, match="no model"):
        site.run("models", "versions", "other")


def test_a_model_and_a_version_are_described(site: Site) -> None:
    site.version("v1")
    shown = site.run("models", "describe", "m").stdout
    for line in ("description: of the test", "labels: team=a", "default version: v1 (READY)", "versions: v1"):
        assert line in shown
    shown = site.run("models", "describe", "m/v1").stdout
    assert "version m/v1 (default): READY" in shown
    assert f"model file: {site.file}" in shown
    assert json.loads(site.run("models", "describe", "m", "--json").stdout)["name"] == "projects/local/models/m"
    assert json.loads(site.run("models", "describe", "m/v1", "--json").stdout)["isDefault"] is True


def test_a_version_that_scales_shows_its_servers_its_bounds_and_what_they_follow(site: Site) -> None:
    policy = ScalingPolicy(min_servers=0, max_servers=4, cpu_percent=70, requests_per_server=2.5)
    site.version("auto", scaling=policy)
    assert site.models.update_version(site.record("auto"), num_servers=2)
    server = site.serve("auto")
    lines = site.run("models", "versions", "m").stdout.splitlines()
    assert lines[1].split()[:5] == ["auto", "READY", "100%", "1/2", "(0-4)"]
    shown = site.run("models", "describe", "m/auto").stdout
    assert "  servers: 1 of 2 ready\n" in shown
    assert "  number of servers: 0 to 4 by load: CPU usage 70%, 2.5 open requests for each\n" in shown
    assert "1/2 (0-4)" in site.run("models", "list").stdout
    report(site.served.context.jobs, server, phase=ReplicaPhase.SETUP, ready_time_s=None)
    shown = site.run("models", "describe", "m/auto").stdout
    assert f"waiting for: server {server_name(server)}, which gets its files and packages\n" in shown
    assert "  servers: 0 of 2 ready\n" in shown


def test_what_a_container_or_a_routine_serves_is_described(site: Site) -> None:
    routes = ContainerRoutes(port=9000, predict="/p", health="/h")
    container = VersionContainer(image="reg/server:1", command=("serve",), arguments=("--x", "1"), routes=routes)
    accelerator = AcceleratorConfig(count=2, type=AcceleratorType.NVIDIA_TESLA_T4)
    logging = RequestLogging(sampling=0.1, url="gs://b/requests")
    site.version("own", container=container, deployment_uri="", accelerator=accelerator, request_logging=logging)
    shown = site.run("models", "describe", "m/own").stdout
    for line in (
        "machine type: n1-standard-4 with 2 x NVIDIA_TESLA_T4",
        "image: reg/server:1",
        "command: serve",
        "arguments: --x 1",
        "port: 9000",
        "routes: /p (predictions), /h (health)",
        "logged requests: 10% of all, to gs://b/requests",
    ):
        assert f"  {line}\n" in shown
    assert "model file" not in shown
    assert "files:" not in shown
    site.version("batched", batching=Batching(max_batch_size=128, max_latency_s=0.005))
    shown = site.run("models", "describe", "m/batched").stdout
    assert "  batches: up to 128 instances, which wait 0.005s\n" in shown
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    site.version(
        "routine",
        prediction_class="a.Predictor",
        framework="SCIKIT_LEARN",
        python_version=python,
        package_uris=["/p.whl"],
    )
    shown = site.run("models", "describe", "m/routine").stdout
    for line in (
        "prediction class: a.Predictor",
        "framework: SCIKIT_LEARN",
        f"Python version: {python}",
        f"files: {site.file}",
        "package: /p.whl",
        "number of servers: fixed",
    ):
        assert f"  {line}\n" in shown


def test_the_bounds_of_a_number_of_servers_are_changed(site: Site) -> None:
    site.version("auto", scaling=ScalingPolicy(min_servers=1, max_servers=2))
    site.serve("auto")
    done = site.run("models", "scale", "m/auto", "--min-nodes", "0", "--max-nodes", "5")
    assert done.stdout.startswith("version m/auto has 1 prediction server: 0 to 5 by load: ")
    scaled = validated("models scale", site.run("models", "scale", "m/auto", "--max-nodes", "3", "--json").stdout)
    assert scaled["autoScaling"]["maxNodes"] == 3
    policy = site.record("auto").scaling
    assert policy is not None
    assert (policy.min_servers, policy.max_servers) == (0, 3)
    with pytest.raises(ConfigError, match=r"autoScaling.maxNodes; received 3; allowed: minNodes, 4, to 100"):
        site.run("models", "scale", "m/auto", "--min-nodes", "4")
    with pytest.raises(WrongStateError, match=r"has autoScaling; create another version for that"):
        site.run("models", "scale", "m/auto", "--nodes", "2")
    site.version("fixed")
    with pytest.raises(WrongStateError, match=r"has manualScaling; create another version for that"):
        site.run("models", "scale", "m/fixed", "--min-nodes", "2")
    for flags in ([], ["--nodes", "2", "--max-nodes", "3"]):
        with pytest.raises(
            InvalidInputError, match=r"the number of servers; received .*; allowed: --nodes, or --min-n"
        ):
            site.run("models", "scale", "m/fixed", *flags)


def test_the_metrics_of_a_versions_servers_are_shown(site: Site) -> None:
    with pytest.raises(InvalidInputError, match=r"model m has no version; see `lockstep deploy`"):
        site.run("metrics", "--model", "m")
    site.version("v1")
    server = site.serve("v1")
    samples = [Sample(time_s=time.time() - 5, values={"cpuCores": 2.0})]
    url = metrics_url(server, replica="master-0", attempt=0)
    open_bucket(url).write(sample_key(samples[0].time_s), b"".join(map(encode_sample, samples)))
    for arguments in (["--model", "m"], ["--model", "m/v1", "--server", server_name(server), "--since", "1m"]):
        title, row = site.run("metrics", *arguments).stdout.splitlines()
        assert title.split()[:2] == ["SERVER", "METRIC"]
        assert row.split()[:4] == [server_name(server), "cpuCores", "cores", "2"]
    (line,) = site.run("metrics", "--model", "m/v1", "--json").stdout.splitlines()
    assert json.loads(line)["server"] == server_name(server)
    assert site.run("metrics", "--model", "m/v1", "--name", "step").stdout == "no metrics\n"
    for flags, message in (
        (["--model", "m", "job"], "name either a job or --model; received 'job, m'"),
        ([], "name either a job or --model"),
        (["--model", "m", "--attempt", "0"], "--replica and --attempt are only for jobs; leave them out"),
        (["job", "--server", "x"], "--server is only for --model; leave it out"),
        (["--model", "m/"], "not the name of a model or version"),
    ):
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            site.run("metrics", *flags)


@pytest.mark.parametrize(("by", "name"), [("model", "m"), ("version", "m/v1")])
def test_what_a_model_costs_is_shown_with_its_unused_time(site: Site, by: str, name: str) -> None:
    site.version("v1")
    began_s = time.time() - 3600
    report(site.served.context.jobs, site.serve("v1"), phase=ReplicaPhase.RUNNING, seen_time_s=time.time())
    (server,) = site.served.context.jobs.servers()
    site.served.context.jobs.update(server.uid, start_time_s=began_s, run_start_time_s=began_s)
    shown = site.run("costs", "--by", by).stdout
    rows = [line.split() for line in shown.splitlines() if line.startswith((by.upper(), name))]
    assert [row[0] for row in rows] == [by.upper(), name, by.upper(), name]
    assert rows[1][1][:3] == rows[3][1][:3] == rows[3][2][:3] == "1.0", "its hours, and all of them without a request"


def test_another_version_becomes_the_default(site: Site) -> None:
    site.version("v1")
    site.version("v2")
    assert site.run("models", "set-default", "m/v2").stdout == "version v2 is the default of m\n"
    assert site.models.get_model(project="local", name="m").default_version == "v2"
    with pytest.raises(InvalidInputError, match="the version is missing"):
        site.run("models", "set-default", "m")


def test_the_traffic_of_a_model_is_shown_split_and_restored(site: Site) -> None:
    assert site.run("models", "traffic", "m").stdout == "traffic of m: none\n"
    for name in ("v1", "v2"):
        site.version(name)
    assert site.run("models", "traffic", "m").stdout == "traffic of m: v1 100%\n"
    assert site.run("models", "traffic", "m", "v1=10", "v2=90%").stdout == "traffic of m: v2 90%, v1 10%\n"
    assert site.run("models", "rollback", "m").stdout == "traffic of m: v1 100%\n"
    shown = site.run("models", "describe", "m").stdout
    assert "  traffic: v1 100%\n" in shown
    changes = [line.split("  ")[-1] for line in shown.splitlines()[-3:]]
    owner = site.served.http.get("/v1/whoami").json()["label"]
    assert changes == [f"v1 100%, by {owner}", f"v2 90%, v1 10%, by {owner}", "v1 100%, by service"]
    for shares in (["v1=90"], ["v1=x", "v2=10"], ["v1"], ["v1=50", "v1=50"], ["=100"]):
        with pytest.raises(InvalidInputError, match="the traffic; received"):
            site.run("models", "traffic", "m", *shares)
    with pytest.raises(WrongStateError, match="v1 has 100% of the traffic of m, and is its default"):
        site.run("undeploy", "m/v1")


def test_the_number_of_versions_that_a_model_keeps_is_changed(site: Site) -> None:
    assert site.run("models", "update", "m", "--max-versions", "3").stdout == "model m keeps 3 versions\n"
    assert "versions: none (at most 3 are kept)" in site.run("models", "describe", "m").stdout
    assert site.run("models", "update", "m", "--max-versions", "0").stdout == "model m keeps all versions\n"
    assert "kept" not in site.run("models", "describe", "m").stdout


def test_a_model_whose_traffic_is_split_is_undeployed_with_all_its_versions(deploying: Site) -> None:
    for name in ("v1", "v2"):
        deploying.version(name)
    deploying.run("models", "traffic", "m", "v1=50", "v2=50")
    assert deploying.run("undeploy", "m", "--yes").stdout == "deleted model m with 2 versions\n"


def test_a_model_with_versions_is_deleted_only_with_undeploy(deploying: Site) -> None:
    for name in ("v1", "v2", "v3"):
        deploying.version(name)
    with pytest.raises(WrongStateError, match=r"has versions: v3, v2, v1; `lockstep undeploy m` deletes"):
        deploying.run("models", "delete", "m")
    done = deploying.run("undeploy", "m/v2")
    assert done.stdout == "deleted version m/v2\n"
    assert "-- m/v2 is DELETING" in done.stderr
    assert sorted(deploying.names()) == ["v1", "v3"]
    assert deploying.run("undeploy", "m", "--yes").stdout == "deleted model m with 2 versions\n"
    with pytest.raises(NotFoundError):
        deploying.models.get_model(project="local", name="m")
    deploying.models.create_model(project="local", name="empty", description="", labels={})
    assert deploying.run("models", "delete", "empty").stdout == "deleted model empty\n"


def test_a_model_is_undeployed_only_after_a_yes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.version("v1")
    with pytest.raises(InvalidInputError, match=r"would delete model m with 1 version, .* not a terminal; add --yes"):
        site.run("undeploy", "m")
    asked: list[str] = []

    def refuse(question: str) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(undeploy, "confirm", refuse)
    monkeypatch.setattr(undeploy.sys, "stdin", _Terminal())
    with pytest.raises(SystemExit) as ended:
        app(["undeploy", "m"])
    assert (ended.value.code, asked) == (1, ["delete model m with 1 version (v1)?"])
    assert site.names() == ["v1"]


class _Terminal:
    def isatty(self) -> bool:
        return True


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[tuple[str, str, object]]]]:
    """A service that answers with given documents, one for each request; returns the requests that it has received."""
    waiting: list[dict[str, object]] = []
    received: list[tuple[str, str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            received.append((self.command, self.path, json.loads(body) if body else None))
            content = json.dumps(waiting.pop(0)).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PATCH = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    def expect(*documents: dict[str, object]) -> list[tuple[str, str, object]]:
        waiting.extend(documents)
        return received

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("LOCKSTEP_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("LOCKSTEP_TOKEN", "t")
        yield expect
        server.shutdown()
        thread.join()


OPERATION = {"name": "projects/local/operations/o", "metadata": {}}
WAITING = {"state": "READY", "lockstep": {"waitingFor": "a node with 4 cores"}}


def test_scaling_names_the_field_and_waits_for_the_operation(
    answers: Callable[..., list[tuple[str, str, object]]],
) -> None:
    received = answers(OPERATION, WAITING, {**OPERATION, "done": True})
    done = CliRunner().invoke(app, ["models", "scale", "m/v1", "--nodes", "3"], catch_exceptions=False)
    assert done.stdout == "version m/v1 has 3 prediction servers\n"
    assert done.stderr == "-- m/v1 is READY: a node with 4 cores\n"
    path = "/v1/projects/local/models/m/versions/v1?updateMask=manualScaling.nodes"
    assert received[0] == ("PATCH", path, {"manualScaling": {"nodes": 3}})


def test_a_wait_that_is_over_says_how_to_give_the_version_its_traffic(
    answers: Callable[..., list[tuple[str, str, object]]],
) -> None:
    created = {"state": "CREATING", "lockstep": {"waitingFor": "a node"}}
    for traffic, then in (("100", "models set-default m/v1"), ("10", "models traffic m")):
        answers({"name": "projects/local/models/m"}, OPERATION, created, OPERATION)
        flags = ["--model-url", "/m", "--version", "v1", "--timeout", "0s", "--traffic", traffic]
        with pytest.raises(UnavailableError) as caught:
            CliRunner().invoke(app, ["deploy", "m", *flags], catch_exceptions=False)
        assert "not done within 0 s: m/v1 is CREATING: a node; it continues" in str(caught.value)
        assert f"once it is READY, `lockstep {then}` gives it traffic" in str(caught.value)


def test_an_operation_that_failed_is_an_error(answers: Callable[..., list[tuple[str, str, object]]]) -> None:
    answers({**OPERATION, "done": True, "error": {"code": 9, "message": "no such machine"}})
    with pytest.raises(LockstepError, match="m/v1 cannot be scaled: no such machine"):
        CliRunner().invoke(app, ["models", "scale", "m/v1", "--nodes", "3"], catch_exceptions=False)


@pytest.mark.parametrize("name", ["", "/v1", "m/", "m/v1/x"])
def test_what_names_no_version_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="allowed: MODEL or MODEL/VERSION"):
        split_version(name)
    assert split_version("m") == ("m", None)
    assert split_version("m/v1") == ("m", "v1")
