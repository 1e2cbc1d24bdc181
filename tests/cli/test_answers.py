"""What commands answer to programs: JSON by documented forms, and CSV without formulas. Hints are for people only."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from tests.cli.test_models import BOX, Site
from tests.cli.validating import validated
from typer.testing import CliRunner

from lockstep.cli.answers import Answer, Column, answers, cell, spec_of
from lockstep.cli.app import app
from lockstep.cli.reference import commands_of, commands_with_json
from lockstep.errors import InvalidInputError
from lockstep.home import Home
from lockstep.jobs.notifications.webhooks import Webhook
from lockstep.service.settings import Settings
from lockstep.service.store.control.listing import ORDER_KEYS
from lockstep.testing.bench import open_bench
from lockstep.testing.served import HOME_TOKEN, Served

TIMEOUT_S = 60
TEXT_ONLY = {
    "cluster generate",  # its document is YAML, for another program
    "completion",
    "exec",
    "image build",
    "image push",
    "local train",
    "tensorboard",
}
"""Commands without JSON: what they print is another program's output, or a document for one."""
ELSEWHERE = {
    "up": "the fixture `machine`",
    "down": "the fixture `machine`",
    "cluster use": "test_cluster.py",
    "deploy": "test_deploy.py",
    "doctor": "test_doctor.py",
    "export": "test_export.py",
    "models scale": "test_models.py",
    "plan": "test_plan.py",
    "predict": "test_predict.py",
    "profile": "test_profile.py",
    "submit-prediction": "as submit",
    "undeploy": "test_models.py",
}
"""Commands whose JSON another test validates."""


SEARCH: Final = {
    "algorithm": "GRID_SEARCH",
    "params": [{"parameterName": "x", "type": "DISCRETE", "discreteValues": [1, 2]}],
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A service with a model, whose only node is full, so that every job waits."""
    home = Home(path=tmp_path / "home")
    home.path.mkdir()
    with open_bench(Settings(home=home, bucket=str(home.bucket), max_running_jobs=2)) as bench:
        bench.cluster.set_nodes((BOX,), in_use={"box": BOX.resources})
        hook = Webhook(name="ops", url="https://hooks.example.com/x", secret_file=None)
        served = Served(bench, operators={"ops": (hook, None)})
        monkeypatch.setenv("LOCKSTEP_HOME", str(home.path))
        monkeypatch.setenv("LOCKSTEP_URL", served.url)
        monkeypatch.setenv("LOCKSTEP_TOKEN", HOME_TOKEN)
        yield Site(bench, served, tmp_path)
        served.close()


def test_every_command_has_json_or_a_reason_and_every_list_has_formats() -> None:
    root: Any = typer.main.get_command(app)
    commands = dict(commands_of(root))
    with_json = commands_with_json()
    assert commands.keys() - with_json.keys() == TEXT_ONLY
    for name, command in commands.items():
        options = {option for parameter in command.params for option in parameter.opts}
        spec = spec_of(command.callback)
        assert ("--json" in options) == (spec is not None and bool(spec.forms)), name
        assert ("--format" in options) == (name == "cluster generate" or (spec is not None and spec.is_list)), name
    lists = {name for name, spec in with_json.items() if spec.is_list}
    assert {name for name in commands if name.endswith((" list", " ls", " nodes", " versions", "jobs"))} <= lists
    assert {"artifacts", "costs", "metrics"} <= lists


def test_what_commands_print_as_json_has_the_forms_that_are_documented(site: Site, tmp_path: Path) -> None:
    ran: set[str] = set()

    def run(name: str, *arguments: str, **options: Any) -> Any:
        command = [*name.split(), *(["--json"] if name != "predict" else []), *arguments]
        done = CliRunner().invoke(app, command, catch_exceptions=False, **options)
        assert done.exit_code == 0, (command, done.output)
        ran.add(name)
        return validated(name, done.stdout)

    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("pass")
    package = ("--package-path", str(code), "--module-name", "train")
    assert run("submit", "first_job", *package, "--dry-run")["jobId"] == "first_job"
    assert run("submit", "first_job", *package, "--async")["state"] == "QUEUED"
    assert run("describe", "first_job")["jobId"] == "first_job"
    assert run("update", "first_job", "--update-labels", "team=vision")["labels"] == {"team": "vision"}
    assert [job["jobId"] for job in run("jobs")["jobs"]] == ["first_job"]
    assert run("logs", "first_job") == []
    assert run("top", "first_job")["state"] == "QUEUED"
    assert run("top") == {"jobs": []}
    assert run("artifacts", "first_job") == {"artifacts": []}
    assert run("artifacts", "first_job", "--fetch", "--to", str(tmp_path / "fetched")) == {"artifacts": []}
    assert run("init", str(tmp_path / "new"))["files"] == ["train.py", "config.yaml", ".lockstepignore"]
    assert run("metrics", "first_job") == []
    assert run("cancel", "first_job")["state"] in ("CANCELLING", "CANCELLED")
    assert run("status")["bucket"] == site.bench.settings.bucket
    assert run("whoami")["label"] == "home"
    assert run("costs")["total"]["name"]
    assert run("cluster nodes")["nodes"] == []
    assert run("open")["url"].startswith(site.served.url)

    key = run("keys create", "ann", "--project", "local")
    assert key["secret"].startswith(key["key"])
    assert "secret" not in run("keys create", "bob", "--project", "local", "--output", str(tmp_path / "bob.key"))
    assert {each["label"] for each in run("keys list")["keys"]} == {"ann", "bob"}
    assert run("keys revoke", key["key"])["revokedBy"] == "home"
    assert run("secrets set", "token", input="a secret value\n") == {"name": "token"}
    assert [secret["name"] for secret in run("secrets list")["secrets"]] == ["token"]
    assert run("secrets rm", "token") == {"name": "token"}
    assert run("webhooks deliveries", "ops") == {"deliveries": []}
    site.bench.create("search", hyperparameters=SEARCH)
    site.bench.searches.step()
    assert [trial["jobId"] for trial in run("trials", "search")["trials"]] == ["search.1"]
    assert run("describe", "search")["trainingOutput"]["trials"][0]["hyperparameters"] == {"x": "1"}

    for version in ("v1", "v2"):
        site.version(version)
    assert run("models list")["models"][0]["defaultVersion"]["lockstep"]["numReadyServers"] == 0
    assert run("models describe", "m")["name"] == "projects/local/models/m"
    assert run("models describe", "m/v1")["isDefault"] is True
    assert len(run("models versions", "m")["versions"]) == 2
    assert run("models set-default", "m/v2")["name"].endswith("/v2")
    assert run("models traffic", "m", "v1=10", "v2=90")["lockstep"]["trafficSplit"] == {"v2": 90, "v1": 10}
    assert run("models rollback", "m")["lockstep"]["trafficSplit"] == {"v2": 100}
    assert run("models update", "m", "--max-versions", "3")["lockstep"]["maxVersions"] == 3
    site.models.create_model(project="local", name="empty", description="", labels={})
    assert run("models delete", "empty") == {"model": "empty", "versions": []}

    bucket = str(tmp_path / "bucket")
    assert run("bucket mb", bucket) == {"buckets": [bucket]}
    assert run("bucket cp", str(code / "train.py"), f"{bucket}/in/") == {"numObjects": 1, "sizeBytes": 4}
    assert [each["url"] for each in run("bucket ls", bucket)["objects"]] == [f"{bucket}/in/"]
    assert run("bucket ls", bucket, "-r")["objects"][0]["sizeBytes"] == 4
    assert run("bucket rm", f"{bucket}/in/train.py")["numObjects"] == 1
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n")
    assert run("data pack", str(tmp_path / "t.csv"), bucket)["splits"][0]["numRecords"] == 2
    assert run("data inspect", bucket)["sets"][0]["files"][0]["state"] == "sound"
    assert run("data verify", bucket)["numDamagedRecords"] == 0

    (code / "old.py").write_text("import tensorflow as tf\nmodel = tf.keras.Sequential()\n")
    assert [each["isChanged"] for each in run("migrate", str(code / "old.py"))["scripts"]] == [True]
    assert run("cluster attach", "10.0.0.5:6379")["address"] == "10.0.0.5:6379"
    assert run("cluster reset")["engine"] == "embedded"
    assert commands_with_json().keys() - ran == ELSEWHERE.keys()


def test_a_list_is_csv_with_the_values_of_its_json(site: Site) -> None:
    for name in ("first_job", "second_job"):
        site.bench.create(name, "pass")
    shown = CliRunner().invoke(app, ["jobs", "--format", "csv"], catch_exceptions=False)
    assert shown.stdout_bytes.count(b"\r\n") == 3
    rows = list(csv.DictReader(io.StringIO(shown.stdout, newline="")))
    document = json.loads(CliRunner().invoke(app, ["jobs", "--format", "json"]).stdout)
    assert [row["jobId"] for row in rows] == [job["jobId"] for job in document["jobs"]] == ["second_job", "first_job"]
    assert [row["createTime"] for row in rows] == [job["createTime"] for job in document["jobs"]]
    assert {row["endTime"] for row in rows} == {""}
    for name in ("costs", "keys list", "secrets list", "models list", "models versions m", "cluster nodes"):
        done = CliRunner().invoke(app, [*name.split(), "--format", "csv"], catch_exceptions=False)
        assert done.stdout.splitlines()[0].startswith("name," if name != "keys list" else "key,"), name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1+1", "'+1+1"),
        ("-1+1", "'-1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "�=1"),
        ("-1.50", "-1.50"),
        (-1.5, "-1.5"),
        ("a=1", "a=1"),
        (None, ""),
        (True, "true"),
        (["a", "=b"], "a, =b"),
        (["=a"], "'=a"),
    ],
)
def test_no_cell_is_a_formula(value: object, text: str) -> None:
    assert cell(value) == text


def _listing(rows: list[dict[str, object]]) -> Any:
    made = typer.Typer()

    @answers("JobListForm", is_list=True)
    def names() -> Answer:
        """List names."""
        columns = (Column(name="name", title="NAME"), Column(name="note"))
        return Answer.of_list({"names": rows}, rows=rows, columns=columns, empty="no names")

    made.command()(names)
    return made


def test_csv_is_quoted_as_the_standard_says_and_hidden_columns_are_there() -> None:
    made = _listing([{"name": 'say "hi", all', "note": "two\nlines"}, {"name": "=1", "note": None}])
    done = CliRunner().invoke(made, ["--format", "csv"])
    assert done.stdout_bytes == b'name,note\r\n"say ""hi"", all","two\nlines"\r\n\'=1,\r\n'
    table = CliRunner().invoke(made, []).stdout
    assert table.splitlines()[0].split() == ["NAME"]
    assert "two" not in table
    assert CliRunner().invoke(_listing([]), []).stdout == "no names\n"
    assert json.loads(CliRunner().invoke(_listing([]), ["--json"]).stdout) == {"names": []}


def test_the_service_orders_jobs_and_refuses_what_it_cannot_order_by(site: Site) -> None:
    for name in ("b_job", "a_job", "c_job"):
        site.bench.create(name, "pass")

    def run(*arguments: str) -> list[str]:
        done = CliRunner().invoke(app, ["jobs", "--json", *arguments], catch_exceptions=False)
        return [job["jobId"] for job in validated("jobs", done.stdout)["jobs"]]

    assert run() == run("--order-by", "createTime desc") == ["c_job", "a_job", "b_job"]
    assert run("--order-by", "jobId") == ["a_job", "b_job", "c_job"]
    assert run("--order-by", "jobId desc", "--limit", "2") == ["c_job", "b_job"]
    with pytest.raises(InvalidInputError, match=r"orderBy; received 'colour'; allowed: .*one of createTime, .*desc"):
        run("--order-by", "colour")
    with pytest.raises(InvalidInputError, match="--sort-by and --order-by contradict each other"):
        run("--order-by", "jobId", "--sort-by", "jobId")
    assert ", ".join(ORDER_KEYS) in " ".join(_option_help("jobs", "--order-by").replace(" or ", ", ").split())


def _option_help(name: str, option: str) -> str:
    root: Any = typer.main.get_command(app)
    (text,) = (str(each.help) for each in root.commands[name].params if option in each.opts)
    return text


def test_two_formats_contradict_each_other() -> None:
    with pytest.raises(InvalidInputError, match="--json and --format contradict each other; received '--format csv'"):
        CliRunner().invoke(_listing([]), ["--json", "--format", "csv"], catch_exceptions=False)
    assert CliRunner().invoke(_listing([]), ["--json", "--format", "json"]).exit_code == 0


def _run(*arguments: str, on_terminal: bool, **variables: str) -> str:
    """Runs a command with both streams on a terminal, or with both on pipes; returns what it has printed."""
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    env |= {"TERM": "xterm-256color", **variables}
    command = [sys.executable, "-m", "lockstep.cli.main", *arguments]
    if not on_terminal:
        done = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=True
        )
        return done.stdout.decode()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux reports the end of a terminal as an error
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait(TIMEOUT_S) == 0, seen
    return seen.decode()


@pytest.fixture
def make_bucket(tmp_path: Path) -> Callable[..., str]:
    numbers = iter(range(100))

    def run(*options: str, on_terminal: bool, **variables: str) -> str:
        return _run("bucket", "mb", str(tmp_path / f"b{next(numbers)}"), *options, on_terminal=on_terminal, **variables)

    return run


def test_hints_are_for_people_only(make_bucket: Callable[..., str]) -> None:
    assert "hint: to fill it: lockstep bucket cp FOLDER " in make_bucket(on_terminal=True)
    for options, on_terminal, variables in (
        ((), False, {}),
        (("--quiet",), True, {}),
        ((), True, {"LOCKSTEP_QUIET": "1"}),
        (("--json",), True, {}),
    ):
        assert "hint:" not in make_bucket(*options, on_terminal=on_terminal, **variables), (options, variables)


def test_colours_and_bars_are_for_terminals_only_and_can_be_switched_off(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 100_000)
    copy = ("bucket", "cp", str(tmp_path / "x"), str(tmp_path / "y"))
    shown = _run(*copy, on_terminal=True)
    assert "\x1b[38;" in shown
    assert "copying" in shown
    plain = _run(*copy, on_terminal=True, NO_COLOR="1")
    assert "copying" in plain
    assert not any(f"\x1b[{code}" in plain for code in ("3", "4", "9"))
    assert _run(*copy, on_terminal=False) == f"copied 1 object, 97.7 KiB, to {tmp_path / 'y'}\n"
