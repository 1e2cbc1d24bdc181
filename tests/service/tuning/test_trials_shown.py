"""A search with real programs: over REST, in the console, on the command line, and with Google's client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.service.console.signed_in import signed_in

from lockstep.cli.summary import print_summary
from lockstep.client import Client
from lockstep.client.addresses import ServiceAddress
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.submission.packing import stage_folder
from lockstep.testing.bench import Bench
from lockstep.testing.served import HOME_TOKEN, Served

PROGRAM = """
import json, os, sys
import lockstep
x = next(float(word.removeprefix("--x=")) for word in sys.argv[1:] if word.startswith("--x="))
assert json.loads(os.environ["TF_CONFIG"])["task"]["trial"] == os.environ["CLOUD_ML_TRIAL_ID"]
print(f"trial {os.environ['CLOUD_ML_TRIAL_ID']} tries {x}", flush=True)
if x == 3:
    sys.exit("three is no number for this program")
for step in range(3):
    lockstep.report((x - 2) ** 2 + 2 - step, step=step)
"""


def body(bench: Bench, name: str = "squares", **spec: Any) -> dict[str, Any]:
    code = bench.home.path / "code" / name
    code.mkdir(parents=True)
    (code / "program.py").write_text(PROGRAM)
    searched = {
        "goal": "MINIMIZE",
        "algorithm": "GRID_SEARCH",
        "maxTrials": 4,
        "maxParallelTrials": 4,
        "maxFailedTrials": 2,
        "hyperparameterMetricTag": "loss",
        "params": [{"parameterName": "x", "type": "DISCRETE", "discreteValues": [1, 2, 3, 4]}],
        **spec,
    }
    package = stage_folder(code, staging=str(bench.home.path / "staging"))
    asked = {"scaleTier": "BASIC", "region": "us-central1", "pythonModule": "program", "packageUris": [package]}
    return {"jobId": name, "trainingInput": {**asked, "hyperparameters": searched}}


def cli_client(service: Served) -> Client:
    return Client(ServiceAddress(url=service.url, token=HOME_TOKEN), project="local")


def test_a_search_is_submitted_run_and_shown(service: Served, bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    created = service.http.post("/v1/projects/local/jobs", json=body(bench))
    assert created.status_code == 200, created.text
    assert created.json()["trainingOutput"]["isHyperparameterTuningJob"] is True
    job = bench.step_until_state("squares", JobState.SUCCEEDED)
    found = service.google().jobs().get(name="projects/local/jobs/squares").execute()
    output = found["trainingOutput"]
    assert output["completedTrialCount"] == "3"
    assert output["hyperparameterMetricTag"] == "loss"
    told = [(trial["hyperparameters"], trial["finalMetric"]) for trial in output["trials"][:3]]
    assert told == [
        ({"x": "2"}, {"trainingStep": "2", "objectiveValue": 0.0}),
        ({"x": "1"}, {"trainingStep": "2", "objectiveValue": 1.0}),
        ({"x": "4"}, {"trainingStep": "2", "objectiveValue": 4.0}),
    ]
    assert output["trials"][3]["state"] == "FAILED"
    assert job.bill is not None
    assert float(output["consumedMLUnits"]) == float(job.bill.ml_units or 0)
    trials = service.http.get("/v1/projects/local/jobs/squares/trials", params={"pageSize": 3}).json()
    assert [trial["jobId"] for trial in trials["trials"]] == ["squares.2", "squares.1", "squares.4"]
    assert trials["trials"][0]["metricRun"] == "report"
    assert [point["objectiveValue"] for point in trials["trials"][0]["allMetrics"]] == [2.0, 1.0, 0.0]
    more = {"pageSize": 3, "pageToken": trials["nextPageToken"]}
    rest = service.http.get("/v1/projects/local/jobs/squares/trials", params=more).json()
    assert [trial["endReason"] for trial in rest["trials"]] == ["USER_ERROR(exit 1, master-0)"]
    assert "nextPageToken" not in rest
    assert [each["jobId"] for each in service.http.get("/v1/projects/local/jobs").json()["jobs"]] == ["squares"]
    log = service.http.get("/v1/projects/local/jobs/squares.2/logEntries").text
    assert "trial 2 tries 2.0" in log
    _check_costs(service)
    _check_console(service)
    with cli_client(service) as client:
        print_summary(client.job("squares"), client.job_events("squares"), models=())
    said = capsys.readouterr().out
    assert "trials: 4 begun, 4 over, 3 with a value of loss" in said
    assert said.index("    2 ") < said.index("    1 ") < said.index("    4 ")


def _check_costs(service: Served) -> None:
    """What a search costs is in a report once: as what its trials cost."""
    document = json.dumps(service.http.get("/v1/projects/local/costs").json())
    assert '"squares.1"' in document
    assert '"squares"' not in document


def _check_console(service: Served) -> None:
    with signed_in(service) as browser:
        page = browser.get("/projects/local/jobs/squares").text
        assert "the best is 0, of trial 2" in page
        assert 'href="/projects/local/jobs/squares.2"' in page
        assert "the best, trial 2: x 2" in page
        assert 'id="log"' not in page
        part = browser.get("/projects/local/jobs/squares/trials").text
        assert "4 of 4 are over, 1 failed. Smaller values are better." in part
        trial = browser.get("/projects/local/jobs/squares.2").text
        assert "Search squares" in trial
        assert 'id="log"' in trial


def test_what_is_asked_wrongly_is_refused_in_one_line(service: Served, bench: Bench) -> None:
    http = service.http

    def refused(document: dict[str, Any]) -> str:
        answer = http.post("/v1/projects/local/jobs", json=document)
        assert answer.status_code in (400, 404), answer.text
        return answer.json()["error"]["message"]

    assert "has no job 'nobody'" in refused(body(bench, "a", resumePreviousJobId="nobody"))
    plain = body(bench, "plain")
    del plain["trainingInput"]["hyperparameters"]
    assert http.post("/v1/projects/local/jobs", json=plain).status_code == 200
    assert "this job is no search" in refused(body(bench, "b", resumePreviousJobId="plain"))
    assert http.post("/v1/projects/local/jobs", json=body(bench, "first")).status_code == 200
    other = [{"parameterName": "y", "type": "INTEGER", "minValue": 1, "maxValue": 2}]
    message = refused(body(bench, "c", resumePreviousJobId="first", params=other))
    assert "the search first has other parameters" in message
    named = {**body(bench, "d"), "jobId": "first.1"}
    assert "jobId" in refused(named)
    answer = http.get("/v1/projects/local/jobs/plain/trials")
    assert answer.status_code == 400
    assert "does not search hyperparameters" in answer.text
    assert http.get("/v1/projects/local/jobs/first/trials", params={"pageToken": "x"}).status_code == 400


def test_a_preview_shows_the_first_trial_and_the_price_of_all_at_a_time(service: Served, bench: Bench) -> None:
    def preview(document: dict[str, Any]) -> dict[str, Any]:
        found = service.http.post("/v1/projects/local/jobs", params={"validateOnly": "true"}, json=document)
        return found.json()

    document = body(bench)
    shown = preview(document)
    assert shown["search"] == {"numTrials": 4, "numParallelTrials": 4, "firstTrial": {"x": "1"}}
    assert shown["replicas"][0]["command"][-1] == "--x=1"
    assert shown["outputs"]["model"].endswith("/squares/1/model")
    del document["trainingInput"]["hyperparameters"]
    alone = preview(document)
    assert float(shown["price"]["hour"]["costUsd"]) == pytest.approx(
        4 * float(alone["price"]["hour"]["costUsd"]), rel=0.01
    )
    assert service.http.get("/v1/projects/local/jobs").json()["jobs"] == []


def test_a_trial_is_seen_by_those_who_see_its_search_only(service: Served, bench: Bench) -> None:
    assert service.http.post("/v1/projects/local/jobs", json=body(bench)).status_code == 200
    bench.step()
    paths = ["jobs/squares/trials", "jobs/squares.1", "jobs/squares.1/logEntries", "jobs/squares.1/scalars"]
    stranger = service.client(service.key(Scope.OPERATOR, project="other"))
    viewer = service.client(service.key(Scope.VIEWER, project="local"))
    for path in paths:
        assert stranger.get(f"/v1/projects/local/{path}").status_code in (403, 404), path
        assert viewer.get(f"/v1/projects/local/{path}").status_code == 200, path
    assert viewer.post("/v1/projects/local/jobs/squares.1:cancel").status_code == 403


def test_a_quota_holds_trials_back(service: Served, bench: Bench) -> None:
    document = body(bench)
    assert service.http.post("/v1/projects/local/jobs", json=document).status_code == 200
    bench.step()
    states = [job.state for job in service.context.trials.trials(bench.job("squares").uid)]
    assert len(states) == 4
    limit = bench.settings.max_running_jobs
    assert sum(state is not JobState.QUEUED for state in states) <= limit
