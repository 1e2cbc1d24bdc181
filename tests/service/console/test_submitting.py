"""Submitting from the console: the form, its dry run, clones, uploads, who may; the config and labels of a job."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.console import forms as forms_module
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

HOSTILE = "\"'><script>alert(1)</script></textarea>"
NEW = "/projects/local/jobs:new"
LOOK = f"{NEW}/look"
INPUT = "trainingInput"
HOOK = "https://hooks.example.com/secret-part"


@pytest.fixture
def browser(service: Served) -> Iterator[httpx.Client]:
    with signed_in(service, HOME_TOKEN) as made:
        yield made


@contextlib.contextmanager
def signed_in(service: Served, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers={"origin": service.url}, timeout=60) as client:
        client.post("/signin", data={"key": key})
        yield client


def fields(shown: str) -> dict[str, str]:
    """Returns what a browser would send of the form on a page."""
    form = shown[shown.index('id="job-form"') : shown.index("</form>", shown.index('id="job-form"'))]
    sent: dict[str, str] = {}
    for attributes in re.findall(r"<input([^>]*)>", form):
        named = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        if "name" in named and named.get("type") not in ("file", "checkbox"):
            sent[html.unescape(named["name"])] = html.unescape(named.get("value", ""))
    for attributes, text in re.findall(r"<textarea([^>]*)>\n?(.*?)</textarea>", form, re.S):
        named = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        sent[named["name"]] = html.unescape(text)
    for attributes, options in re.findall(r"<select([^>]*)>(.*?)</select>", form, re.S):
        named = dict(re.findall(r'([\w-]+)="([^"]*)"', attributes))
        chosen = re.search(r'<option value="([^"]*)" selected', options)
        sent[html.unescape(named["name"])] = html.unescape(chosen[1]) if chosen else ""
    return sent


def send(browser: httpx.Client, sent: dict[str, str], *, do: str, **options: Any) -> httpx.Response:
    return browser.post(NEW, data={**sent, "do": do}, **options)


def look(browser: httpx.Client, sent: dict[str, str]) -> str:
    answer = browser.post(LOOK, data=sent, headers={"hx-request": "true", "x-csrf-token": sent["csrf_token"]})
    assert answer.status_code == 200
    return answer.text


def problem_of(shown: str, name: str) -> str:
    found = re.search(rf'<small class="problem"[^>]* id="problem-{re.escape(name)}"[^>]*>([^<]*)</small>', shown)
    assert found is not None, name
    return html.unescape(found[1])


def test_a_job_is_checked_as_one_types_and_submitted_once(browser: httpx.Client, service: Served) -> None:
    assert f'href="{NEW}"' in browser.get("/jobs").text
    sent = fields(browser.get(NEW).text)
    assert sent["jobId"].startswith("job_")
    sent |= {"jobId": "mine", f"{INPUT}.pythonModule": "train", f"{INPUT}.args": "--epochs\n3"}
    shown = look(browser, sent)
    assert "This job can be submitted." in shown
    assert "$0.1911 (0.39 ML units) an hour" in shown
    assert "at once" in shown
    sent |= {f"{INPUT}.scaleTier": "CUSTOM"}
    shown = look(browser, sent)
    assert "a machine type, since scaleTier is CUSTOM" in problem_of(shown, f"{INPUT}.masterType")
    assert problem_of(shown, f"{INPUT}.args") == "", "the lines of the other fields are emptied"
    sent |= {f"{INPUT}.masterType": "n1-standard-8", f"{INPUT}.runtimeVersion": "2.4", "labels": "team=vision"}
    shown = look(browser, sent)
    assert "$0.3822" in shown
    assert "Ignored: trainingInput.runtimeVersion: 2.4" in shown
    assert service.http.get("/v1/projects/local/jobs").json()["jobs"] == [], "nothing was recorded"
    made = send(browser, sent, do="submit")
    assert (made.status_code, made.headers["location"]) == (303, "/projects/local/jobs/mine")
    job = service.http.get("/v1/projects/local/jobs/mine").json()
    assert (job["trainingInput"]["args"], job["labels"]) == (["--epochs", "3"], {"team": "vision"})
    assert job["trainingInput"]["masterType"] == "n1-standard-8"
    again = send(browser, sent, do="submit")
    assert again.status_code == 409
    assert "has a job 'mine' already" in problem_of(again.text, "jobId")
    assert 'href="/projects/local/jobs/mine">See job mine' in again.text
    assert len(service.http.get("/v1/projects/local/jobs").json()["jobs"]) == 1
    assert fields(again.text)[f"{INPUT}.args"] == "--epochs\n3", "nothing that was typed is lost"


def test_the_form_goes_to_text_and_back_without_a_loss(browser: httpx.Client) -> None:
    sent = fields(browser.get(NEW).text) | {f"{INPUT}.args": "--a", "labels": "no sign"}
    refused = send(browser, sent, do="text").text
    assert "one key=value a line" in problem_of(refused, "labels")
    assert (fields(refused)["labels"], fields(refused)[f"{INPUT}.args"]) == ("no sign", "--a")
    text = fields(send(browser, sent | {"labels": "a=b"}, do="text").text)
    assert (text["view"], yaml.safe_load(text["document"])["labels"]) == ("text", {"a": "b"})
    document = yaml.safe_load(text["document"])
    document[INPUT]["lockstep"] = {"candidates": [{"masterType": "n1-standard-4"}]}
    text["document"] = yaml.safe_dump(document)
    back = fields(send(browser, text, do="fields").text)
    assert back[f"{INPUT}.args"] == "--a"
    final = fields(send(browser, back | {f"{INPUT}.args": "--b"}, do="text").text)
    expected = {**document, INPUT: {**document[INPUT], "args": ["--b"]}}
    assert yaml.safe_load(final["document"]) == expected
    broken = send(browser, final | {"document": "a: ["}, do="fields").text
    assert "document is not YAML" in problem_of(broken, "document")
    assert fields(broken)["document"] == "a: ["


def test_a_clone_has_the_input_and_labels_and_asks_for_hidden_addresses(browser: httpx.Client, service: Served) -> None:
    body = {
        "jobId": "old",
        "labels": {"team": "vision"},
        INPUT: {
            "pythonModule": "train",
            "args": ["two\nlines"],
            "lockstep": {"webhooks": [{"url": HOOK, "states": ["FAILED"]}], "secrets": {"TOKEN": "hub"}},
        },
    }
    for name in ("hub", "sign"):
        assert service.http.put(f"/v1/projects/local/secrets/{name}", json={"value": "a long value"}).status_code == 200
    assert service.http.post("/v1/projects/local/jobs", json=body).status_code == 200
    assert f'href="{NEW}?clone=old">Clone' in browser.get("/projects/local/jobs/old").text
    shown = browser.get(f"{NEW}?clone=old").text
    assert "secret-part" not in shown
    assert "***" not in shown
    assert "Give them again: https://hooks.example.com" in shown
    sent, hook = fields(shown), f"{INPUT}.lockstep.webhooks"
    assert (sent["jobId"], sent["labels"], sent[f"{INPUT}.lockstep.secrets.0.secret"]) == (
        "old_2",
        "team=vision",
        "hub",
    )
    assert "url is missing" in problem_of(shown, f"{hook}.0.url")
    assert send(browser, sent, do="submit").status_code == 400
    sent |= {f"{hook}.0.url": f"{HOOK}2", f"{hook}.0.secret": ""}
    assert send(browser, sent, do="submit").status_code == 303
    made = service.context.jobs.get(project="local", job_id="old_2")
    assert (made.training_input["args"], made.labels) == (["two\nlines"], {"team": "vision"})
    assert made.training_input["lockstep"]["webhooks"][0]["states"] == ["FAILED"]
    assert fields(browser.get(f"{NEW}?clone=old").text)["jobId"] == "old_3"
    assert browser.get(f"{NEW}?clone=none").status_code == 404


def test_a_batch_prediction_is_written_and_cloned(browser: httpx.Client, service: Served, tmp_path: Path) -> None:
    shown = browser.get(f"{NEW}?kind=prediction").text
    assert "Submit a batch prediction" in shown
    sent, own = fields(shown), "predictionInput"
    asked = {f"{own}.modelName": "projects/local/models/m", f"{own}.inputPaths": f"{tmp_path}/in/*"}
    sent |= {**asked, f"{own}.outputPath": f"{tmp_path}/out", f"{own}.lockstep.machineType": "n1-standard-8"}
    assert "m" in problem_of(look(browser, sent), f"{own}.modelName") or "no model" in look(browser, sent)
    document = {
        "modelName": "projects/local/models/m",
        "inputPaths": [f"{tmp_path}/in/*"],
        "outputPath": f"{tmp_path}/out",
    }
    service.context.jobs.create(
        project="local",
        job_id="batch",
        training_input={"pythonModule": "lockstep.serving.batch"},
        labels={},
        simulated=False,
        outputs={"predictions": f"{tmp_path}/out", "logs": f"{tmp_path}/logs"},
        prediction_input={**document, "dataFormat": "JSON"},
        priority=0,
        max_wait_time_s=None,
    )
    cloned = fields(browser.get(f"{NEW}?clone=batch").text)
    assert (cloned["jobId"], cloned[f"{own}.outputPath"], cloned[f"{own}.dataFormat"]) == (
        "batch_2",
        f"{tmp_path}/out",
        "JSON",
    )
    config = browser.get("/projects/local/jobs/batch").text
    assert "modelName: projects/local/models/m" in config


def test_code_is_uploaded_into_the_bucket_and_run(browser: httpx.Client, service: Served, bench: Bench) -> None:
    sent = fields(browser.get(NEW).text) | {"jobId": "uploaded"}
    program = b"print('from the script', flush=True)\r\n"
    checked = send(browser, sent, do="check", files={"code": ("hello.py", program)})
    assert "hello.py is in the bucket" in checked.text
    sent = fields(checked.text)
    assert sent[f"{INPUT}.pythonModule"] == "hello"
    assert sent[f"{INPUT}.packageUris"].startswith(f"{service.context.settings.bucket}/packages/hello-")
    assert send(browser, sent, do="submit").status_code == 303
    bench.step_until_state("uploaded", JobState.SUCCEEDED)
    refused = send(browser, sent, do="check", files={"code": ("a b.exe", b"x")})
    assert refused.status_code == 400
    assert "one .py script" in problem_of(refused.text, "code")


def test_an_upload_has_bounds(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch, service: Served) -> None:
    sent = fields(browser.get(NEW).text)
    monkeypatch.setattr(forms_module, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(forms_module, "MAX_FORM_BYTES", 20_000)
    answer = send(browser, sent, do="check", files={"code": ("hello.py", b"x" * 30_000)})
    assert answer.status_code == 413
    many = {f"field{number}": "x" for number in range(forms_module.MAX_FIELDS + 1)}
    monkeypatch.undo()
    assert send(browser, sent | many, do="check", files={"code": ("hello.py", b"x")}).status_code == 400
    damaged = browser.post(NEW, content=b"x", headers={"content-type": "multipart/form-data; boundary=y"})
    assert damaged.status_code in (400, 403)
    elsewhere = browser.post(
        "/projects/local/jobs/none/cancel", data={"csrf_token": sent["csrf_token"]}, files={"code": b"x"}
    )
    assert elsewhere.status_code == 400
    anonymous = httpx.post(f"{service.url}{NEW}", files={"code": b"x"}, headers={"origin": service.url})
    assert (anonymous.status_code, anonymous.headers["location"]) == (303, "/signin")


def test_hostile_values_are_text_in_every_field(browser: httpx.Client, service: Served) -> None:
    first = fields(browser.get(NEW).text)
    kept = ("csrf_token", "view", "document")
    for hostile in (HOSTILE, f"a={HOSTILE}"):
        sent = {name: value if name in kept else hostile for name, value in first.items()}
        for shown in (send(browser, sent, do="check").text, send(browser, sent, do="submit").text, look(browser, sent)):
            assert "<script>alert" not in shown
            assert "</textarea></textarea>" not in shown
            assert "alert(1)" in shown
    for name in first.keys() - set(kept):
        shown = send(browser, first | {name: HOSTILE}, do="text").text
        assert "<script>alert" not in shown, name
    text = {"csrf_token": first["csrf_token"], "jobId": "x", "view": "text", "document": f"trainingInput: {HOSTILE}"}
    assert "<script>alert" not in send(browser, text, do="check").text
    body = {"jobId": "h", INPUT: {"pythonModule": "train", "args": [HOSTILE]}, "labels": {}}
    assert service.http.post("/v1/projects/local/jobs", json=body).status_code == 200
    for path in (f"{NEW}?clone=h", "/projects/local/jobs/h", f"{NEW}?clone={HOSTILE}"):
        shown = browser.get(path).text
        assert "<script>alert" not in shown
        assert "alert(1)" in shown


def test_only_submitters_of_the_project_may(service: Served, bench: Bench) -> None:
    bench.create("j", "pass")
    with signed_in(service, service.key(Scope.VIEWER, project="local")) as viewer:
        token = re.search(r'name="csrf_token" value="(\w+)"', viewer.get("/jobs").text)
        assert token is not None
        sent = {"csrf_token": token[1], "jobId": "x", "view": "text", "document": "trainingInput: {pythonModule: t}"}
        for path in ("/jobs", "/projects/local/jobs/j"):
            shown = viewer.get(path).text
            assert "jobs:new" not in shown
            assert "Edit labels" not in shown
        assert viewer.get(NEW).status_code == 403
        files = {"code": ("hello.py", b"x")}
        assert send(viewer, sent, do="submit", files=files).status_code == 403
        assert viewer.post(LOOK, data=sent).status_code == 403
        assert viewer.post("/projects/local/jobs/j/labels", data={**sent, "labels": "a=b"}).status_code == 403
        assert "pythonModule: program" in viewer.get("/projects/local/jobs/j").text, "who looks sees the config"
    assert not (Path(service.context.settings.bucket) / "packages").exists()
    with signed_in(service, service.key(Scope.SUBMITTER, project="other")) as stranger:
        assert stranger.get(NEW).status_code == 404
        assert stranger.get("/projects/other/jobs:new?clone=j").status_code == 404
    with signed_in(service, HOME_TOKEN) as operator:
        first = fields(operator.get(NEW).text)
        for wrong in ({"csrf_token": "wrong"}, {"csrf_token": ""}):
            assert send(operator, first | wrong, do="submit").status_code == 403
            assert operator.post(LOOK, data=first | wrong).status_code == 403
        foreign = {"origin": "https://evil.example"}
        assert send(operator, first, do="submit", headers=foreign).status_code == 403
        for project in ("packages", "Upper", "a%20b"):
            assert operator.get(f"/projects/{project}/jobs:new").status_code == 404
    assert [job.job_id for job in service.context.jobs.unfinished()] == ["j"]


def test_a_project_key_names_no_place_of_another_project(service: Served, tmp_path: Path) -> None:
    with signed_in(service, service.key(Scope.SUBMITTER, project="local")) as submitter:
        sent = fields(submitter.get(NEW).text) | {f"{INPUT}.jobDir": str(tmp_path)}
        assert "not a location of project local" in problem_of(look(submitter, sent), f"{INPUT}.jobDir")
        assert send(submitter, sent, do="submit").status_code == 400


def test_a_job_shows_its_config_as_submitted_and_as_resolved(browser: httpx.Client, service: Served) -> None:
    body = {
        "jobId": "j",
        "labels": {"a": "b"},
        INPUT: {
            "pythonModule": "train",
            "runtimeVersion": "2.4",
            "lockstep": {"webhooks": [{"url": HOOK}], "env": {"master": {"KEY": "own value"}}},
        },
    }
    assert service.http.post("/v1/projects/local/jobs", json=body).status_code == 200
    shown = browser.get("/projects/local/jobs/j").text
    assert 'hx-get="/projects/local/jobs/j/config"' in shown
    shown += browser.get("/projects/local/jobs/j/config").text
    assert "secret-part" not in shown
    assert "Ignored: trainingInput.runtimeVersion: 2.4" in shown
    texts = {
        name: yaml.safe_load(html.unescape(text))
        for name, text in re.findall(r'<pre class="config" id="config-(\w+)"[^>]*>(.*?)</pre>', shown, re.S)
    }
    assert texts["submitted"]["labels"] == {"a": "b"}
    assert texts["submitted"][INPUT]["runtimeVersion"] == "2.4"
    resolved = texts["resolved"]
    assert resolved[INPUT]["scaleTier"] == "BASIC"
    assert resolved[INPUT]["scheduling"]["priority"] == 0
    (replica,) = resolved["replicas"]
    assert replica["replicasLikeIt"] == 1
    assert (replica["machine"], replica["command"]) == ("n1-standard-4", ["python", "-m", "train"])
    assert replica["environment"]["KEY"] == "(as given)"
    assert resolved["outputs"]["model"].endswith("/local/jobs/j/model")
    found = service.http.get("/v1/projects/local/jobs/j/config").json()
    assert found["submitted"] == texts["submitted"]
    assert found["resolved"] == resolved


def test_labels_are_edited_and_nobody_elses_change_is_lost(browser: httpx.Client, service: Served) -> None:
    body = {"jobId": "j", "labels": {"team": "vision"}, INPUT: {"pythonModule": "train"}}
    service.http.post("/v1/projects/local/jobs", json=body)

    def form_of(shown: str) -> dict[str, str]:
        part = shown[shown.index('id="labels"') :]
        found = {name: re.search(rf'name="{name}" value="([^"]*)"', part) for name in ("csrf_token", "etag")}
        text = re.search(r'<textarea name="labels"[^>]*>\n(.*?)</textarea>', part, re.S)
        assert text is not None
        return {name: each[1] for name, each in found.items() if each} | {"labels": html.unescape(text[1])}

    path = "/projects/local/jobs/j"
    sent = form_of(browser.get(path).text)
    assert sent["labels"] == "team=vision"
    saved = browser.post(f"{path}/labels", data=sent | {"labels": "team=vision\r\nrun=1\r\n"})
    assert (saved.status_code, saved.headers["location"]) == (303, path)
    assert service.http.get(f"/v1{path}").json()["labels"] == {"team": "vision", "run": "1"}
    late = browser.post(f"{path}/labels", data=sent | {"labels": "mine=1"})
    assert late.status_code == 409
    assert "changed since it was read" in late.text
    assert "team=vision, run=1" in late.text
    assert form_of(late.text)["labels"] == "mine=1"
    wrong = browser.post(f"{path}/labels", data=form_of(late.text) | {"labels": f"a={HOSTILE}"})
    assert wrong.status_code == 400
    assert "<script>alert" not in wrong.text
    assert browser.post(f"{path}/labels", data=form_of(late.text)).status_code == 303
    assert service.http.get(f"/v1{path}").json()["labels"] == {"mine": "1"}
    empty = form_of(browser.get(path).text) | {"labels": ""}
    assert browser.post(f"{path}/labels", data=empty).status_code == 303
    assert "labels" not in service.http.get(f"/v1{path}").json()


def test_a_job_that_this_version_cannot_read_is_shown_with_the_reason(browser: httpx.Client, bench: Bench) -> None:
    job = bench.create("old", "pass")
    bench.store.set_labels(job.uid, labels={"<b>": "of another version"}, version=None)
    shown = browser.get("/projects/local/jobs/old")
    assert shown.status_code == 200
    config = browser.get("/projects/local/jobs/old/config")
    assert config.status_code == 200
    assert "What the service made of it cannot be shown: job old: labels" in html.unescape(config.text)
    assert browser.get("/projects/local/jobs:new?clone=old").status_code == 200
