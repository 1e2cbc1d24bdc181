"""Which model `deploy --job` takes, and where `describe` says that it lies."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from lockstep.cli import deploy
from lockstep.cli.app import app
from lockstep.cli.job_models import model_urls
from lockstep.cli.traffic import with_version
from lockstep.errors import ConflictError, InvalidInputError, ModelError, StorageError
from lockstep.jobs.running.saved_models import model_to_deploy

OUTPUTS = {"model": "gs://b/j/model", "checkpoints": "gs://b/j/checkpoints"}


class FakeClient:
    """A service with one job that is over."""

    def __init__(self, *urls: str, state: str = "SUCCEEDED") -> None:
        self.urls = urls
        self.asked: dict[str, Any] = {}
        self.state = state
        self.deployed = ""
        self.code: dict[str, object] = {}
        self.auto_scaling: object = None
        self.default = ""
        self.traffic: dict[str, int] = {}
        self.num_conflicts = 0

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def job(self, job: str) -> dict[str, Any]:
        return {"jobId": job, "state": self.state, "trainingInput": self.asked, "lockstep": {"outputs": OUTPUTS}}

    def job_models(self, _: str) -> list[dict[str, Any]]:
        return [{"url": url, "sizeBytes": "1"} for url in self.urls]

    def create_model(self, _: str) -> None:
        pass

    def versions(self, _: str) -> list[dict[str, Any]]:
        return []

    def create_version(
        self, _: str, *, name: str, deployment_uri: str, auto_scaling: object, **code: object
    ) -> dict[str, Any]:
        self.deployed, self.code, self.auto_scaling = deployment_uri, code, auto_scaling
        return {"name": name, "done": True}

    def set_default_version(self, _: str, *, name: str) -> None:
        self.default = name

    def model(self, _: str) -> dict[str, Any]:
        return {"etag": f"{self.num_conflicts}", "lockstep": {"trafficSplit": self.traffic} if self.traffic else {}}

    def split_traffic(self, _: str, *, split: dict[str, int], etag: str) -> None:
        assert etag == f"{self.num_conflicts}"
        if self.num_conflicts:
            self.num_conflicts -= 1
            raise ConflictError("model m changed since it was read")
        self.traffic = split


@pytest.mark.parametrize(
    ("left", "deployed"),
    [
        (["gs://b/j/model/model.keras"], "gs://b/j/model/model.keras"),
        (["gs://b/j/export/1/net.keras"], "gs://b/j/export/1/net.keras"),
        (["gs://b/j/checkpoints/e1.keras", "gs://b/j/net.keras"], "gs://b/j/net.keras"),
        (["gs://b/j/checkpoints/best.keras"], "gs://b/j/checkpoints/best.keras"),
    ],
)
def test_the_model_is_taken_from_where_the_job_wrote_it(
    left: list[str], deployed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient(*left)
    monkeypatch.setattr(deploy, "connect", lambda _project: client)
    done = CliRunner().invoke(app, ["deploy", "m", "--job", "j"], catch_exceptions=False)
    assert client.deployed == deployed
    assert f"is ready: {deployed}" in done.stdout


def test_a_jobs_packages_go_along_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient("gs://b/j/model/model.keras")
    monkeypatch.setattr(deploy, "connect", lambda _project: client)
    client.asked = {"packageUris": ["gs://b/packages/j.tar.gz"], "pythonModule": "train"}
    CliRunner().invoke(app, ["deploy", "m", "--job", "j"], catch_exceptions=False)
    kept = {"package_uris": ["gs://b/packages/j.tar.gz"], "python_module": "train", "prediction_class": None}
    assert client.code == kept
    named = ["--model-url", "gs://b/m.keras", "--package-uri", "gs://b/p.tar.gz", "--package-uri", "gs://b/q.whl"]
    CliRunner().invoke(app, ["deploy", "m", *named], catch_exceptions=False)
    assert client.code == {
        "package_uris": ["gs://b/p.tar.gz", "gs://b/q.whl"],
        "python_module": None,
        "prediction_class": None,
    }
    with pytest.raises(InvalidInputError, match="--package-uri is only for --model-url"):
        CliRunner().invoke(app, ["deploy", "m", "--job", "j", "--package-uri", "gs://b/p.whl"], catch_exceptions=False)


def test_a_routine_goes_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient("gs://b/j/model/model.keras")
    monkeypatch.setattr(deploy, "connect", lambda _project: client)

    def run(*flags: str) -> None:
        CliRunner().invoke(app, ["deploy", "m", "--prediction-class", "a.Predictor", *flags], catch_exceptions=False)

    run("--model-url", "gs://b/artifacts", "--package-uri", "gs://b/p.tar.gz")
    assert client.deployed == "gs://b/artifacts"
    assert client.code == {
        "package_uris": ["gs://b/p.tar.gz"],
        "python_module": None,
        "prediction_class": "a.Predictor",
    }
    client.asked = {"packageUris": ["gs://b/packages/j.tar.gz"], "pythonModule": "train"}
    run("--job", "j")
    assert client.deployed == "gs://b/j/model", "the folder, with what the routine reads beside the model"
    assert client.code["package_uris"] == ["gs://b/packages/j.tar.gz"]
    assert client.code["python_module"] is None
    with pytest.raises(InvalidInputError, match="--prediction-class needs the package with the class"):
        run("--model-url", "gs://b/artifacts")


def test_a_container_goes_with_its_routes_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    monkeypatch.setattr(deploy, "connect", lambda _project: client)

    def run(*words: str) -> str:
        return CliRunner().invoke(app, ["deploy", "m", *words], catch_exceptions=False).stdout

    assert "is ready: reg.example.com/s:1" in run("--image-uri", "reg.example.com/s:1")
    assert (client.deployed, client.code["container"]) == ("", {"image": "reg.example.com/s:1"})
    flags = ("--port", "7000", "--predict-route", "/p", "--health-route", "/h", "--model-url", "gs://b/files")
    run("--image-uri", "reg.example.com/s:1", *flags, "--", "serve", "--threads=4")
    assert client.deployed == "gs://b/files"
    assert client.code["container"] == {
        "image": "reg.example.com/s:1",
        "ports": [{"containerPort": 7000}],
        "args": ["serve", "--threads=4"],
    }
    assert client.code["routes"] == {"predict": "/p", "health": "/h"}
    for words, flag in (
        (["--port", "7000"], "--port"),
        (["--", "serve"], "ARGS"),
        (["--health-route", "/"], "--health"),
    ):
        with pytest.raises(InvalidInputError, match=f"{flag}.* is only for --image-uri"):
            run("--model-url", "gs://b/m.keras", *words)
    with pytest.raises(InvalidInputError, match="give either --job or --model-url or --image-uri"):
        run("--job", "j", "--image-uri", "reg.example.com/s:1")


def test_requests_are_logged_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    monkeypatch.setattr(deploy, "connect", lambda _project: client)

    def run(*flags: str) -> None:
        CliRunner().invoke(app, ["deploy", "m", "--model-url", "gs://b/m.keras", *flags], catch_exceptions=False)

    run("--log-requests", "0.25", "--request-log-url", "gs://b/requests")
    assert client.code["request_logging"] == {"samplingPercentage": 0.25, "uri": "gs://b/requests"}
    run("--log-requests", "1")
    assert client.code["request_logging"] == {"samplingPercentage": 1.0}
    with pytest.raises(InvalidInputError, match="--request-log-url is only for --log-requests"):
        run("--request-log-url", "gs://b/requests")


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ([], "job j saved no .keras file in gs://b/j; save one with"),
        (["gs://b/j/a.keras", "gs://b/j/b.keras"], "several models; received 'gs://b/j/a.keras, gs://b/j/b.keras'"),
        ([f"gs://b/j/checkpoints/{n}.keras" for n in range(7)], "4.keras and 2 more'; choose one with --model-url"),
    ],
)
def test_which_model_is_meant_is_never_guessed(left: list[str], message: str) -> None:
    with pytest.raises(ModelError) as raised:
        model_to_deploy(left, job=FakeClient().job("j"))
    assert message in str(raised.value)


def test_a_job_shows_where_its_models_lie() -> None:
    def shown(client: FakeClient) -> list[str]:
        return model_urls(client, client.job("j"))  # type: ignore[arg-type]

    assert shown(FakeClient("gs://b/j/x.keras", "gs://b/j/y.keras")) == ["gs://b/j/x.keras", "gs://b/j/y.keras"]
    assert shown(FakeClient()) == [OUTPUTS["model"]]
    assert shown(FakeClient("gs://b/j/x.keras", state="FAILED")) == [OUTPUTS["model"]]
    away = FakeClient()
    away.job_models = _fail  # type: ignore[method-assign]
    assert shown(away) == [OUTPUTS["model"]]


def _fail(_: str) -> list[dict[str, Any]]:
    raise StorageError("the bucket")


def test_the_machine_of_the_prediction_server_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    monkeypatch.setattr(deploy, "connect", lambda _project: client)
    machine = ["--machine-type", "n1-standard-8", "--accelerator", "count=2,type=nvidia-tesla-t4"]
    CliRunner().invoke(app, ["deploy", "m", "--model-url", "gs://b/m.keras", *machine], catch_exceptions=False)
    assert client.code["machine_type"] == "n1-standard-8"
    assert client.code["accelerator"] == {"count": "2", "type": "NVIDIA_TESLA_T4"}


@pytest.mark.parametrize(
    ("flags", "scaling"),
    [
        ([], None),
        (["--max-servers", "4"], {"minNodes": 1, "maxNodes": 4}),
        (["--min-servers", "0", "--max-servers", "4"], {"minNodes": 0, "maxNodes": 4}),
    ],
)
def test_the_numbers_of_servers_are_passed_on(
    flags: list[str], scaling: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()
    monkeypatch.setattr(deploy, "connect", lambda _project: client)
    CliRunner().invoke(app, ["deploy", "m", "--model-url", "gs://b/m.keras", *flags], catch_exceptions=False)
    assert client.auto_scaling == scaling


@pytest.mark.parametrize("flags", [["--min-servers", "1"], ["--min-servers", "3", "--max-servers", "2"]])
def test_numbers_of_servers_that_contradict_each_other_are_refused(flags: list[str]) -> None:
    done = CliRunner().invoke(app, ["deploy", "m", "--model-url", "gs://b/m.keras", *flags])
    assert isinstance(done.exception, InvalidInputError)
    assert "--m" in str(done.exception)


def _deploy(client: FakeClient, *flags: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(deploy, "connect", lambda _project: client)
    command = ["deploy", "m", "--model-url", "gs://b/m.keras", "--version", "new", *flags]
    return CliRunner().invoke(app, command, catch_exceptions=False).stdout


def test_a_version_gets_all_traffic_unless_it_is_a_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    client.traffic = {"v1": 60, "v2": 40}
    assert "version new (default), is ready" in _deploy(client, monkeypatch=monkeypatch)
    assert client.default == "new"
    client.default = ""
    shown = _deploy(client, "--traffic", "10", monkeypatch=monkeypatch)
    assert shown.splitlines()[:2] == [
        "model m, version new, is ready: gs://b/m.keras",
        "traffic of m: v1 54%, v2 36%, new 10%",
    ]
    assert (client.default, client.traffic) == ("", {"v1": 54, "v2": 36, "new": 10})


def test_a_canary_gets_its_share_of_the_traffic_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    client.traffic, client.num_conflicts = {"v1": 100}, 4
    _deploy(client, "--traffic", "5", monkeypatch=monkeypatch)
    assert client.traffic == {"v1": 95, "new": 5}
    client.num_conflicts = 5
    with pytest.raises(ConflictError):
        _deploy(client, "--traffic", "5", monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    ("split", "percent", "expected"),
    [
        ({"v1": 100}, 10, {"v1": 90, "new": 10}),
        ({"v1": 90, "v2": 10}, 10, {"v1": 81, "v2": 9, "new": 10}),
        ({"v1": 34, "v2": 33, "v3": 33}, 50, {"v1": 17, "v2": 17, "v3": 16, "new": 50}),
        ({"v1": 99, "v2": 1}, 90, {"v1": 10, "new": 90}),
        ({"v1": 60, "v2": 40}, 0, {"v1": 60, "v2": 40}),
        ({"v1": 60, "v2": 40}, 100, {"new": 100}),
        ({"v1": 60, "new": 40}, 10, {"v1": 90, "new": 10}),
        ({"new": 100}, 10, {"new": 100}),
        ({}, 0, {"new": 100}),
    ],
)
def test_the_others_share_the_rest_as_they_did(split: dict[str, int], percent: int, expected: dict[str, int]) -> None:
    assert with_version(split, version="new", percent=percent) == expected


def test_shares_always_sum_to_100() -> None:
    for percent in range(100):
        for first in range(1, 99):
            shares = with_version({"a": first, "b": 1, "c": 99 - first}, version="new", percent=percent)
            assert sum(shares.values()) == 100
            assert shares.get("new", 0) == percent
            assert abs(shares.get("a", 0) - first * (100 - percent) / 100) < 1
