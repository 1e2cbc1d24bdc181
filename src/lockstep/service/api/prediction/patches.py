"""Changes of models and versions: ``updateMask``, ``etag``, and the values at the paths of the mask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from pydantic import Field
from pydantic.alias_generators import to_camel

from lockstep.errors import ConfigError, ConflictError, InvalidInputError, UnimplementedError, WrongStateError, closest
from lockstep.jobs.parsing.fields import AbstractDocument, Int32, Labels, Text
from lockstep.jobs.parsing.rules import parse_document
from lockstep.service.api.prediction.model_requests import (
    UNSUPPORTED,
    ManualScaling,
    ModelRequest,
    OwnRequestLogging,
    VersionRequest,
)
from lockstep.service.api.prediction.traffic import MaxVersions, TrafficSplit
from lockstep.service.api.resources import model_etag, version_etag
from lockstep.service.control.schedule import MAX_SERVERS
from lockstep.service.store import ModelChanges, ModelRecord, VersionRecord, VersionState

LABELS: Final = "labels"
MODEL_PATHS: Final = (
    "description",
    LABELS,
    "defaultVersion.name",
    "lockstep.trafficSplit",
    "lockstep.maxVersions",
)
REQUEST_LOGGING: Final = "lockstep.requestLogging"
VERSION_PATHS: Final = (
    "description",
    LABELS,
    "manualScaling.nodes",
    "autoScaling.minNodes",
    "autoScaling.maxNodes",
    REQUEST_LOGGING,
)


@final
class _Default(AbstractDocument):
    name: Text


@final
class _Own(AbstractDocument):
    """The fields of a model, and those of a version."""

    traffic_split: TrafficSplit | None = None
    max_versions: MaxVersions | None = None
    request_logging: OwnRequestLogging | None = None


@final
class _AutoScaling(AbstractDocument):
    min_nodes: Int32 | None = Field(default=None, ge=0, le=MAX_SERVERS)
    max_nodes: Int32 | None = Field(default=None, ge=1, le=MAX_SERVERS)


@final
class _Values(AbstractDocument):
    """The values at the paths of a mask. What is left out becomes empty, as the contract has it."""

    etag: Text | None = None
    description: Text = ""
    labels: Labels = Field(default_factory=dict)
    default_version: _Default | None = None
    manual_scaling: ManualScaling | None = None
    auto_scaling: _AutoScaling | None = None
    lockstep: _Own | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Patch:
    """A change of a model or a version, which the store applies to the resource as it is then.

    Attributes:
        paths: the paths of the mask.
        values: the values at these paths.
    """

    paths: frozenset[str]
    values: _Values

    @property
    def request_logging(self) -> OwnRequestLogging | None:
        """The new value of ``lockstep.requestLogging``; None if that stays."""
        return None if self.values.lockstep is None else self.values.lockstep.request_logging

    def change_model(self, model: ModelRecord) -> ModelChanges:
        """Returns what changes of a model.

        Raises:
            ConflictError: If the model has changed since the client read it.
        """
        check_etag(self.values.etag, current=model_etag(model), what=f"model {model.name}")
        columns, split = self._texts(model.labels), None
        own = self.values.lockstep or _Own()
        if own.max_versions is not None:
            columns["max_versions"] = own.max_versions or None
        if own.traffic_split is not None:
            split = own.traffic_split
        elif self.values.default_version is not None:
            prefix = f"projects/{model.project}/models/{model.name}/versions/"
            split = {self.values.default_version.name.removeprefix(prefix): 100}
        return ModelChanges(columns=columns, split=split)

    def change_version(self, version: VersionRecord) -> Mapping[str, Any]:
        """Returns the columns of a version to set.

        Raises:
            ConflictError: If the version has changed since the client read it.
            ConfigError: If the numbers of nodes contradict each other.
            WrongStateError: If the version cannot be changed in its state, or scales in the other way.
        """
        what = f"version {version.name} of {version.model}"
        check_etag(self.values.etag, current=version_etag(version), what=what)
        if version.state is VersionState.DELETING:
            raise WrongStateError(f"{what} is being deleted")
        return {**self._texts(version.labels), **self._scaling(version)}

    def _scaling(self, version: VersionRecord) -> dict[str, Any]:
        manual, auto = self.values.manual_scaling, self.values.auto_scaling
        if manual is None and auto is None:
            return {}
        what = "manualScaling.nodes" if auto is None else "autoScaling"
        if version.state is not VersionState.READY:
            raise WrongStateError(
                f"{what}: version {version.name} of {version.model} is {version.state}",
                action="change the number of nodes of a version that is READY",
            )
        policy = version.scaling
        if auto is None and policy is None:
            assert manual is not None
            return {"num_servers": manual.nodes}
        if manual is not None or auto is None or policy is None:
            has = "manualScaling" if policy is None else "autoScaling"
            raise WrongStateError(
                f"{what}: version {version.name} of {version.model} has {has}", action="create another version for that"
            )
        least = policy.min_servers if auto.min_nodes is None else auto.min_nodes
        most = policy.max_servers if auto.max_nodes is None else auto.max_nodes
        if most < least:
            raise ConfigError("autoScaling.maxNodes", received=most, allowed=f"minNodes, {least}, to {MAX_SERVERS}")
        return {
            "scaling": replace(policy, min_servers=least, max_servers=most),
            "num_servers": min(max(version.num_servers, least), most),
        }

    def _texts(self, labels: Mapping[str, str]) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if "description" in self.paths:
            changes["description"] = self.values.description
        keys = {path.removeprefix(f"{LABELS}.") for path in self.paths if path.startswith(f"{LABELS}.")}
        if LABELS in self.paths:
            changes["labels"] = self.values.labels
        elif keys:  # single labels are given: the others stay
            kept = {key: value for key, value in labels.items() if key not in keys}
            given = {key: value for key, value in self.values.labels.items() if key in keys}
            changes["labels"] = parse_document(_Values, document={LABELS: {**kept, **given}}, source="request").labels
        return changes


def check_etag(given: str | None, *, current: str, what: str) -> None:
    """Checks that a resource has not changed since a client read it.

    Args:
        given: the etag that the client has sent, if any.
        current: the etag of the resource.
        what: names the resource in the message.

    Raises:
        ConflictError: If it has changed.
    """
    if given and given != current:
        raise ConflictError(f"{what} changed since it was read", received=given, action="read it again")


def parse_model_patch(body: Mapping[str, Any], *, update_mask: str) -> Patch:
    """Parses a request to change a model.

    Args:
        body: the parsed JSON.
        update_mask: the paths to change, separated by commas, in camelCase or in snake_case.

    Raises:
        ConfigError: If the body has an unknown key, or a value of a wrong type at one of the paths.
        InvalidInputError: If the mask is empty, or has a path that cannot be changed, or two that may contradict
            each other.
        UnimplementedError: If the mask has a path of a field that Lockstep does not honour.
    """
    patch = _parse(ModelRequest, body=body, update_mask=update_mask, allowed=MODEL_PATHS)
    both = {"defaultVersion.name", "lockstep.trafficSplit"}
    if both <= patch.paths:
        raise InvalidInputError(
            "updateMask: defaultVersion.name and lockstep.trafficSplit both say which versions answer",
            action="name one of them: the default version is the one with the largest share",
        )
    return patch


def parse_version_patch(body: Mapping[str, Any], *, update_mask: str) -> Patch:
    """Parses a request to change a version; see `parse_model_patch`."""
    return _parse(VersionRequest, body=body, update_mask=update_mask, allowed=VERSION_PATHS)


def _parse(
    kind: type[ModelRequest | VersionRequest], *, body: Mapping[str, Any], update_mask: str, allowed: tuple[str, ...]
) -> Patch:
    known = [field.alias or name for name, field in kind.model_fields.items()]
    unknown = next((key for key in body if key not in known), None)
    if unknown is not None:
        near = closest(unknown, known)
        raise InvalidInputError(f"request: unknown key {unknown}", allowed=None if near else known, action=near)
    paths = frozenset(_camel(path) for path in update_mask.replace(" ", "").split(",") if path)
    for path in sorted(paths):
        _check_path(path, known=known, allowed=allowed)
    if not paths:
        raise InvalidInputError("updateMask: it names no field", allowed=allowed)
    # A client sends the whole resource that it has read. By the contract, only the fields of the mask are meant.
    document: dict[str, Any] = {}
    for path in (*paths, "etag"):
        key, value = path.partition(".")[0], _value_at(body, path)
        before = document.get(key)
        if isinstance(before, dict) and isinstance(value, dict):  # several paths of one field
            document[key] = {**before, **value}
        elif value is not None:
            document[key] = value
    return Patch(paths=paths, values=parse_document(_Values, document=document, source="request"))


def _camel(path: str) -> str:
    """Returns a path in camelCase. The keys of labels may have underscores of their own."""
    if path.startswith(f"{LABELS}."):
        return path
    return ".".join(map(to_camel, path.split(".")))


def _value_at(body: Mapping[str, Any], path: str) -> object:
    """Returns the value of the first part of a path, without what the path does not name."""
    first, _, rest = path.partition(".")
    value = body.get(first)
    if not rest or first == LABELS:
        return value
    if value is None or (isinstance(value, dict) and value.get(rest) is None):
        raise InvalidInputError(f"request: {path} is missing", action="updateMask names it")
    return {rest: value[rest]} if isinstance(value, dict) else value


def _check_path(path: str, *, known: list[str], allowed: tuple[str, ...]) -> None:
    if path in allowed or path.startswith(f"{LABELS}."):
        return
    field = path.partition(".")[0]
    if field in UNSUPPORTED and field in known:
        raise UnimplementedError(
            f"updateMask: {path}: {UNSUPPORTED[field]}", action=f"remove it; allowed: {', '.join(allowed)}"
        )
    what = "cannot be changed" if field in known else "no such field"
    raise InvalidInputError(f"updateMask: {path}: {what}", allowed=allowed)
