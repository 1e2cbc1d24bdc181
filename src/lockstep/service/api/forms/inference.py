"""The forms of the Open Inference Protocol."""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.service.api.forms.answers import STRICT


@with_config(STRICT)
class LiveForm(TypedDict):
    """Whether the service answers."""

    live: bool


@with_config(STRICT)
class ReadyForm(TypedDict):
    """Whether the service can find its models."""

    ready: bool


@with_config(STRICT)
class InferenceModelReadyForm(TypedDict):
    """Whether a model answers requests."""

    name: str
    ready: bool


@with_config(STRICT)
class InferenceServerForm(TypedDict):
    """The metadata of the server."""

    name: str
    version: str
    extensions: list[str]


class InferenceTensorForm(TypedDict):
    """The metadata of a tensor, and in a response of inference maybe its data."""

    name: str
    datatype: str
    shape: list[int]
    parameters: NotRequired[dict[str, Any]]
    data: NotRequired[list[Any]]


class InferenceModelForm(TypedDict):
    """The metadata of a model."""

    name: str
    versions: NotRequired[list[str]]
    platform: str
    inputs: list[InferenceTensorForm]
    outputs: list[InferenceTensorForm]


class InferenceForm(TypedDict):
    """The JSON of a response of inference. Binary data may follow it."""

    model_name: str
    model_version: NotRequired[str]
    id: NotRequired[str]
    outputs: list[InferenceTensorForm]
