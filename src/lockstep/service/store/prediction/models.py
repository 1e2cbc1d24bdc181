"""Models, versions and operations in the database."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from sqlalchemy import Connection, Engine, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from lockstep.errors import ConflictError, NotFoundError, UnavailableError, WrongStateError
from lockstep.jobs.input.spec import AcceleratorConfig
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.prediction.policies import ScalingPolicy
from lockstep.service.store.prediction.records import (
    ModelRecord,
    OperationCode,
    OperationRecord,
    VersionRecord,
    VersionState,
)
from lockstep.service.store.prediction.rows import (
    check_answers,
    is_version,
    no_default,
    page,
    read_model,
    read_operation,
    read_row,
    read_version,
    version_names,
    version_record,
    write_default,
    write_revision,
)
from lockstep.service.store.tables import MODELS, OPERATIONS, VERSIONS

ModelChange = Callable[[ModelRecord], Mapping[str, Any]]
VersionChange = Callable[[VersionRecord], Mapping[str, Any]]


@final
class ModelStore:
    """The store of models, versions and operations. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        clock: the clock, in seconds since 1970 UTC.
        guard: called in each transaction before it writes; it may raise an exception to forbid the transaction.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._clock = clock
        self._guard = guard

    def create_model(
        self, *, project: str, name: str, description: str, labels: Mapping[str, str], region: str | None = None
    ) -> ModelRecord:
        """Records a new model.

        Args:
            project: the project that owns the model.
            name: the name of the model within the project.
            description: the description of the model.
            labels: the labels of the model.
            region: the region of its prediction servers; None for any.

        Raises:
            ConflictError: If the project has a model of this name.
        """
        values = {
            "project": project,
            "name": name,
            "description": description,
            "labels": dict(labels),
            "region": region,
            "create_time_s": self._clock(),
        }
        try:
            with writing(self._engine, guard=self._guard) as connection:
                connection.execute(insert(MODELS).values(values))
        except IntegrityError:
            raise ConflictError(f"project {project} has a model {name!r} already") from None
        return self.get_model(project=project, name=name)

    def get_model(self, *, project: str, name: str) -> ModelRecord:
        """Returns a model.

        Raises:
            NotFoundError: If the project has no model of this name.
        """
        with reading(self._engine) as connection:
            return read_model(connection, project, name)

    def delete_model(self, *, project: str, name: str) -> OperationRecord:
        """Deletes a model without versions. The returned operation is done.

        Raises:
            NotFoundError: If there is no such model.
            WrongStateError: If the model has versions.
        """
        with writing(self._engine, guard=self._guard) as connection:
            read_model(connection, project, name, to_write=True)
            if version_names(connection, project, name):
                raise WrongStateError(f"model {name} has versions", action="delete its versions first")
            connection.execute(delete(MODELS).where(MODELS.c.project == project, MODELS.c.name == name))
            operation = self._operation_values(project, "DELETE_MODEL", name, None)
            connection.execute(insert(OPERATIONS).values({**operation, "end_time_s": self._clock()}))
        return self.get_operation(project=project, name=operation["name"])

    def create_version(
        self,
        *,
        project: str,
        model: str,
        name: str,
        description: str,
        labels: Mapping[str, str],
        deployment_uri: str,
        machine_type: str,
        package_uris: Sequence[str] = (),
        python_module: str | None = None,
        python_version: str | None = None,
        framework: str | None = None,
        accelerator: AcceleratorConfig | None = None,
        num_servers: int = 1,
        scaling: ScalingPolicy | None = None,
        uploaded_model: str | None = None,
        makes_default: bool = False,
    ) -> OperationRecord:
        """Records a new version as CREATING, in the region of its model. The arguments are those of `VersionRecord`.

        With `scaling`, the number of its servers begins with the policy's.

        Raises:
            NotFoundError: If there is no such model.
            ConflictError: If the model has a version of this name.
        """
        operation = self._operation_values(project, "CREATE_VERSION", model, name)
        values = {
            "project": project,
            "model": model,
            "name": name,
            "uid": uuid.uuid4().hex,
            "description": description,
            "labels": dict(labels),
            "deployment_uri": deployment_uri,
            "package_uris": list(package_uris),
            "python_module": python_module,
            "python_version": python_version,
            "framework": framework,
            "machine_type": machine_type,
            "accelerator": accelerator,
            "state": VersionState.CREATING.value,
            "create_time_s": self._clock(),
            "num_servers": num_servers if scaling is None else scaling.first_servers,
            "scaling": scaling,
            "uploaded_model": uploaded_model,
            "makes_default": makes_default,
        }
        try:
            with writing(self._engine, guard=self._guard) as connection:
                region = read_model(connection, project, model, to_write=True).region
                connection.execute(insert(VERSIONS).values({**values, "region": region}))
                connection.execute(insert(OPERATIONS).values(operation))
        except IntegrityError:
            raise ConflictError(f"model {model} has a version {name!r} already", action="choose another name") from None
        return self.get_operation(project=project, name=operation["name"])

    def get_version(self, *, project: str, model: str, name: str | None) -> VersionRecord:
        """Returns a version of a model, or the default version if `name` is None.

        Raises:
            NotFoundError: If there is no such model or version, or no version at all.
            UnavailableError: If no version of the model has been ready yet, so that none is the default.
        """
        with reading(self._engine) as connection:
            if name is None:
                name = read_model(connection, project, model).default_version
                if name is None:
                    raise no_default(connection, project, model)
            return read_version(connection, project, model, name)

    def get_version_by_uid(self, uid: str) -> VersionRecord:
        """Returns a version by its uid.

        Raises:
            NotFoundError: If there is no such version any more.
        """
        with reading(self._engine) as connection:
            row = read_row(connection, select(VERSIONS).where(VERSIONS.c.uid == uid))
        if row is None:
            raise NotFoundError(f"there is no version with the uid {uid}")
        return version_record(row)

    def page_models(self, *, project: str, size: int, before: tuple[float, str] | None = None) -> list[ModelRecord]:
        """Returns up to `size` models of a project, the newest first.

        Args:
            project: the project.
            size: the maximum number of models.
            before: the creation time and name of the last model of the previous page.
        """
        query = page(select(MODELS).where(MODELS.c.project == project), MODELS, size=size, before=before)
        with reading(self._engine) as connection:
            return [ModelRecord(**row) for row in connection.execute(query).mappings()]

    def page_versions(
        self, *, project: str, model: str, size: int, before: tuple[float, str] | None = None
    ) -> list[VersionRecord]:
        """Returns up to `size` versions of a model, the newest first; see `page_models`."""
        query = select(VERSIONS).where(VERSIONS.c.project == project, VERSIONS.c.model == model)
        with reading(self._engine) as connection:
            rows = connection.execute(page(query, VERSIONS, size=size, before=before))
            return [version_record(row) for row in rows.mappings()]

    def list_versions(self, *, project: str | None = None, model: str | None = None) -> list[VersionRecord]:
        """Returns versions, the oldest first: a model's, a project's, or all."""
        query = select(VERSIONS).order_by(VERSIONS.c.create_time_s, VERSIONS.c.name)
        if project is not None:
            query = query.where(VERSIONS.c.project == project)
        if model is not None:
            query = query.where(VERSIONS.c.model == model)
        with reading(self._engine) as connection:
            return [version_record(row) for row in connection.execute(query).mappings()]

    def set_default(self, *, project: str, model: str, name: str) -> VersionRecord:
        """Makes a version the default of its model.

        Raises:
            NotFoundError: If there is no such version.
            WrongStateError: If the version is not READY, so that it would not answer.
        """
        with writing(self._engine, guard=self._guard) as connection:
            read_model(connection, project, model, to_write=True)
            record = read_version(connection, project, model, name)
            check_answers(record)
            write_default(connection, project, model, name)
            write_revision(connection, project, model)
        return record

    def patch_model(self, *, project: str, name: str, change: ModelChange) -> OperationRecord:
        """Changes what the owner of a model may change. The returned operation is done.

        Args:
            project: the project.
            name: the name of the model.
            change: returns the columns to set, given the model as it is; it may raise an exception to change nothing.

        Raises:
            NotFoundError: If there is no such model, or no version that would become its default.
            WrongStateError: If the version that would become the default is not READY.
        """
        now_s = self._clock()
        operation = {**self._operation_values(project, "UPDATE_MODEL", name, None), "end_time_s": now_s}
        with writing(self._engine, guard=self._guard) as connection:
            values = change(read_model(connection, project, name, to_write=True))
            if "default_version" in values:
                check_answers(read_version(connection, project, name, values["default_version"]))
            model = (MODELS.c.project == project, MODELS.c.name == name)
            connection.execute(update(MODELS).where(*model).values(values))
            write_revision(connection, project, name)
            connection.execute(insert(OPERATIONS).values(operation))
        return self.get_operation(project=project, name=operation["name"])

    def patch_version(self, *, project: str, model: str, name: str, change: VersionChange) -> OperationRecord:
        """Changes what the owner of a version may change.

        The returned operation is done, unless the number of servers changes. Then it is done when there are as many, or
        when another change of the number follows.

        Args:
            project: the project.
            model: the name of the model.
            name: the name of the version.
            change: returns the columns to set, given the version as it is; it may raise an exception to change nothing.

        Raises:
            NotFoundError: If there is no such version.
            UnavailableError: If the state of the version has just changed.
        """
        operation = self._operation_values(project, "UPDATE_VERSION", model, name)
        with writing(self._engine, guard=self._guard) as connection:
            read_model(connection, project, model, to_write=True)
            record = read_version(connection, project, model, name)
            values = {**change(record), "revision": record.revision + 1}
            if values.get("num_servers", record.num_servers) == record.num_servers:
                operation["end_time_s"] = operation["create_time_s"]
            else:
                values["update_operation"] = operation["name"]
                followed = (OperationCode.CANCELLED, f"another update followed: {operation['name']}")
                self._end_operations(connection, record, "UPDATE_VERSION", error=followed)
            same_state = VERSIONS.c.state == record.state.value
            if connection.execute(update(VERSIONS).where(*is_version(record), same_state).values(values)).rowcount == 0:
                raise UnavailableError(f"the state of version {name} of {model} has just changed", action="try again")
            connection.execute(insert(OPERATIONS).values(operation))
        return self.get_operation(project=project, name=operation["name"])

    def end_update(self, record: VersionRecord) -> None:
        """Ends the operation of a version's update, if no other update has followed."""
        is_last = VERSIONS.c.update_operation == record.update_operation
        with writing(self._engine, guard=self._guard) as connection:
            ended = update(VERSIONS).where(*is_version(record), is_last).values(update_operation=None)
            if connection.execute(ended).rowcount:
                self._end_operations(connection, record, "UPDATE_VERSION")

    def note_use(self, uid: str, *, time_s: float) -> None:
        """Records that a version was used for predictions, unless a later use is recorded.

        Args:
            uid: the uid of the version, which may have been removed.
            time_s: the time, in seconds since 1970 UTC.
        """
        is_later = or_(VERSIONS.c.last_use_time_s.is_(None), VERSIONS.c.last_use_time_s < time_s)
        with writing(self._engine, guard=self._guard) as connection:
            connection.execute(update(VERSIONS).where(VERSIONS.c.uid == uid, is_later).values(last_use_time_s=time_s))

    def begin_delete_version(self, *, project: str, model: str, name: str) -> OperationRecord:
        """Marks a version as DELETING. `Deployments` then ends its prediction server and removes it.

        Raises:
            NotFoundError: If there is no such version.
            WrongStateError: If the version is the default and the model has other versions.
        """
        operation = self._operation_values(project, "DELETE_VERSION", model, name)
        with writing(self._engine, guard=self._guard) as connection:
            default = read_model(connection, project, model, to_write=True).default_version
            record = read_version(connection, project, model, name)
            if default == name and len(version_names(connection, project, model)) > 1:
                raise WrongStateError(
                    f"version {name} is the default of {model}", action="make another the default first"
                )
            connection.execute(insert(OPERATIONS).values(operation))
            connection.execute(update(VERSIONS).where(*is_version(record)).values(state=VersionState.DELETING.value))
        return self.get_operation(project=project, name=operation["name"])

    def update_version(self, record: VersionRecord, **changes: Any) -> bool:
        """Sets columns of a version if its state is still that of the record.

        A version that becomes READY or FAILED ends the operation of its creation. One that becomes READY is the default
        of its model if the model has none, or if it was created to become that.

        Args:
            record: the version as it was read.
            **changes: the columns to set.

        Returns:
            Whether the columns were set.
        """
        values = {key: value.value if isinstance(value, VersionState) else value for key, value in changes.items()}
        unchanged = VERSIONS.c.state == record.state.value
        with writing(self._engine, guard=self._guard) as connection:
            if connection.execute(update(VERSIONS).where(*is_version(record), unchanged).values(values)).rowcount == 0:
                return False
            if changes.get("state") is VersionState.READY:
                model = (MODELS.c.project == record.project, MODELS.c.name == record.model)
                has_none = () if record.makes_default else (MODELS.c.default_version.is_(None),)
                connection.execute(update(MODELS).where(*model, *has_none).values(default_version=record.name))
                self._end_operations(connection, record, "CREATE_VERSION")
            elif changes.get("state") is VersionState.FAILED:
                reason = str(changes.get("error_message"))
                error = (OperationCode.FAILED_PRECONDITION, reason)
                self._end_operations(connection, record, "CREATE_VERSION", error=error)
                self._end_operations(connection, record, "UPDATE_VERSION", error=error)
            return True

    def set_num_servers(self, record: VersionRecord, number: int) -> bool:
        """Sets how many servers a version should have now, if nothing of it has changed since it was read.

        Returns:
            Whether it was set.
        """
        unchanged = (
            VERSIONS.c.state == record.state.value,
            VERSIONS.c.num_servers == record.num_servers,
            VERSIONS.c.revision == record.revision,
        )
        with writing(self._engine, guard=self._guard) as connection:
            query = update(VERSIONS).where(*is_version(record), *unchanged).values(num_servers=number)
            return connection.execute(query).rowcount == 1

    def remove_version(self, record: VersionRecord) -> None:
        """Removes a version whose server is gone, and ends the operations on it."""
        with writing(self._engine, guard=self._guard) as connection:
            connection.execute(delete(VERSIONS).where(*is_version(record)))
            connection.execute(
                update(MODELS)
                .where(
                    MODELS.c.project == record.project,
                    MODELS.c.name == record.model,
                    MODELS.c.default_version == record.name,
                )
                .values(default_version=None)
            )
            deleted = (OperationCode.CANCELLED, "the version was deleted")
            self._end_operations(connection, record, "CREATE_VERSION", error=deleted)
            self._end_operations(connection, record, "UPDATE_VERSION", error=deleted)
            self._end_operations(connection, record, "DELETE_VERSION")

    def get_operation(self, *, project: str, name: str) -> OperationRecord:
        """Returns an operation.

        Raises:
            NotFoundError: If the project has no operation of this name.
        """
        with reading(self._engine) as connection:
            return read_operation(connection, project, name)

    def page_operations(
        self, *, project: str, size: int, before: tuple[float, str] | None = None
    ) -> list[OperationRecord]:
        """Returns up to `size` operations of a project, the newest first.

        Args:
            project: the project.
            size: the maximum number of operations.
            before: the creation time and name of the last operation of the previous page.
        """
        query = select(OPERATIONS).where(OPERATIONS.c.project == project)
        query = page(query, OPERATIONS, size=size, before=before)
        with reading(self._engine) as connection:
            return [OperationRecord(**row) for row in connection.execute(query).mappings()]

    def cancel_operation(self, *, project: str, name: str, principal_label: str) -> None:
        """Cancels the creation of a version: the operation ends as cancelled, and the version is marked as DELETING.

        Raises:
            NotFoundError: If the project has no operation of this name.
            WrongStateError: If the operation is over, or is not the creation of a version.
        """
        with writing(self._engine, guard=self._guard) as connection:
            operation = read_operation(connection, project, name)
            if operation.end_time_s is not None:
                raise WrongStateError(f"operation {name} is over already")
            if operation.kind == "UPDATE_VERSION":
                raise WrongStateError(
                    f"operation {name} cannot be cancelled: the update is recorded, and servers start and end for it",
                    action=f"update version {operation.version} again",
                )
            if operation.kind != "CREATE_VERSION" or operation.version is None:
                raise WrongStateError(
                    f"operation {name} cannot be cancelled: a deletion cannot be undone",
                    action=f"wait until it is over, and create version {operation.version} again",
                )
            record = read_version(connection, project, operation.model, operation.version)
            is_new = VERSIONS.c.state == VersionState.CREATING.value
            deleting = update(VERSIONS).where(*is_version(record), is_new).values(state=VersionState.DELETING.value)
            if connection.execute(deleting).rowcount == 0:
                raise WrongStateError(
                    f"operation {name} cannot be cancelled: version {record.name} is no longer being created",
                    action="read the operation again",
                )
            cancelled = (OperationCode.CANCELLED, f"cancelled by {principal_label}")
            self._end_operations(connection, record, "CREATE_VERSION", error=cancelled)

    def _operation_values(self, project: str, kind: str, model: str, version: str | None) -> dict[str, Any]:
        return {
            "name": f"{kind.lower()}_{uuid.uuid4().hex[:16]}",
            "project": project,
            "kind": kind,
            "model": model,
            "version": version,
            "create_time_s": self._clock(),
        }

    def _end_operations(
        self,
        connection: Connection,
        record: VersionRecord,
        kind: str,
        *,
        error: tuple[OperationCode, str] | None = None,
    ) -> None:
        code, message = error or (None, None)
        connection.execute(
            update(OPERATIONS)
            .where(
                OPERATIONS.c.project == record.project,
                OPERATIONS.c.model == record.model,
                OPERATIONS.c.version == record.name,
                OPERATIONS.c.kind == kind,
                OPERATIONS.c.end_time_s.is_(None),
            )
            .values(end_time_s=self._clock(), error_code=code, error_message=message)
        )
