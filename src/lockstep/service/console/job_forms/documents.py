"""The document of a job that is being written: what a ``config.yaml`` contains, as a value and as text.

Texts come from a browser and are parsed in the service, so their length is bounded, and YAML's aliases are refused: a
few lines with them can stand for gigabytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import yaml

from lockstep.errors import ConfigError, InvalidInputError
from lockstep.jobs.input.documents import parse_config
from lockstep.jobs.notifications.job_webhooks import HIDDEN_PATH
from lockstep.jobs.parsing.yaml_documents import parse_yaml
from lockstep.service.api.requests import check_texts

MAX_TEXT_BYTES: Final = 128 * 1024
"""The maximum length of a document's text. PyYAML takes about two seconds for this length."""
SOURCE: Final = "document"
"""What error messages call the text, and the name of its field."""
TRAINING: Final = "trainingInput"
PREDICTION: Final = "predictionInput"
_VERTEX_JOBS: Final = ("jobSpec", "workerPoolSpecs", "studySpec", "trialJobSpec")

Document = dict[str, Any]


def new_document(*, is_prediction: bool) -> Document:
    """Returns the document that an empty form begins with."""
    return {PREDICTION: {"dataFormat": "JSON"}} if is_prediction else {TRAINING: {"pythonModule": "train"}}


def is_prediction(document: Mapping[str, Any]) -> bool:
    """Returns whether a document describes a batch prediction."""
    return PREDICTION in document


def parse_text(text: str) -> Document:
    """Parses a text in YAML or JSON. A CustomJob or HyperparameterTuningJob of Vertex AI is translated.

    Raises:
        ConfigError: If the text is not valid, or has no keys and values.
        InvalidInputError: If it is longer than `MAX_TEXT_BYTES`, or contains what JSON does not have.
    """
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise InvalidInputError(
            f"{SOURCE}: the text is too long",
            allowed=f"{MAX_TEXT_BYTES} bytes at most",
            action="submit this job with `lockstep submit --config`",
        )
    _refuse_aliases(text)
    value = parse_yaml(text, source=SOURCE)
    if not isinstance(value, dict):
        raise ConfigError(SOURCE, received=value, allowed="keys and values, such as trainingInput: {...}")
    try:
        document: Document = json.loads(json.dumps(value, allow_nan=False))
        check_texts(document)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInputError(f"{SOURCE} contains what JSON does not have: {error}") from None
    if any(key in document for key in _VERTEX_JOBS):
        read = parse_config(document, source=SOURCE)
        document = {TRAINING: read.training_input.to_json(), **({"labels": read.labels} if read.labels else {})}
    return document


def text_of(document: Mapping[str, Any]) -> str:
    """Returns a document as YAML, in the order of its keys."""
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=100)


def cloned(submitted: Mapping[str, Any]) -> tuple[Document, tuple[str, ...]]:
    """Returns the document of a job like one that was submitted, and what has to be given again.

    Args:
        submitted: the job as it was submitted, without the parts that are not shown of it.

    Returns:
        The document, without the URLs of webhooks, of which only the hosts are known; and the shown parts of the URLs.
    """
    document: Document = json.loads(json.dumps(submitted))
    hooks = document.get(TRAINING, {}).get("lockstep", {}).get("webhooks", [])
    hidden = [hook for hook in cast("list[dict[str, Any]]", hooks) if str(hook.get("url", "")).endswith(HIDDEN_PATH)]
    return document, tuple(str(hook.pop("url")).removesuffix(HIDDEN_PATH) for hook in hidden)


def _refuse_aliases(text: str) -> None:
    if "*" not in text:
        return
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                where = f"line {event.start_mark.line + 1}"
                raise ConfigError(f"{SOURCE}: {where} has a YAML alias", allowed="the value itself in its place")
    except (yaml.YAMLError, RecursionError):
        return  # the parser says what is wrong
