"""A server on loopback that acts as the part of Azure's management interface that Ray's client uses, over TLS."""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "eyJ0-of-azure"

GROUP = "/subscriptions/sub-1/resourceGroups/lab-nodes"

PAGE_LENGTH = 2

_PARAMETER = re.compile(r"\[parameters\('(\w+)'\)\]")
_KINDS = {"string": str, "securestring": str, "int": int, "bool": bool, "object": dict}

Answer = tuple[int, Any, dict[str, str]]


class AzureManagement:
    """The virtual machines of one resource group, by name, as their deployments' templates say.

    Attributes:
        machines: as Azure shows them.
        custom_data: of each machine ever made, what it runs; Azure shows it to nobody.
        deployments: as Azure keeps them.
        num_made: how many machines were made.
        no_room: what is said of a machine for which there is no room, or which may not be changed; one that did not
            run yet stays, as one that failed.
        refusal: what is said of a deployment before anything of it is done.
        num_late: how many of the next questions for one machine are answered as if it were not there yet.
        num_throttled: how many of the next requests are too many.
        requests: what was asked for, as "METHOD kind".
    """

    def __init__(self) -> None:
        self.machines: dict[str, dict[str, Any]] = {}
        self.custom_data: dict[str, str] = {}
        self.deployments: dict[str, dict[str, Any]] = {}
        self.num_made = 0
        self.no_room: dict[str, Any] | None = None
        self.refusal: dict[str, Any] | None = None
        self.num_late = 0
        self.num_throttled = 0
        self.requests: list[str] = []
        self.url = ""
        self._operations: dict[str, str] = {}
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        kind, name = path.split("/")[-2:]
        if kind not in ("deployments", "virtualMachines", "operations"):
            kind, name = name, ""
        with self._lock:
            self.requests.append(f"{method} {kind}")
            if self.num_throttled:
                self.num_throttled -= 1
                return 429, error("TooManyRequests", "The request is being throttled"), {}
            if kind == "operations":
                return 200, self._outcome(name), {}
            if kind == "deployments":
                return self._deploy(name, body["properties"]) if method == "PUT" else (200, self.deployments[name], {})
            if method == "DELETE":
                return self._delete(name)
            return self._show(name, skip=int(query.get("$skip", ["0"])[0]))

    def _deploy(self, name: str, properties: dict[str, Any]) -> Answer:
        declared = properties["template"]["parameters"]
        values = {key: item["value"] for key, item in properties["parameters"].items()}
        if declared.keys() != values.keys():
            return 400, error("InvalidTemplate", f"parameters {sorted(declared.keys() ^ values.keys())}"), {}
        for key, value in values.items():
            if type(value) is not _KINDS[declared[key]["type"]]:
                return 400, error("InvalidTemplate", f"{key} is no {declared[key]['type']}"), {}
        if self.refusal is not None:
            inner = [self.refusal]
            return 400, error("InvalidTemplateDeployment", "The template deployment is not valid", details=inner), {}
        (machine,) = evaluated(properties["template"]["resources"], values)
        assert machine["type"] == "Microsoft.Compute/virtualMachines"
        hidden = machine["properties"]["osProfile"].pop("customData")
        kept = {key: value for key, value in values.items() if declared[key]["type"] != "securestring"}
        self.deployments[name] = {
            "id": f"{GROUP}/providers/Microsoft.Resources/deployments/{name}",
            "name": name,
            "properties": {"provisioningState": "Accepted", "parameters": {key: {"value": kept[key]} for key in kept}},
        }
        if machine["name"] not in self.machines:
            self.num_made += 1
            self.custom_data[machine["name"]] = hidden
            machine["id"] = f"{GROUP}/providers/Microsoft.Compute/virtualMachines/{machine['name']}"
            machine["properties"]["provisioningState"] = "Creating"
            self.machines[machine["name"]] = machine
        return self._begun(201, self.deployments[name], name)

    def _outcome(self, name: str) -> dict[str, Any]:
        machine = self.machines[self._operations[name]]
        if self.no_room is None:
            machine["properties"]["provisioningState"] = "Succeeded"
            return {"status": "Succeeded"}
        if machine["properties"]["provisioningState"] == "Creating":
            machine["properties"]["provisioningState"] = "Failed"
        said = {"status": "Failed", "error": {"code": "ResourceDeploymentFailure", "details": [self.no_room]}}
        inner = {"code": "Conflict", "message": json.dumps(said, indent=2)}
        return {
            "status": "Failed",
            **error("DeploymentFailed", "At least one resource deployment operation failed.", details=[inner]),
        }

    def _delete(self, name: str) -> Answer:
        if name not in self.machines:
            return 204, None, {}
        self.machines[name]["properties"]["provisioningState"] = "Deleting"
        return self._begun(202, None, name)

    def finish_deletions(self) -> None:
        """Acts as Azure some time later."""
        with self._lock:
            for name in [*self.machines]:
                if self.machines[name]["properties"]["provisioningState"] == "Deleting":
                    del self.machines[name]

    def _show(self, name: str, *, skip: int) -> Answer:
        if name:
            found = None if self.num_late else self.machines.get(name)
            self.num_late -= bool(self.num_late)
            return (200, found, {}) if found else (404, error("ResourceNotFound", f"{name} was not found"), {})
        page: dict[str, Any] = {"value": list(self.machines.values())[skip : skip + PAGE_LENGTH]}
        if skip + PAGE_LENGTH < len(self.machines):
            after = skip + PAGE_LENGTH
            page["nextLink"] = f"{self.url}{GROUP}/providers/Microsoft.Compute/virtualMachines?$skip={after}"
        return 200, page, {}

    def _begun(self, code: int, document: Any, name: str) -> Answer:
        operation = str(len(self._operations))
        self._operations[operation] = name
        return code, document, {"Azure-AsyncOperation": f"{self.url}/operations/{operation}"}


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, **more}}


def evaluated(template: Any, values: dict[str, Any]) -> Any:
    """Evaluates a template's expressions; it has no others than parameters."""
    if isinstance(template, dict):
        return {str(evaluated(key, values)): evaluated(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [evaluated(item, values) for item in template]
    if isinstance(template, str) and template.startswith("["):
        match = _PARAMETER.fullmatch(template)
        assert match, f"an expression that is not known here: {template}"
        return values[match[1]]
    return template


@contextmanager
def azure_management(tls: ssl.SSLContext) -> Iterator[AzureManagement]:
    """Runs it in a thread."""
    azure = AzureManagement()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                code, document, headers = azure.answer(self.command, url.path, parse_qs(url.query), body)
            else:
                code, document, headers = 401, error("AuthenticationFailed", "Authentication failed."), {}
            data = b"" if document is None else json.dumps(document).encode()
            self.send_response(code)
            for key, value in {**headers, "retry-after-ms": "2", "Content-Type": "application/json"}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_DELETE = _serve

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    azure.url = f"https://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield azure
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
