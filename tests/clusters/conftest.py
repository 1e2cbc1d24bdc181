"""What the engines of this folder's tests share: some tests connect to Ray themselves, and it reads its token once."""

from __future__ import annotations

import pytest

from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.home import Home


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    made = Home(path=tmp_path_factory.mktemp("home"))
    made.create()
    EmbeddedHead(made).environment()  # makes the token
    return made


@pytest.fixture(scope="session")
def other_home(tmp_path_factory: pytest.TempPathFactory, home: Home) -> Home:
    """A home for another engine, with the token of the first."""
    made = Home(path=tmp_path_factory.mktemp("home"))
    made.engine.mkdir(parents=True, mode=0o700)
    (made.engine / "ray-token").write_text((home.engine / "ray-token").read_text())
    return made
