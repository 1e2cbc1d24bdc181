"""A fake container engine: a command that behaves like podman or docker, for tests on machines without them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, Final, final

import lockstep.testing

_COMMAND: Final = Path(lockstep.testing.__file__).with_name("container_command.py")


@final
class FakeContainerEngine:
    """Creates a command named podman or docker in a folder, which a test adds to its ``PATH``.

    Its containers are processes of this machine without any isolation.

    Args:
        folder: an empty folder for the command and its state.
        kind: "podman" or "docker".
    """

    def __init__(self, folder: Path, *, kind: str = "podman") -> None:
        self._state = folder / "state"
        for name in ("containers", "images"):
            (self._state / name).mkdir(parents=True)
        self.folder = folder / "bin"
        self.folder.mkdir()
        self._config: dict[str, Any] = {
            "answers": True,
            "registry": {},
            "pull_s": 0.0,
            "pull_error": None,
            "starves": False,
            "removes": True,
        }
        self.configure()
        command = self.folder / kind
        words = [sys.executable, "-IS", str(_COMMAND), str(self._state), kind]
        command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        command.chmod(0o755)

    def configure(self, **changes: Any) -> None:
        """Changes how the command behaves from now on.

        Args:
            **changes: ``answers``, whether the engine responds; ``registry``, the ids of images by name; ``pull_s``,
                the duration of a pull in seconds; ``pull_error``, the error message of every pull and push;
                ``starves``, whether programs end because memory ran out; ``removes``, whether containers can be
                removed.
        """
        assert changes.keys() <= self._config.keys()
        self._config |= changes
        (self._state / "config.json").write_text(json.dumps(self._config))

    def calls(self, *words: str) -> list[list[str]]:
        """Returns the calls so far that begin with these words."""
        lines = (self._state / "calls").read_text().splitlines() if (self._state / "calls").exists() else []
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if call[: len(words)] == list(words)]

    def containers(self) -> list[dict[str, Any]]:
        """Returns the existing containers."""
        return [json.loads(file.read_text()) for file in sorted((self._state / "containers").glob("*.json"))]

    def image_id(self, name: str) -> str:
        """Returns the id of an image that is on the machine."""
        return (self._state / "images" / name.replace("/", "%")).read_text()

    def images(self) -> list[str]:
        """Returns the names of the images that are on the machine."""
        return sorted(file.name.replace("%", "/") for file in (self._state / "images").iterdir())

    def built(self) -> dict[str, Any]:
        """Returns the files and the Containerfile of the last build."""
        return json.loads((self._state / "built.json").read_text())
