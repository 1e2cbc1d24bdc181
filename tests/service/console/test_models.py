"""The page of a model: its traffic is changed, versions are deployed and undeployed, and predictions are tried."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.service.console.served_model import NAME, PATH, make_versions, serving
from tests.service.console.signed_in import signed_in, submit
from tests.service.recorded_servers import make_ready, record_server

from lockstep.jobs.running.order_parts import FileOrder
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.console.pages.predicting import describe_inputs
from lockstep.service.store import VersionState
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served


@pytest.fixture
def browser(service: Served) -> Iterator[httpx.Client]:
    with signed_in(service) as made:
        yield made


@pytest.fixture
def versions(service: Served) -> None:
    """Has versions v1, the default, and v2, both READY, and v3, which is not."""
    make_versions(service)


@pytest.fixture
def server(service: Served, versions: None) -> Iterator[list[Any]]:
    """A server of version v1; yields what it receives."""
    with serving(service) as received:
        yield received


@pytest.mark.usefixtures("versions")
def test_the_traffic_is_divided_given_to_one_version_and_rolled_back(browser: httpx.Client, service: Served) -> None:
    models = service.context.models

    def traffic() -> dict[str, int]:
        return {share.version: share.percent for share in models.get_traffic(**NAME)}

    shown = browser.get(PATH).text
    etag = re.search(r'name="etag" value="([^"]+)"', shown)
    assert etag is not None
    assert re.findall(r'name="(share\.\w+)"[^>]* value="(\d+)"', shown) == [("share.v2", "0"), ("share.v1", "100")]
    fields = {"etag": etag[1], "share.v1": "90", "share.v2": "10"}
    assert submit(browser, f"{PATH}/traffic", fields).headers["location"] == PATH
    assert traffic() == {"v1": 90, "v2": 10}
    shown = browser.get(PATH).text
    assert 'aria-label="Traffic: v1 90%, v2 10%"' in shown
    again = submit(browser, f"{PATH}/traffic", fields)
    assert (again.status_code, "changed since it was read" in again.text) == (409, True)
    assert submit(browser, f"{PATH}/default", {"version": "v2"}).status_code == 303
    assert traffic() == {"v2": 100}
    assert submit(browser, f"{PATH}/rollback", {"etag": ""}).status_code == 303
    assert traffic() == {"v1": 90, "v2": 10}
    for share in ("half", "120", ""):
        refused = submit(browser, f"{PATH}/traffic", {"share.v1": share})
        assert (refused.status_code, 'role="alert"' in refused.text) == (400, True)
    assert traffic() == {"v1": 90, "v2": 10}


@pytest.mark.usefixtures("versions")
def test_a_version_is_undeployed_and_an_empty_model_deleted(browser: httpx.Client, service: Served) -> None:
    assert submit(browser, f"{PATH}/undeploy", {"version": "v3"}).status_code == 303
    assert service.context.models.get_version(**NAME, name="v3").state is VersionState.DELETING
    assert submit(browser, f"{PATH}/undeploy", {"version": ""}).status_code == 400
    assert "Delete the model" not in browser.get(PATH).text
    service.context.models.create_model(project="local", name="empty", description="", labels={})
    assert "Delete the model" in browser.get("/projects/local/models/empty").text
    gone = submit(browser, "/projects/local/models/empty/delete", {})
    assert (gone.status_code, gone.headers["location"]) == (303, "/models?project=local")
    assert browser.get("/projects/local/models/empty").status_code == 404


def test_a_version_is_deployed_from_a_url_or_a_job(browser: httpx.Client, service: Served, bench: Bench) -> None:
    form = browser.get("/models?job=j").text
    assert re.search(r'<details id="deploy" class="confirm" open>', form)
    assert 'name="job" value="j"' in form
    fields = {"project": "local", "model": "digits", "version": "", "url": "/m/model.keras", "machine_type": ""}
    for _ in range(2):
        assert submit(browser, "/models/deploy", fields).headers["location"] == PATH
    found = service.context.models.list_versions()
    assert sorted((version.name, version.deployment_uri) for version in found) == [
        ("v1", "/m/model.keras"),
        ("v2", "/m/model.keras"),
    ]
    save = "import os, pathlib; folder = pathlib.Path(os.environ['AIP_MODEL_DIR']); folder.mkdir(parents=True)\n"
    bench.create("j", f"{save}(folder / 'final.keras').write_text('x')")
    bench.step_until_state("j", JobState.SUCCEEDED)
    own = {**fields, "url": "", "job": "j", "version": "mine", "machine_type": "n1-standard-8"}
    assert submit(browser, "/models/deploy", own).status_code == 303
    made = service.context.models.get_version(**NAME, name="mine")
    assert made.deployment_uri.endswith("/model/final.keras")
    assert made.machine_type == "n1-standard-8"
    for wrong in ({"url": ""}, {"job": "j"}, {"model": "<b>"}, {"machine_type": "moon"}, {"project": "../x"}):
        refused = submit(browser, "/models/deploy", {**fields, **wrong})
        assert (refused.status_code, "<b>" in refused.text) == (400, False), wrong


@pytest.mark.usefixtures("versions")
def test_a_viewer_changes_nothing(service: Served) -> None:
    with signed_in(service, service.key(Scope.VIEWER, project="local")) as viewer:
        assert "Change it" not in viewer.get(PATH).text
        assert "Deploy a model" not in viewer.get("/models").text
        for change in ("traffic", "default", "rollback", "undeploy", "delete"):
            assert submit(viewer, f"{PATH}/{change}", {"version": "v1"}).status_code == 403, change
        deployed = submit(viewer, "/models/deploy", {"project": "local", "model": "x", "url": "/m"})
        assert deployed.status_code == 403
    with signed_in(service, service.key(Scope.OPERATOR, project="other")) as other:
        for path in ("", "/requests", "/servers", "/cost", "/try", "/versions/v1/log"):
            assert other.get(f"{PATH}{path}").status_code == 404, path
        assert submit(other, f"{PATH}/predict", {"instances": "[1]"}).status_code == 404


def test_predictions_are_tried_with_an_example_that_fits(
    browser: httpx.Client, server: list[Any], service: Served
) -> None:
    part = browser.get(f"{PATH}/try", headers={"hx-request": "true"}).text
    assert "The model takes x: FP32 of shape 2 x 2." in part
    example = re.search(r"<textarea[^>]*>([^<]*)</textarea>", part)
    assert example is not None
    text = example[1].replace("&#34;", '"')
    assert json.loads(text) == {"instances": [[[0.0, 0.0], [0.0, 0.0]]]}
    assert service.context.prediction_metrics.read() == {}, "the example is no request for predictions"
    hx = {"hx-request": "true"}
    shown = submit(browser, f"{PATH}/predict", {"instances": text, "version": ""}, headers=hx)
    assert shown.status_code == 200
    assert "Version v1 answered in" in shown.text
    assert "<strong>0.75</strong>" in shown.text, "the largest is marked"
    assert f"{service.url}/v1/projects/local/models/digits:predict" in shown.text
    assert "$LOCKSTEP_API_KEY" in shown.text
    whole = submit(browser, f"{PATH}/predict", {"instances": "[[1, 2]]", "version": "v1"})
    assert "Try model digits" in whole.text, "without scripts, it is a page"
    assert "/versions/v1:predict" in whole.text
    assert server == [json.loads(text), {"instances": [[1, 2]]}]
    (counted,) = service.context.prediction_metrics.read().values()
    assert counted.statuses["2xx"] == 2


def test_an_image_is_sent_as_it_is_and_errors_are_the_servers(browser: httpx.Client, server: list[Any]) -> None:
    content = bytes(range(256)) + b"\r\n--x\r\n\r\n"
    files = {"image": ("a 'b' $(c).png", content, "image/png")}
    shown = submit(browser, f"{PATH}/predict", {"instances": "[1]", "version": ""}, files=files)
    assert shown.status_code == 200
    (received,) = server
    assert base64.b64decode(received["instances"][0]["b64"]) == content
    assert "$(c)" in shown.text
    assert "'\"'\"'" in shown.text.replace("&#39;", "'").replace("&#34;", '"'), "the shell takes nothing of the name"
    refused = submit(browser, f"{PATH}/predict", {"instances": "[]", "version": ""})
    assert refused.status_code == 400
    assert "&lt;b&gt;instance&lt;/b&gt;" in refused.text
    none = submit(browser, f"{PATH}/predict", {"instances": " "})
    assert (none.status_code, "there is nothing to predict" in none.text) == (400, True)
    large = {"image": ("a.png", b"x" * (9 * 2**20), "image/png")}
    assert submit(browser, f"{PATH}/predict", {}, files=large).status_code == 413
    foreign = browser.post(f"{PATH}/predict", data={"instances": "[1]", "csrf_token": "wrong"})
    assert foreign.status_code == 403
    assert len(server) == 2


@pytest.mark.usefixtures("server")
def test_the_rate_of_a_key_counts_in_the_console_too(service: Served) -> None:
    key = service.key(Scope.VIEWER, project="local", label="shop", requests_per_second=0.01)
    with signed_in(service, key) as viewer:
        answers = [submit(viewer, f"{PATH}/predict", {"instances": "[1]"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert "too many requests with the key of shop" in answers[1].text


def test_a_version_without_a_server_says_so_and_has_no_example(browser: httpx.Client, versions: None) -> None:
    part = browser.get(f"{PATH}/try", headers={"hx-request": "true"})
    assert (part.status_code, "Fill in an example" in part.text) == (200, True)
    assert browser.get("/projects/local/models/none/try").status_code == 404


@pytest.mark.usefixtures("server")
def test_requests_servers_and_costs_of_versions_are_shown(browser: httpx.Client, service: Served) -> None:
    assert "Requests by version" not in browser.get(f"{PATH}/requests").text
    for instances in ("[1]", "[]"):
        submit(browser, f"{PATH}/predict", {"instances": instances})
    shown = browser.get(f"{PATH}/requests").text
    numbers = '<td class="number">2</td><td class="number">1</td><td class="number">[\\d.]+ ms'
    assert re.search(f"<td>v1</td>{numbers}", shown)
    assert shown.count("<figure") == 3
    file = FileOrder(url="/bucket/net.keras", name="net.keras", sha256="0")
    models = service.context.models
    assert models.update_version(models.get_version(**NAME, name="v1"), files=(file,))
    version = models.get_version(**NAME, name="v1")
    queued = record_server(service.context.jobs, version)
    running = make_ready(service.context.jobs, record_server(service.context.jobs, version))
    shown = browser.get(f"{PATH}/servers").text
    for made, state in ((queued, "Queued"), (running, "Ready")):
        name = made.job_id.rpartition("/")[2]
        assert re.search(rf"<code>{name}</code></td><td>v1</td><td><span [^>]*>{state}</span>", shown)
        assert f'href="{PATH}/versions/v1/log?server={name}"' in shown
    assert "at list prices in the last 30 days" in browser.get(f"{PATH}/cost").text
    name = running.job_id.rpartition("/")[2]
    log = browser.get(f"{PATH}/versions/v1/log?server={name}").text
    assert f"Log of server {name} of digits/v1" in log
    assert 'role="alert"' in browser.get(f"{PATH}/versions/v1/log?filter=(").text


@pytest.mark.parametrize(
    ("shape", "example"),
    [
        ([-1], {"instances": [0]}),
        ([-1, -1, 2], {"instances": [[[0, 0]]]}),
        ([-1, 10**12], None),
        ([-1, 0, 10**12], None),
        ([-1, *[2] * 40], None),
        (["x"], None),
        ("shape", None),
    ],
)
def test_an_example_is_small_whatever_the_signature_says(shape: object, example: object) -> None:
    text, _ = describe_inputs({"inputs": [{"name": "x", "datatype": "INT64", "shape": shape}]})
    assert (json.loads(text) if text else None) == example


def test_an_example_of_several_inputs_names_them() -> None:
    inputs = [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in (("a", "BYTES"), ("b", "BOOL"))]
    text, hint = describe_inputs({"inputs": inputs})
    assert json.loads(text) == {"instances": [{"a": "text", "b": False}]}
    assert "a: BYTES of shape one value, b: BOOL" in hint
    assert describe_inputs(None) == describe_inputs({"inputs": [1]}) == describe_inputs({}) == ("", "")
