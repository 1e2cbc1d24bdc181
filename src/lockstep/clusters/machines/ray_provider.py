"""Machines of a cloud, managed through Ray's client of that cloud.

Ray's autoscaler is not used: Lockstep decides which machines to create and remove.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

from typing_extensions import override

from lockstep.clusters.machines.base import AbstractMachines
from lockstep.clusters.machines.clouds import AbstractCloud
from lockstep.clusters.machines.clouds.azure_errors import azure_message
from lockstep.clusters.machines.clouds.base import MACHINE_TAG
from lockstep.clusters.machines.start_script import start_script
from lockstep.errors import EngineError, InvalidInputError

if TYPE_CHECKING:
    from ray.autoscaler.node_provider import NodeProvider

MAX_MESSAGE_CHARS: Final = 300
"""The length at which a cloud's error message is cut off, in characters."""


@final
class RayProviderMachines(AbstractMachines):
    """The machines of one cluster at a cloud.

    Ray's clients cache their last listing and are not thread-safe, so each request uses a client that no other request
    is using.

    Args:
        cloud: the cloud.
        token: the token that nodes need to join the engine.
        head_address: returns "host:port" of the head's control store.
    """

    def __init__(self, cloud: AbstractCloud, *, token: str, head_address: Callable[[], str]) -> None:
        self._cloud = cloud
        self._token = token
        self._head_address = head_address
        self._idle: list[NodeProvider] = []
        self._lock = threading.Lock()

    @override
    def names(self) -> frozenset[str]:
        with self._provider("list the machines") as provider:
            return frozenset(self._found(provider, {}))

    @override
    def words(self, name: str) -> str:
        return ""

    @override
    def create(self, name: str, *, node_type: str) -> None:
        definition = self._cloud.definition
        script = start_script(
            name,
            node_type=node_type,
            head_address=self._head_address(),
            token=self._token,
            setup_commands=definition.setup_commands,
            before_off=self._cloud.before_off,
        )
        config = self._cloud.named(self._cloud.node_config(node_type), name=name, script=script)
        with self._provider(f"create machine {name}") as provider:
            if name not in self._found(provider, {MACHINE_TAG: name}):
                provider.create_node(config, {**self._cloud.tags, **_tags(name, node_type=node_type)}, 1)

    @override
    def remove(self, name: str) -> None:
        with self._provider(f"remove machine {name}") as provider:
            # There are several if a request was sent twice.
            for node_id in self._found(provider, {MACHINE_TAG: name}).get(name, []):
                provider.terminate_node(node_id)

    def _found(self, provider: NodeProvider, tags: dict[str, str]) -> dict[str, list[str]]:
        """Returns the cloud's ids of the cluster's machines that have these tags, by machine name.

        Stopped machines are included whatever their tags.
        """
        found: dict[str, list[str]] = {}
        for node_id in [*provider.non_terminated_nodes(tags), *self._cloud.stopped(provider)]:
            name = provider.node_tags(node_id).get(MACHINE_TAG)
            if name is not None:  # without the tag, it belongs to another Ray cluster of the same name
                found.setdefault(name, []).append(node_id)
        return found

    @contextmanager
    def _provider(self, what: str) -> Iterator[NodeProvider]:
        with self._lock:
            provider = self._idle.pop() if self._idle else None
        try:
            provider = provider or self._cloud.open()
            yield provider
        except ImportError as error:
            raise missing_client(self._cloud, error=error) from None
        except EngineError:
            raise
        except Exception as error:  # both clients may raise anything; the failed client is not used again
            raise EngineError(f"could not {what}: {error_message(error, secret=self._token)}") from None
        with self._lock:
            self._idle.append(provider)


def missing_client(cloud: AbstractCloud, *, error: ImportError) -> InvalidInputError:
    """Returns the error to raise if the cloud's own library is not installed."""
    return InvalidInputError(
        f"machines of {cloud.definition.provider.type.value} need a package that is not installed: {error.name}",
        action=f"run: pip install 'lockstep-train[{cloud.extra}]'",
    )


def error_message(error: BaseException, *, secret: str) -> str:
    """Returns a cloud's error message in one line: "InsufficientInstanceCapacity: We currently do not have ...".

    Args:
        error: the exception that was raised.
        secret: a text to hide in the message.
    """
    category, description = getattr(error, "category", None), getattr(error, "description", None)
    first: Any = error.args[0] if error.args else None
    if message := azure_message(error):
        text = message
    elif category and description:  # Ray's NodeLaunchException
        text = f"{category}: {description}"
    elif isinstance(first, dict):  # Ray's client of Google Cloud, if an operation failed
        errors: list[dict[str, Any]] = first.get("errors", [])
        text = "; ".join(f"{item.get('code')}: {item.get('message')}" for item in errors) or repr(first)
    else:
        text = f"{type(error).__name__}: {error}"
    words = " ".join(text.replace(secret, "***").split())
    return words if len(words) <= MAX_MESSAGE_CHARS else words[: MAX_MESSAGE_CHARS - 1] + "…"


def _tags(name: str, *, node_type: str) -> dict[str, str]:
    from ray.autoscaler.tags import (  # Ray is slow to import
        NODE_KIND_WORKER,
        TAG_RAY_NODE_KIND,
        TAG_RAY_NODE_NAME,
        TAG_RAY_USER_NODE_TYPE,
    )

    return {
        MACHINE_TAG: name,
        TAG_RAY_NODE_NAME: name,
        TAG_RAY_NODE_KIND: NODE_KIND_WORKER,
        TAG_RAY_USER_NODE_TYPE: node_type,
    }
