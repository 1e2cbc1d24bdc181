"""`lockstep artifacts`: lists, fetches whole, goes on where it stopped, and stays within its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.fake_client import FakeClient, job
from tests.cli.validating import validated
from typer.testing import CliRunner, Result

from lockstep.cli import artifacts as command
from lockstep.cli.artifacts import target_of
from lockstep.cli.commands import make_app
from lockstep.errors import InvalidInputError, LockstepError, MissingInputError, NotFoundError, UnavailableError

FILES = {
    "model/final.keras": b"m" * 3000,
    "checkpoints/1/state": b"one",
    "checkpoints/2/state": b"three",
    "tensorboard/train/events.1": b"",
}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient(job("train_1"))
    made.files = dict(FILES)
    monkeypatch.setattr(command, "connect", lambda *_: made)
    return made


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(make_app("artifacts"), ["artifacts", "train_1", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_artifacts_are_listed_with_their_sizes(fake: FakeClient) -> None:
    shown = validated("artifacts", run("--json").output)["artifacts"]
    assert {each["path"]: each["sizeBytes"] for each in shown} == {path: len(data) for path, data in FILES.items()}
    shown = validated("artifacts", run("checkpoints", "--json").output)["artifacts"]
    assert [each["path"] for each in shown] == ["checkpoints/1/state", "checkpoints/2/state"]
    lines = run("model", "--format", "csv").output.splitlines()
    assert lines[0] == "path,output,sizeBytes,updateTime,file,fetched"
    assert lines[1].startswith("model/final.keras,model,3000,")
    with pytest.raises(MissingInputError, match=r"check.*checkpoints, model, tensorboard"):
        run("check")
    with pytest.raises(InvalidInputError, match="--fetch"):
        run("--to", "x")
    assert fake.fetched == []


def test_what_is_there_with_its_size_is_not_fetched_again(fake: FakeClient, tmp_path: Path) -> None:
    run("--fetch", "--to", str(tmp_path / "out"))
    assert {path: (tmp_path / "out" / path).read_bytes() for path in FILES} == FILES
    fake.fetched.clear()
    (tmp_path / "out" / "model" / "final.keras").write_bytes(b"m")
    (tmp_path / "out" / "checkpoints" / "1" / "state").unlink()
    shown = validated("artifacts", run("--fetch", "--to", str(tmp_path / "out"), "--json").output)["artifacts"]
    assert fake.fetched == ["model/final.keras", "checkpoints/1/state"]
    assert {each["path"] for each in shown if each["fetched"]} == set(fake.fetched)
    assert {path: (tmp_path / "out" / path).read_bytes() for path in FILES} == FILES


def test_a_fetch_that_is_interrupted_goes_on(fake: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = fake.fetch_artifact

    def fail(job_id: str, path: str, *, to: Path) -> None:
        if path.startswith("checkpoints/2"):
            raise UnavailableError("the service is away")
        fetch(job_id, path, to=to)

    monkeypatch.setattr(fake, "fetch_artifact", fail)
    with pytest.raises(UnavailableError):
        run("--fetch", "--to", str(tmp_path))
    assert not (tmp_path / "checkpoints" / "2" / "state").exists()
    monkeypatch.setattr(fake, "fetch_artifact", fetch)
    fake.fetched.clear()
    run("--fetch", "--to", str(tmp_path))
    assert fake.fetched == ["checkpoints/2/state", "tensorboard/train/events.1"]


def test_a_checkpoint_that_the_job_has_removed_meanwhile_is_no_failure(
    fake: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = fake.fetch_artifact

    def fail(job_id: str, path: str, *, to: Path) -> None:
        if path.startswith("checkpoints/1"):
            raise NotFoundError("no such artifact")
        fetch(job_id, path, to=to)

    monkeypatch.setattr(fake, "fetch_artifact", fail)
    shown = validated("artifacts", run("--fetch", "--to", str(tmp_path), "--json").output)["artifacts"]
    assert [each["path"] for each in shown if not each["fetched"]] == ["checkpoints/1/state"]
    assert (tmp_path / "checkpoints" / "2" / "state").read_bytes() == b"three"


@pytest.mark.parametrize(
    "path", ["../evil", "model/../../evil", "/etc/passwd", "model//x", "a/./b", "..", "", "a\\..\\b", "a\0b"]
)
def test_nothing_is_written_outside_of_the_folder(fake: FakeClient, tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInputError, match="leads out of the folder"):
        target_of(path, folder=tmp_path / "out")
    fake.files[path] = b"evil"
    with pytest.raises(LockstepError):
        run("--fetch", "--to", str(tmp_path / "out"))
    assert fake.fetched == [], "not even the others: the user is told first"
    assert list(tmp_path.rglob("*")) == []


def test_no_link_leads_out_of_the_folder(fake: FakeClient, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model").symlink_to(elsewhere)
    with pytest.raises(InvalidInputError, match="leads out of the folder"):
        run("--fetch", "--to", str(tmp_path / "out"))
    assert list(elsewhere.iterdir()) == []
    assert target_of("a/b", folder=tmp_path / "out") == tmp_path / "out" / "a" / "b"
