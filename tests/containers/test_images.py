"""Images on a node: fetched once a start, and the kinds of failure."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.containers import ContainerEngine, EngineAnswer, EngineKind, ensure_image, open_engine
from lockstep.containers.images import pull_error
from lockstep.errors import ContainerEngineError, ImageError
from lockstep.testing.container_engine import FakeContainerEngine

TAGGED = "reg.example.com/trainer:1"
PINNED = f"reg.example.com/trainer@sha256:{'0a' * 32}"


def ensure(image: str, folder: Path, *, start: str = "g", said: list[str] | None = None) -> str:
    said = [] if said is None else said
    return ensure_image(open_engine(), image, start=start, folder=folder, cancelled=threading.Event(), say=said.append)


def test_a_node_fetches_an_image_once_for_all_replicas_of_a_start(fake: FakeContainerEngine, tmp_path: Path) -> None:
    fake.configure(registry={TAGGED: "sha256:1"}, pull_s=0.2)
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda _: ensure(TAGGED, tmp_path / "images"), range(4)))
    assert ids == ["sha256:1"] * 4
    assert len(fake.calls("pull")) == 1


def test_a_tag_is_asked_for_again_at_the_next_start(fake: FakeContainerEngine, tmp_path: Path) -> None:
    fake.configure(registry={TAGGED: "sha256:1"})
    assert ensure(TAGGED, tmp_path) == "sha256:1"
    fake.configure(registry={TAGGED: "sha256:2"})
    assert ensure(TAGGED, tmp_path) == "sha256:1"
    assert ensure(TAGGED, tmp_path, start="h") == "sha256:2"


def test_a_pinned_image_that_is_there_is_not_asked_for_again(fake: FakeContainerEngine, tmp_path: Path) -> None:
    fake.configure(registry={PINNED: "sha256:1"})
    for start in ("g", "h"):
        assert ensure(PINNED, tmp_path, start=start) == "sha256:1"
    assert len(fake.calls("pull")) == 1


def test_a_name_without_a_registry_is_what_is_there(fake: FakeContainerEngine, tmp_path: Path) -> None:
    fake.configure(registry={"trainer": "sha256:1"})
    for start in ("g", "h"):
        assert ensure("trainer", tmp_path, start=start) == "sha256:1"
    assert len(fake.calls("pull")) == 1, "the first one was not there"


def test_what_was_built_elsewhere_is_not_asked_of_anybody(fake: FakeContainerEngine, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="image localhost/trainer is not on this node, and its name has no registry"):
        ensure("localhost/trainer", tmp_path)
    assert fake.calls("pull") == []


def test_where_the_registry_is_away_what_is_there_is_taken(fake: FakeContainerEngine, tmp_path: Path) -> None:
    fake.configure(registry={TAGGED: "sha256:1"})
    ensure(TAGGED, tmp_path)
    fake.configure(pull_error="pinging container registry: dial tcp: connect: connection refused")
    said: list[str] = []
    assert ensure(TAGGED, tmp_path, start="h", said=said) == "sha256:1"
    assert "its registry cannot be reached" in said[-1]
    assert "using the image that is already on this node, sha256:1" in said[-1]


def test_a_fetch_that_was_cut_short_is_done_again(fake: FakeContainerEngine, tmp_path: Path) -> None:
    fake.configure(registry={TAGGED: "sha256:1"}, pull_s=60)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(ContainerEngineError, match="cancelled"):
        ensure_image(open_engine(), TAGGED, start="g", folder=tmp_path, cancelled=cancelled, say=lambda _: None)
    fake.configure(pull_s=0)
    assert ensure(TAGGED, tmp_path) == "sha256:1"


@pytest.mark.parametrize("kind", list(EngineKind))
@pytest.mark.parametrize(
    ("said", "is_users"),
    [
        ("Error: initializing source docker://r/x:latest: reading manifest latest in r/x: manifest unknown", True),
        ("Error response from daemon: manifest for r/x:9 not found: manifest unknown: manifest unknown", True),
        ("Error response from daemon: pull access denied for x, repository does not exist or may require", True),
        ('Error: short-name "x" did not resolve to an alias and no unqualified-search registries are defined', True),
        ("Error: reading manifest 1 in gcr.io/p/x: unauthorized: authentication required", True),
        ("Error: no matching manifest for linux/amd64 in the manifest list entries", True),
        ('Error: pinging container registry r: Get "https://r/v2/": dial tcp: lookup r: no such host', False),
        ('Error: pinging container registry r: Get "https://r/v2/": dial tcp 1.2.3.4:443: connection refused', False),
        ('Error response from daemon: Get "https://r/v2/": net/http: TLS handshake timeout', False),
        ("Error: writing blob: write /var/lib/containers: no space left on device", False),
        ("Error: received unexpected HTTP status: 503 Service Unavailable", False),
        ("toomanyrequests: You have reached your pull rate limit", False),
    ],
    ids=lambda value: str(value)[:60],
)
def test_failures_of_names_and_of_ways_are_told_apart(kind: EngineKind, said: str, is_users: bool) -> None:
    engine = ContainerEngine(kind=kind, path="x")
    error = pull_error(engine, "r/x", answer=EngineAnswer(code=125, output="", errors=f"Trying to pull...\n{said}\n"))
    assert isinstance(error, ImageError if is_users else ContainerEngineError)
    text = str(error)
    assert "image r/x" in text
    assert said.removeprefix("Error: ").removeprefix("Error response from daemon: ") in text
    assert kind in text
