"""The paths of the Open Inference Protocol at a prediction server, below ``/v2``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final


@final
class Verb(StrEnum):
    """What a path of the protocol is for."""

    SERVER = "server"
    LIVE = "health/live"
    READY = "health/ready"
    MODEL = "model"
    MODEL_READY = "ready"
    INFER = "infer"


@final
@dataclass(frozen=True, kw_only=True)
class InferencePath:
    """A path of the protocol.

    Attributes:
        verb: what it is for.
        model: the name of the model that it names; empty if it names none. A prediction server has one model, which
            answers to every name.
        version: the version of the model that it names; None if it names none.
    """

    verb: Verb
    model: str = ""
    version: str | None = None

    @property
    def method(self) -> str:
        """The HTTP method of this path."""
        return "POST" if self.verb is Verb.INFER else "GET"


_PATH: Final = re.compile(r"/v2(?:/(health/live|health/ready)|/models/(\w+)(?:/versions/(\w+))?(?:/(ready|infer))?)?")


def find_path(path: str) -> InferencePath | None:
    """Returns what a request's path means; None if it is not one of the protocol."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    health, model, version, action = match.groups()
    if model is None:
        return InferencePath(verb=Verb(health) if health else Verb.SERVER)
    return InferencePath(verb=Verb(action) if action else Verb.MODEL, model=model, version=version)
