"""``container`` and ``routes`` of a version: a server in a container of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, final

from pydantic import AfterValidator, Field

from lockstep.containers import check_reference, open_engine
from lockstep.errors import ConfigError, ContainerEngineError, InvalidInputError
from lockstep.jobs.parsing.fields import AbstractDocument, Int32, Text, rule_error, variable_name_rule
from lockstep.jobs.running.order_parts import ContainerRoutes
from lockstep.service.api.forms import ContainerForm, RoutesForm
from lockstep.service.settings import Settings
from lockstep.service.store import VersionContainer

DEFAULT_PORT: Final = 8080
MAX_VARIABLES: Final = 100
RESERVED_PREFIX: Final = "AIP_"
"""The beginning of the names of variables that the service sets."""


def check_route(value: str) -> str:
    """Checks that a text is the path of a URL."""
    if not value.startswith("/") or len(value) > 1024 or any(not " " < sign < "\x7f" or sign in "?#" for sign in value):
        raise rule_error(allowed="a path, such as /predict")
    return value


def check_variable_name(value: str) -> str:
    """Checks that a container's environment may have a variable of this name."""
    allowed = variable_name_rule(value)
    if allowed is None and value.startswith(RESERVED_PREFIX):
        allowed = f"another name: the service sets {RESERVED_PREFIX}..."
    if allowed is not None:
        raise rule_error(allowed=allowed)
    return value


@final
class ContainerPort(AbstractDocument):
    """``GoogleCloudMlV1__ContainerPort``.

    Attributes:
        container_port: the port that the server listens on.
    """

    container_port: Int32 = Field(ge=1, le=65535)


@final
class EnvVar(AbstractDocument):
    """``GoogleCloudMlV1__EnvVar``.

    Attributes:
        name: the name of the variable.
        value: its value, in which ``$(NAME)`` refers to another one.
    """

    name: Annotated[Text, AfterValidator(check_variable_name)]
    value: Text = ""


@final
class ContainerSpec(AbstractDocument):
    """``GoogleCloudMlV1__ContainerSpec``.

    Attributes:
        image: the name of the image.
        command: the command that replaces the image's entry point.
        args: the arguments of the entry point.
        ports: the port of the server; 8080 without one.
        env: the environment variables.
    """

    image: Text = Field(min_length=1)
    command: tuple[Text, ...] = ()
    args: tuple[Text, ...] = ()
    ports: tuple[ContainerPort, ...] = Field(default=(), max_length=1)
    env: tuple[EnvVar, ...] = Field(default=(), max_length=MAX_VARIABLES)


@final
class RouteMap(AbstractDocument):
    """``GoogleCloudMlV1__RouteMap``.

    Attributes:
        predict: the path that takes instances.
        health: the path that answers when the server is healthy.
    """

    predict: Annotated[Text, AfterValidator(check_route)] | None = None
    health: Annotated[Text, AfterValidator(check_route)] | None = None


def version_container(
    container: ContainerSpec | None, routes: RouteMap | None, *, model: str, version: str
) -> VersionContainer | None:
    """Returns the container of a version's servers, with the contract's default routes; None if it has none.

    Args:
        container: what was asked for.
        routes: the paths that were asked for.
        model: the name of the model.
        version: the name of the version.
    """
    if container is None:
        return None
    asked = routes or RouteMap()
    default = f"/v1/models/{model}/versions/{version}"
    return VersionContainer(
        image=container.image,
        command=container.command,
        arguments=container.args,
        env={variable.name: variable.value for variable in container.env},
        routes=ContainerRoutes(
            port=container.ports[0].container_port if container.ports else DEFAULT_PORT,
            predict=asked.predict or f"{default}:predict",
            health=asked.health or default,
        ),
    )


def check_container(container: VersionContainer, *, settings: Settings) -> None:
    """Rejects a container that could not run.

    Raises:
        ImageError: If the image's name is not valid.
        InvalidInputError: If this machine needs a container engine and has none.
    """
    check_reference(container.image, what="container.image")
    if settings.engine.is_local:  # the nodes are this machine; other nodes have container engines of their own
        try:
            open_engine()
        except ContainerEngineError as error:
            raise InvalidInputError(f"container.image: {container.image} cannot be run: {error}") from None


def check_distinct(env: Sequence[EnvVar], *, what: str) -> None:
    """Rejects two variables of the same name.

    Raises:
        ConfigError: If there are two.
    """
    names = [variable.name for variable in env]
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if twice is not None:
        raise ConfigError(f"request: {what}", received=f"{twice} twice", allowed="each name once")


def container_form(container: VersionContainer) -> ContainerForm:
    """Returns a container as ``GoogleCloudMlV1__ContainerSpec``."""
    form: ContainerForm = {"image": container.image, "ports": [{"containerPort": container.routes.port}]}
    if container.command:
        form["command"] = list(container.command)
    if container.arguments:
        form["args"] = list(container.arguments)
    if container.env:
        form["env"] = [{"name": name, "value": value} for name, value in container.env.items()]
    return form


def routes_form(container: VersionContainer) -> RoutesForm:
    """Returns the paths of a container as ``GoogleCloudMlV1__RouteMap``."""
    return {"predict": container.routes.predict, "health": container.routes.health}
