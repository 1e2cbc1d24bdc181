"""Which places the requests of a key of one project may name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import InvalidInputError
from lockstep.jobs.security.access import HOME_PRINCIPAL, Principal, Scope
from lockstep.service.security.locations import check_location
from lockstep.testing.served import Served

ANN = Principal(label="ann", scope=Scope.OPERATOR, project="a")


def _may(url: str, *, bucket: str, holds_code: bool = False, principal: Principal = ANN) -> bool:
    try:
        check_location(url, what="jobDir", principal=principal, project="a", bucket=bucket, holds_code=holds_code)
    except InvalidInputError:
        return False
    return True


def test_a_refusal_names_the_field_and_what_is_allowed() -> None:
    message = r"^jobDir: not a location of project a; received 's3://x/b'; allowed: s3://x/a/\.\.\., or another bucket$"
    with pytest.raises(InvalidInputError, match=message):
        check_location("s3://x/b", what="jobDir", principal=ANN, project="a", bucket="s3://x")


@pytest.mark.parametrize("bucket", ["s3://shared", "s3://shared/lockstep/", "gs://shared"])
def test_of_a_bucket_in_a_cloud_a_project_has_its_folder(bucket: str) -> None:
    base = bucket.rstrip("/")
    mine = [f"{base}/a", f"{base}/a/jobs/x/model", "s3://another/b", "gs://another"]
    others = [base, f"{base}/", f"{base}/b", f"{base}/ab", f"{base}//b", f"{base}/a/../b", "s3://another/../shared/b"]
    assert [url for url in [*mine, *others, "/etc", "file:///etc"] if _may(url, bucket=bucket)] == mine


def test_code_may_lie_where_it_is_staged_and_nothing_is_written_there() -> None:
    assert _may("s3://b/packages/x.tar.gz", bucket="s3://b", holds_code=True)
    assert not _may("s3://b/packages/x.tar.gz", bucket="s3://b")
    assert not _may("s3://b/packages/../c/x.tar.gz", bucket="s3://b", holds_code=True)


def test_of_the_services_machine_a_project_has_its_folder_alone(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    for name in ("a", "b"):
        (bucket / name).mkdir(parents=True)
    (bucket / "a" / "link").symlink_to(bucket / "b")
    (tmp_path / "also").symlink_to(bucket)
    base = str(bucket)
    mine = [f"{base}/a", f"{base}/a/new/", f"file://{base}/a", f"{base}/b/../a", f"{tmp_path}/also/a/x"]
    others = [base, f"{base}/b", f"{base}/a/../b", f"{base}/a/link/x", f"{tmp_path}/token", "/etc/passwd", "/"]
    assert [url for url in [*mine, *others] if _may(url, bucket=base)] == mine
    assert all(_may(url, bucket=base, principal=HOME_PRINCIPAL) for url in [*mine, *others])


@pytest.mark.parametrize("field", ["jobDir", "packageUris", "baseOutputDirectory"])
def test_a_job_names_nothing_of_another_project(service: Served, field: str) -> None:
    base = service.context.settings.bucket
    ann = service.client(service.key(Scope.SUBMITTER, project="a"))
    hidden = Path(base, "b", "jobs", "x", "logs")
    hidden.mkdir(parents=True)

    def submit(url: str, job: str) -> Any:
        own = {"lockstep": {field: url}} if field == "baseOutputDirectory" else {field: url}
        own = {field: [url]} if field == "packageUris" else own
        body = {"jobId": job, "trainingInput": {"pythonModule": "train", **own}}
        return ann.post("/v1/projects/a/jobs", json=body)

    there, missing = submit(str(hidden), "j"), submit(f"{base}/b/jobs/y/logs", "j")
    assert there.status_code == missing.status_code == 400
    assert there.text.replace("/x/", "/y/") == missing.text
    assert list(hidden.iterdir()) == []
    assert submit(f"{base}/a/out", "mine").status_code == 200


def test_a_version_names_nothing_of_another_project(service: Served) -> None:
    base = service.context.settings.bucket
    ann = service.client(service.key(Scope.SUBMITTER, project="a"))
    assert ann.post("/v1/projects/a/models", json={"name": "m"}).status_code == 200
    body = {"name": "v1", "deploymentUri": f"{base}/b/jobs/x/model"}
    refused = ann.post("/v1/projects/a/models/m/versions", json=body)
    assert "deploymentUri: not a location of project a" in refused.json()["error"]["message"]
    body = {**body, "deploymentUri": f"{base}/a/jobs/x/model", "packageUris": [f"{base}/b/code.tar.gz"]}
    refused = ann.post("/v1/projects/a/models/m/versions", json=body)
    assert "packageUris.0: not a location of project a" in refused.json()["error"]["message"]
    body = {**body, "packageUris": [f"{base}/packages/code.tar.gz"], "lockstep": {"pythonModule": "train; x"}}
    refused = ann.post("/v1/projects/a/models/m/versions", json=body)
    assert "lockstep.pythonModule" in refused.json()["error"]["message"]
    body["lockstep"] = {"pythonModule": "my_job.train"}
    assert ann.post("/v1/projects/a/models/m/versions", json=body).status_code == 200
    version = ann.get("/v1/projects/a/models/m/versions/v1").json()
    assert version["packageUris"] == body["packageUris"]
    assert version["lockstep"]["pythonModule"] == "my_job.train"
