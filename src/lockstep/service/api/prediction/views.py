"""Reads what the resources of models, versions and operations show beside their own records."""

from __future__ import annotations

import contextlib

from lockstep.errors import NotFoundError
from lockstep.service.api.forms import ModelForm, OperationForm, VersionForm
from lockstep.service.api.prediction.waits import describe_wait, num_ready
from lockstep.service.api.requests import Context
from lockstep.service.api.resources import model_resource, operation_resource, version_resource
from lockstep.service.store import ModelRecord, OperationRecord, VersionRecord


def model_of(model: ModelRecord, context: Context, *, with_changes: bool = True) -> ModelForm:
    """Returns a model with its default version.

    Args:
        model: the model.
        context: the parts of the service.
        with_changes: whether the latest changes of its traffic are read, too.
    """
    default, changes = None, None
    if model.default_version is not None:
        with contextlib.suppress(NotFoundError):  # it has just been deleted
            default = context.models.get_version(project=model.project, model=model.name, name=model.default_version)
    if with_changes:
        changes = context.models.list_traffic_changes(project=model.project, model=model.name)
    return model_resource(model, default=default, changes=changes)


def version_of(version: VersionRecord, context: Context) -> VersionForm:
    """Returns a version, with what it waits for, and the number of its prediction servers that are ready now."""
    default = context.models.get_model(project=version.project, name=version.model).default_version
    servers = context.jobs.servers(version_uid=version.uid)
    return version_resource(
        version,
        is_default=version.name == default,
        waiting_for=describe_wait(version, servers=servers, context=context),
        num_ready_servers=num_ready(servers),
    )


def operation_of(operation: OperationRecord, context: Context) -> OperationForm:
    """Returns an operation, with the model or version that it is on, as it is now."""
    try:
        if operation.kind == "UPDATE_MODEL":
            model = context.models.get_model(project=operation.project, name=operation.model)
            return operation_resource(operation, model=model_of(model, context))
        if operation.version is not None:
            found = context.models.get_version(project=operation.project, model=operation.model, name=operation.version)
            if operation.end_time_s is None or found.create_time_s <= operation.end_time_s:
                return operation_resource(operation, version=version_of(found, context))
    except NotFoundError:  # it has been deleted
        pass
    return operation_resource(operation)
