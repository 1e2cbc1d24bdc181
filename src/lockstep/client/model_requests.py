"""The requests to the service that are about models, versions and predictions."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx

from lockstep.client.paths import path_segment
from lockstep.tensors import BINARY_TYPE, HEADER_LENGTH, BinaryBody

TIMEOUT_S: Final = 30.0
PREDICT_TIMEOUT_S: Final = 120.0
VERSION_HEADER: Final = "x-lockstep-version"
"""The header with the name of the version that has answered."""


class AbstractModelRequests(ABC):
    """Sends the requests that are about models. `Client` has them, and sends them over its connections."""

    _prefix: str

    def create_model(self, name: str, *, description: str = "") -> dict[str, Any]:
        """Creates a model."""
        return self._call("POST", f"{self._prefix}/models", body={"name": name, "description": description})

    def model(self, name: str) -> dict[str, Any]:
        """Returns a model."""
        return self._call("GET", self._model(name))

    def models(self, *, filter_text: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Returns up to ``limit`` models, the newest first; sends as many requests as needed."""
        return self._listed(f"{self._prefix}/models", field="models", query={"filter": filter_text}, limit=limit)

    def delete_model(self, name: str) -> dict[str, Any]:
        """Deletes a model that has no versions, and returns the operation."""
        return self._call("DELETE", self._model(name))

    def create_version(
        self,
        model: str,
        *,
        name: str,
        deployment_uri: str = "",
        package_uris: Sequence[str] = (),
        python_module: str | None = None,
        prediction_class: str | None = None,
        container: Mapping[str, Any] | None = None,
        routes: Mapping[str, str] | None = None,
        machine_type: str | None = None,
        accelerator: Mapping[str, str] | None = None,
        auto_scaling: Mapping[str, int] | None = None,
        request_logging: Mapping[str, Any] | None = None,
        batching: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Starts the deployment of a version, and returns its operation.

        Args:
            model: the model's name.
            name: the version's name.
            deployment_uri: the URL of the model's file, or of its folder; for a routine or a container, of a folder
                with any files. A container needs none.
            package_uris: the URLs of packages that define the model's custom classes.
            python_module: the module that the model's job ran.
            prediction_class: the class of the custom prediction routine; None for a model.
            container: the container that serves the version, as the contract's ``container``; None for a model or a
                routine.
            routes: the paths that the container answers, as the contract's ``routes``; None for the default.
            machine_type: the machine type of its prediction servers; None for the default.
            accelerator: the accelerators of each prediction server, as the contract's ``acceleratorConfig``.
            auto_scaling: the contract's ``autoScaling``, such as ``{"minNodes": 0, "maxNodes": 4}``; None for one
                prediction server.
            request_logging: Lockstep's ``requestLogging``, such as ``{"samplingPercentage": 0.1}``; None for no log of
                requests.
            batching: Lockstep's ``batching``, such as ``{"maxBatchSize": 128, "maxLatency": "0.005s"}``; None for the
                default.
        """
        body: dict[str, Any] = {"name": name}
        if deployment_uri:
            body["deploymentUri"] = deployment_uri
        if container is not None:
            body["container"] = dict(container)
        if routes:
            body["routes"] = dict(routes)
        if auto_scaling is not None:
            body["autoScaling"] = dict(auto_scaling)
        if package_uris:
            body["packageUris"] = list(package_uris)
        own = {
            "pythonModule": python_module,
            "requestLogging": request_logging and dict(request_logging),
            "batching": batching and dict(batching),
        }
        if any(own.values()):
            body["lockstep"] = {key: value for key, value in own.items() if value}
        if prediction_class is not None:
            body["predictionClass"] = prediction_class
        if machine_type is not None:
            body["machineType"] = machine_type
        if accelerator is not None:
            body["acceleratorConfig"] = dict(accelerator)
        return self._call("POST", f"{self._model(model)}/versions", body=body)

    def version(self, model: str, *, name: str) -> dict[str, Any]:
        """Returns a version of a model."""
        return self._call("GET", self._version(model, name))

    def versions(self, model: str, *, limit: int = sys.maxsize) -> list[dict[str, Any]]:
        """Returns up to ``limit`` versions of a model, the newest first; sends as many requests as needed."""
        return self._listed(f"{self._model(model)}/versions", field="versions", query={}, limit=limit)

    def version_servers(self, model: str, *, version: str) -> list[dict[str, Any]]:
        """Returns the prediction servers of a version that are not over, the oldest first; 100 at most."""
        return self._call("GET", f"{self._version(model, version)}/servers")["servers"]

    def version_requests(self, model: str, *, version: str) -> dict[str, Any]:
        """Returns the requests that the service has answered from a version, for each of the last minutes with some.

        Returns:
            ``{"intervalSeconds", "sinceTime", "minutes": [{"time", "requests", "errors", "meanLatencySeconds"}]}``.
        """
        return self._call("GET", f"{self._version(model, version)}/requests")

    def scale_version(
        self,
        model: str,
        *,
        name: str,
        num_servers: int | None = None,
        min_servers: int | None = None,
        max_servers: int | None = None,
    ) -> dict[str, Any]:
        """Changes the number of prediction servers of a version, or its bounds, and returns the operation.

        Args:
            model: the model's name.
            name: the version's name.
            num_servers: the number, for a version with ``manualScaling``; None if it stays.
            min_servers: the minimum number, for a version with ``autoScaling``; None if it stays.
            max_servers: the maximum number, likewise.
        """
        values = {
            "manualScaling.nodes": num_servers,
            "autoScaling.minNodes": min_servers,
            "autoScaling.maxNodes": max_servers,
        }
        body: dict[str, dict[str, int]] = {}
        paths = [path for path, value in values.items() if value is not None]
        for path in paths:
            field, _, key = path.partition(".")
            body.setdefault(field, {})[key] = values[path] or 0
        return self._call("PATCH", self._version(model, name), query={"updateMask": ",".join(paths)}, body=body)

    def delete_version(self, model: str, *, name: str) -> dict[str, Any]:
        """Starts the deletion of a version, which ends its prediction servers, and returns the operation."""
        return self._call("DELETE", self._version(model, name))

    def set_default_version(self, model: str, *, name: str) -> dict[str, Any]:
        """Gives a version all traffic of its model, and makes it the default version."""
        return self._call("POST", f"{self._version(model, name)}:setDefault")

    def split_traffic(self, model: str, *, split: Mapping[str, int], etag: str = "") -> dict[str, Any]:
        """Changes which versions answer the requests to a model that name no version, and returns the operation.

        Args:
            model: the model's name.
            split: the percent of each version, by its name, which sum to 100; none if no version answers.
            etag: the model's etag, if it must not have changed since it was read.
        """
        return self._patch_own(model, "trafficSplit", value=dict(split), etag=etag)

    def rollback(self, model: str) -> dict[str, Any]:
        """Restores a model's traffic as it was before its last change, and returns the model."""
        return self._call("POST", f"{self._model(model)}:rollback")

    def keep_versions(self, model: str, *, max_versions: int) -> dict[str, Any]:
        """Changes how many versions a model keeps, 0 for all, and returns the operation."""
        return self._patch_own(model, "maxVersions", value=max_versions)

    def operation(self, name: str) -> dict[str, Any]:
        """Returns an operation by its full resource name."""
        return self._call("GET", f"/v1/{quote(name)}")

    def predict(
        self,
        model: str,
        instances: Sequence[Any],
        *,
        version: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Returns a model's predictions, one per instance.

        Args:
            model: the model's name.
            instances: the instances.
            version: the version's name; None for one that has traffic.
            parameters: the other keys of the request, for a custom prediction routine.
        """
        return self.predict_by(model, instances, version=version, parameters=parameters)[0]

    def predict_by(
        self,
        model: str,
        instances: Sequence[Any],
        *,
        version: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> tuple[list[Any], str | None]:
        """Returns what `predict` does, and the name of the version that has answered, if the service says it."""
        path = f"{self._model(model) if version is None else self._version(model, version)}:predict"
        body = {**(parameters or {}), "instances": instances}
        answer = self._send("POST", path, body=body, timeout_s=PREDICT_TIMEOUT_S)
        return self._read(answer)["predictions"], answer.headers.get(VERSION_HEADER)

    def predict_encoded(
        self, model: str, body: bytes, *, version: str | None = None, timeout_s: float = PREDICT_TIMEOUT_S
    ) -> list[Any]:
        """Returns a model's predictions for a request's body, ``{"instances": [...]}``, that is encoded already.

        Args:
            model: the model's name.
            body: the body, in JSON.
            version: the version's name; None for one that has traffic.
            timeout_s: how long the service may take to connect, or to send the next part of its answer, in seconds.
        """
        resource = self._model(model) if version is None else self._version(model, version)
        return self._call("POST", f"{resource}:predict", content=body, timeout_s=timeout_s)["predictions"]

    def infer(
        self, model: str, body: BinaryBody, *, version: str | None = None, timeout_s: float = PREDICT_TIMEOUT_S
    ) -> BinaryBody:
        """Returns a model's response to a request with binary tensors; see `predict_encoded` for the arguments."""
        resource = self._model(model) if version is None else self._version(model, version)
        path = f"{self._prefix}/v2{resource.removeprefix(self._prefix)}/infer"
        headers = {"content-type": BINARY_TYPE, HEADER_LENGTH: str(body.header_length)}
        answer = self._send("POST", path, content=body.content, headers=headers, timeout_s=timeout_s)
        length = answer.headers.get(HEADER_LENGTH, "")
        return BinaryBody(content=answer.content, header_length=int(length) if length.isdecimal() else 0)

    def _patch_own(self, model: str, field: str, *, value: object, etag: str = "") -> dict[str, Any]:
        body = {"lockstep": {field: value}, **({"etag": etag} if etag else {})}
        return self._call("PATCH", self._model(model), query={"updateMask": f"lockstep.{field}"}, body=body)

    def _model(self, name: str) -> str:
        return f"{self._prefix}/models/{path_segment(name, what='model')}"

    def _version(self, model: str, name: str) -> str:
        return f"{self._model(model)}/versions/{path_segment(name, what='version')}"

    @abstractmethod
    def _listed(self, path: str, *, field: str, query: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
        """Returns the resources on the pages of a list."""

    @abstractmethod
    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Sends a request, and returns the JSON of its response."""

    @abstractmethod
    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> httpx.Response:
        """Sends a request, and returns its response."""

    @abstractmethod
    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        """Returns the JSON of a response."""
