"""What a container gets that serves a version: its variables and arguments, as AI Platform's custom containers do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from lockstep.jobs.running.orders import GangOrder, ReplicaOrder
from lockstep.service.store import VersionContainer, VersionRecord
from lockstep.serving.model_files import MODEL_FOLDER

_REFERENCE: Final = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_]*)\))")


def order_container(order: GangOrder, version: VersionRecord) -> GangOrder:
    """Returns the order of a server with what its container runs; as it is for a version without a container.

    Args:
        order: the order, of one replica.
        version: the version.
    """
    if version.container is None:
        return order
    return replace(order, replicas=tuple(_order(replica, version, version.container) for replica in order.replicas))


def _order(order: ReplicaOrder, version: VersionRecord, container: VersionContainer) -> ReplicaOrder:
    assert order.container is not None, "its training input names the image"
    variables = _variables(version, container, folder=Path(order.spool) / "work" / MODEL_FOLDER)
    for name, value in container.env.items():  # a variable may refer to those before it
        variables[name] = expand(value, variables=variables)
    return replace(
        order,
        command=tuple(expand(word, variables=variables) for word in container.arguments),
        environment={**order.environment, **variables},
        container=replace(
            order.container,
            entry_point=tuple(expand(word, variables=variables) for word in container.command),
            image_id=container.image_id,
            readable=(),
        ),
    )


def _variables(version: VersionRecord, container: VersionContainer, *, folder: Path) -> dict[str, str]:
    """Returns the variables of the contract. The model's files are in a folder of the container, not in a bucket."""
    return {
        "AIP_MODE": "PREDICTION",
        "AIP_MODE_VERSION": "1.0.0",
        "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
        "AIP_MODEL_NAME": version.model,
        "AIP_VERSION_NAME": version.name,
        "AIP_ENDPOINT_ID": version.model,
        "AIP_DEPLOYED_MODEL_ID": version.name,
        "AIP_MACHINE_TYPE": version.machine_type,
        "AIP_ACCELERATOR_TYPE": "" if version.accelerator is None else version.accelerator.type.value,
        "AIP_HTTP_PORT": str(container.routes.port),
        "AIP_PREDICT_ROUTE": container.routes.predict,
        "AIP_HEALTH_ROUTE": container.routes.health,
        "AIP_STORAGE_URI": str(folder) if version.deployment_uri else "",
    }


def expand(text: str, *, variables: Mapping[str, str]) -> str:
    """Replaces ``$(NAME)`` by the value of a variable, as Kubernetes does.

    Args:
        text: the text. ``$$(NAME)`` stands for ``$(NAME)``, and a name that is unknown stays as it is.
        variables: the variables by name.
    """

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else variables.get(match[2], match[0])

    return _REFERENCE.sub(value, text)
