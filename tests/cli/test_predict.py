"""The forms in which `lockstep predict` reads instances."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lockstep.cli import predict
from lockstep.cli.app import app
from lockstep.errors import InvalidInputError, MissingInputError


class EchoClient:
    """A service whose model predicts what it is sent."""

    version: str | None = None
    parameters: Mapping[str, Any] | None = None

    def __enter__(self) -> EchoClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def predict_by(
        self, model: str, instances: Sequence[Any], *, version: str | None, parameters: Mapping[str, Any]
    ) -> tuple[list[Any], str | None]:
        assert model == "m"
        self.version, self.parameters = version, parameters
        return list(instances), version


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> EchoClient:
    made = EchoClient()
    monkeypatch.setattr(predict, "connect", lambda _project: made)
    return made


def _predictions(*arguments: str, stdin: str | bytes | None = None) -> list[Any]:
    done = CliRunner().invoke(app, ["predict", "m", *arguments], input=stdin, catch_exceptions=False)
    return json.loads(done.stdout)["predictions"]


def test_the_version_that_has_answered_is_named_beside_the_predictions(client: EchoClient) -> None:
    command = ["predict", "m", "--json-instances", "-", "--version", "v2"]
    done = CliRunner().invoke(app, command, input="[1]", catch_exceptions=False)
    assert (done.stdout, done.stderr) == ('{"predictions": [[1]]}\n', "-- answered by version v2\n")


def test_instances_are_read_from_a_request_lines_and_images(client: EchoClient, tmp_path: Path) -> None:
    request, lines, image = tmp_path / "request.json", tmp_path / "lines.jsonl", tmp_path / "photo.jpg"
    request.write_text('{"instances": [[1], [2]]}')
    lines.write_text('{"a": 1}\r\n\n{"a": 2}')
    image.write_bytes(b"\xff\xd8\xff")
    assert _predictions("--json-request", str(request)) == [[1], [2]]
    assert client.parameters == {}
    assert _predictions("--json-request", "-", stdin='{"instances": [3], "unknown": 1}') == [3]
    assert client.parameters == {"unknown": 1}
    assert _predictions("--json-instances", str(lines)) == [{"a": 1}, {"a": 2}]
    assert _predictions("--json-instances", "-", stdin="[1]\n[2]\n") == [[1], [2]]
    encoded = {"b64": base64.b64encode(b"\xff\xd8\xff").decode()}
    assert client.version is None
    assert _predictions("--image", str(image), "--image", str(image), "--version", "v2") == [encoded, encoded]
    assert client.version == "v2"
    assert _predictions("--image", "-", stdin=b"\xff\xd8\xff") == [encoded]


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ((), "", "give the instances in one way; allowed: one of --json-request, --json-instances, --image"),
        (("--json-request", "a", "--image", "b"), "", "received '--json-request and --image'"),
        (("--json-request", "-"), "[1]\n[2]\n", "standard input is not JSON.*use --json-instances"),
        (("--json-request", "-"), '{"rows": []}', r"standard input; allowed: \{\"instances\": \[\.\.\.\]\}"),
        (("--json-instances", "-"), "[1]\n\n[NaN]\n", "line 3 is not JSON: NaN is not valid JSON"),
        (("--json-instances", "-"), "\n", "is empty; allowed: one instance a line"),
    ],
)
@pytest.mark.usefixtures("client")
def test_what_are_no_instances_is_said(arguments: tuple[str, ...], stdin: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        _predictions(*arguments, stdin=stdin)


@pytest.mark.usefixtures("client")
def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"--image: .*/none\.png cannot be read: No such file"):
        _predictions("--image", str(tmp_path / "none.png"))
