"""Versions in containers, on a real controller and runner; the engine only acts as one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.service.conftest import IMAGE
from tests.service.prediction.test_deployments import Site

from lockstep.jobs.running.order_parts import ContainerRoutes
from lockstep.jobs.running.states import JobState
from lockstep.processes.ports import reserve_address
from lockstep.service.prediction.containers import expand
from lockstep.service.store import VersionContainer, VersionState
from lockstep.testing.bench import Bench
from lockstep.testing.container_engine import FakeContainerEngine

SERVER = """
import http.server, json, os, pathlib, sys
folder = os.environ["AIP_STORAGE_URI"]
scale = int(pathlib.Path(folder, "scale.txt").read_text()) if folder else 1
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({} if self.path == "/alive" else None)
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.answer({"predictions": [scale * each for each in asked["instances"]], "words": sys.argv[2:]})
    def answer(self, document):
        self.send_response(404 if document is None else 200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


@pytest.fixture
def site(bench: Bench, tmp_path: Path, engine: FakeContainerEngine) -> Iterator[Site]:
    made = Site(bench, tmp_path)
    yield made
    made.database.dispose()


@pytest.fixture
def port() -> Iterator[int]:
    with closing(reserve_address("127.0.0.1")) as held:
        yield int(held.address.rpartition(":")[2])


def create(site: Site, port: int, *, deployment_uri: str = "") -> None:
    site.models.create_version(
        project="p",
        model="m",
        name="v1",
        description="",
        labels={},
        deployment_uri=deployment_uri,
        machine_type="n1-standard-4",
        container=VersionContainer(
            image=IMAGE,
            command=(sys.executable, "-c", SERVER),
            arguments=("$(AIP_HTTP_PORT)", "$(GREETING) $$(GREETING) $(NOTHING)"),
            env={"WHO": "v1", "GREETING": "hello $(WHO) of $(AIP_MODEL_NAME)"},
            routes=ContainerRoutes(port=port, predict="/predict", health="/alive"),
        ),
    )


def predict(site: Site) -> dict[str, object]:
    (address,) = site.routes.find(project="p", model="m", version="v1")
    headers = {"authorization": f"Bearer {address.token}"}
    answer = httpx.post(f"{address.url}/predict", json={"instances": [1, 2]}, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.heavy
def test_a_container_gets_the_files_its_variables_and_arguments(site: Site, port: int) -> None:
    folder = site.path / "files"
    folder.mkdir()
    (folder / "scale.txt").write_text("3")
    create(site, port, deployment_uri=str(folder))
    version = site.step_until_state(VersionState.READY)
    (folder / "scale.txt").write_text("4")  # what was deployed stays
    assert predict(site) == {"predictions": [3, 6], "words": ["hello v1 of m $(GREETING) $(NOTHING)"]}
    assert [file.name for file in version.files] == ["deployed-model/scale.txt"]
    site.models.begin_delete_version(project="p", model="m", name="v1")
    site.step_until(lambda: site.models.list_versions() == [])


@pytest.mark.heavy
def test_the_image_of_the_first_server_is_pinned(site: Site, port: int, engine: FakeContainerEngine) -> None:
    create(site, port)
    site.step_until_state(VersionState.READY)
    assert predict(site)["predictions"] == [1, 2]
    site.step_until(lambda: site.version().container.image_id == "sha256:1")  # type: ignore[union-attr]
    engine.configure(registry={IMAGE: "sha256:2"})
    site.models.set_num_servers(site.version(), 0)
    site.step_until(lambda: site.servers() == [])
    site.models.set_num_servers(site.version(), 1)
    site.step_until(lambda: site.version().num_failures > 0)
    last = site.jobs.last_server(site.version().uid)
    assert last is not None
    message = last.error_message or ""
    assert f"image {IMAGE} is not the one that was deployed; received 'sha256:2'; allowed: sha256:1" in message
    site.models.set_num_servers(site.version(), 0)
    site.step_until(lambda: site.servers() == [])


@pytest.mark.heavy
def test_a_server_with_another_image_is_ended(site: Site, port: int) -> None:
    create(site, port)
    site.step_until_state(VersionState.READY)
    (server,) = site.servers()
    container = site.version().container
    assert container is not None
    site.models.update_version(site.version(), container=replace(container, image_id="sha256:0"))
    site.deployments.step()
    assert [(found.uid, found.state) for found in site.servers()] == [(server.uid, JobState.CANCELLING)]
    site.models.set_num_servers(site.version(), 0)
    site.step_until(lambda: site.servers() == [])


def test_a_container_that_cannot_start_fails_its_version(site: Site, port: int) -> None:
    create(site, port, deployment_uri=str(site.path / "files"))
    (site.path / "files").mkdir()
    (site.path / "files" / "another.txt").write_text("x")
    version = site.step_until_state(VersionState.FAILED)
    assert "scale.txt" in (version.error_message or "")
    site.step_until(lambda: site.servers() == [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(B) $A $( A) $", "$(B) $A $( A) $"),
        ("x$(A)$(A)", "x11"),
    ],
)
def test_references_to_variables_are_those_of_kubernetes(text: str, expected: str) -> None:
    assert expand(text, variables={"A": "1"}) == expected
