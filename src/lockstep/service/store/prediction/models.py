"""Models, versions and operations in the database."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from sqlalchemy import Connection, Engine, RowMapping, Select, Table, and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from lockstep.errors import ConflictError, NotFoundError, UnavailableError, WrongStateError
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.prediction.policies import ScalingPolicy
from lockstep.service.store.prediction.records import (
    ModelRecord,
    OperationCode,
    OperationRecord,
    VersionRecord,
    VersionState,
)
from lockstep.service.store.tables import MODELS, OPERATIONS, VERSIONS


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

    def create_model(self, *, project: str, name: str, description: str, labels: Mapping[str, str]) -> ModelRecord:
        """Records a new model.

        Raises:
            ConflictError: If the project has a model of this name.
        """
        values = {
            "project": project,
            "name": name,
            "description": description,
            "labels": dict(labels),
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
            return _get_model(connection, project, name)

    def delete_model(self, *, project: str, name: str) -> OperationRecord:
        """Deletes a model without versions. The returned operation is done.

        Raises:
            NotFoundError: If there is no such model.
            WrongStateError: If the model has versions.
        """
        with writing(self._engine, guard=self._guard) as connection:
            _get_model(connection, project, name, to_write=True)
            if _version_names(connection, project, name):
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
        num_servers: int = 1,
        scaling: ScalingPolicy | None = None,
    ) -> OperationRecord:
        """Records a new version as CREATING. With `scaling`, the number of its servers begins with the policy's.

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
            "machine_type": machine_type,
            "state": VersionState.CREATING.value,
            "create_time_s": self._clock(),
            "num_servers": num_servers if scaling is None else scaling.first_servers,
            "scaling": scaling,
        }
        try:
            with writing(self._engine, guard=self._guard) as connection:
                _get_model(connection, project, model, to_write=True)
                connection.execute(insert(VERSIONS).values(values))
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
                name = _get_model(connection, project, model).default_version
                if name is None:
                    raise _no_default(connection, project, model)
            return _get_version(connection, project, model, name)

    def get_version_by_uid(self, uid: str) -> VersionRecord:
        """Returns a version by its uid.

        Raises:
            NotFoundError: If there is no such version any more.
        """
        with reading(self._engine) as connection:
            row = _row(connection, select(VERSIONS).where(VERSIONS.c.uid == uid))
        if row is None:
            raise NotFoundError(f"there is no version with the uid {uid}")
        return _version(row)

    def page_models(self, *, project: str, size: int, before: tuple[float, str] | None = None) -> list[ModelRecord]:
        """Returns up to `size` models of a project, the newest first.

        Args:
            project: the project.
            size: the maximum number of models.
            before: the creation time and name of the last model of the previous page.
        """
        query = _page(select(MODELS).where(MODELS.c.project == project), MODELS, size=size, before=before)
        with reading(self._engine) as connection:
            return [ModelRecord(**row) for row in connection.execute(query).mappings()]

    def page_versions(
        self, *, project: str, model: str, size: int, before: tuple[float, str] | None = None
    ) -> list[VersionRecord]:
        """Returns up to `size` versions of a model, the newest first; see `page_models`."""
        query = select(VERSIONS).where(VERSIONS.c.project == project, VERSIONS.c.model == model)
        with reading(self._engine) as connection:
            rows = connection.execute(_page(query, VERSIONS, size=size, before=before))
            return [_version(row) for row in rows.mappings()]

    def list_versions(self, *, project: str | None = None, model: str | None = None) -> list[VersionRecord]:
        """Returns versions, the oldest first: a model's, a project's, or all."""
        query = select(VERSIONS).order_by(VERSIONS.c.create_time_s, VERSIONS.c.name)
        if project is not None:
            query = query.where(VERSIONS.c.project == project)
        if model is not None:
            query = query.where(VERSIONS.c.model == model)
        with reading(self._engine) as connection:
            return [_version(row) for row in connection.execute(query).mappings()]

    def set_default(self, *, project: str, model: str, name: str) -> VersionRecord:
        """Makes a version the default of its model.

        Raises:
            NotFoundError: If there is no such version.
            WrongStateError: If the version is not READY, so that it would not answer.
        """
        with writing(self._engine, guard=self._guard) as connection:
            _get_model(connection, project, model, to_write=True)
            record = _get_version(connection, project, model, name)
            if record.state is not VersionState.READY:
                raise WrongStateError(
                    f"version {name} of {model} is {record.state}, and answers no requests",
                    action="choose a version that is READY",
                )
            _set_default(connection, project, model, name)
        return record

    def begin_delete_version(self, *, project: str, model: str, name: str) -> OperationRecord:
        """Marks a version as DELETING. `Deployments` then ends its prediction server and removes it.

        Raises:
            NotFoundError: If there is no such version.
            WrongStateError: If the version is the default and the model has other versions.
        """
        operation = self._operation_values(project, "DELETE_VERSION", model, name)
        with writing(self._engine, guard=self._guard) as connection:
            default = _get_model(connection, project, model, to_write=True).default_version
            record = _get_version(connection, project, model, name)
            if default == name and len(_version_names(connection, project, model)) > 1:
                raise WrongStateError(
                    f"version {name} is the default of {model}", action="make another the default first"
                )
            connection.execute(insert(OPERATIONS).values(operation))
            connection.execute(update(VERSIONS).where(*_is(record)).values(state=VersionState.DELETING.value))
        return self.get_operation(project=project, name=operation["name"])

    def update_version(self, record: VersionRecord, **changes: Any) -> bool:
        """Sets columns of a version if its state is still that of the record.

        A version that becomes READY or FAILED ends the operation of its creation. One that becomes READY is the default
        of its model if the model has none.

        Args:
            record: the version as it was read.
            **changes: the columns to set.

        Returns:
            Whether the columns were set.
        """
        values = {key: value.value if isinstance(value, VersionState) else value for key, value in changes.items()}
        unchanged = VERSIONS.c.state == record.state.value
        with writing(self._engine, guard=self._guard) as connection:
            if connection.execute(update(VERSIONS).where(*_is(record), unchanged).values(values)).rowcount == 0:
                return False
            if changes.get("state") is VersionState.READY:
                model = (MODELS.c.project == record.project, MODELS.c.name == record.model)
                has_none = MODELS.c.default_version.is_(None)
                connection.execute(update(MODELS).where(*model, has_none).values(default_version=record.name))
                self._end_operations(connection, record, "CREATE_VERSION")
            elif changes.get("state") is VersionState.FAILED:
                reason = str(changes.get("error_message"))
                error = (OperationCode.FAILED_PRECONDITION, reason)
                self._end_operations(connection, record, "CREATE_VERSION", error=error)
            return True

    def set_num_servers(self, record: VersionRecord, number: int) -> bool:
        """Sets how many servers a version should have now, if neither that nor its state has changed since it was read.

        Returns:
            Whether it was set.
        """
        unchanged = (VERSIONS.c.state == record.state.value, VERSIONS.c.num_servers == record.num_servers)
        with writing(self._engine, guard=self._guard) as connection:
            query = update(VERSIONS).where(*_is(record), *unchanged).values(num_servers=number)
            return connection.execute(query).rowcount == 1

    def remove_version(self, record: VersionRecord) -> None:
        """Removes a version whose server is gone, and ends the operations on it."""
        with writing(self._engine, guard=self._guard) as connection:
            connection.execute(delete(VERSIONS).where(*_is(record)))
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
            self._end_operations(connection, record, "DELETE_VERSION")

    def get_operation(self, *, project: str, name: str) -> OperationRecord:
        """Returns an operation.

        Raises:
            NotFoundError: If the project has no operation of this name.
        """
        with reading(self._engine) as connection:
            return _get_operation(connection, project, name)

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
        query = _page(query, OPERATIONS, size=size, before=before)
        with reading(self._engine) as connection:
            return [OperationRecord(**row) for row in connection.execute(query).mappings()]

    def cancel_operation(self, *, project: str, name: str, principal_label: str) -> None:
        """Cancels the creation of a version: the operation ends as cancelled, and the version is marked as DELETING.

        Raises:
            NotFoundError: If the project has no operation of this name.
            WrongStateError: If the operation is over, or is not the creation of a version.
        """
        with writing(self._engine, guard=self._guard) as connection:
            operation = _get_operation(connection, project, name)
            if operation.end_time_s is not None:
                raise WrongStateError(f"operation {name} is over already")
            if operation.kind != "CREATE_VERSION" or operation.version is None:
                raise WrongStateError(
                    f"operation {name} cannot be cancelled: a deletion cannot be undone",
                    action=f"wait until it is over, and create version {operation.version} again",
                )
            record = _get_version(connection, project, operation.model, operation.version)
            is_new = VERSIONS.c.state == VersionState.CREATING.value
            deleting = update(VERSIONS).where(*_is(record), is_new).values(state=VersionState.DELETING.value)
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


def _get_model(connection: Connection, project: str, name: str, *, to_write: bool = False) -> ModelRecord:
    """Reads a model. With `to_write`, locks its row, and thereby the model's versions, until the transaction ends."""
    query = select(MODELS).where(MODELS.c.project == project, MODELS.c.name == name)
    row = _row(connection, query.with_for_update() if to_write else query)
    if row is None:
        raise NotFoundError(f"project {project} has no model {name!r}")
    return ModelRecord(**row)


def _get_version(connection: Connection, project: str, model: str, name: str) -> VersionRecord:
    query = select(VERSIONS).where(VERSIONS.c.project == project, VERSIONS.c.model == model, VERSIONS.c.name == name)
    row = _row(connection, query)
    if row is None:
        raise NotFoundError(f"model {model} has no version {name!r}")
    return _version(row)


def _no_default(connection: Connection, project: str, model: str) -> NotFoundError | UnavailableError:
    query = select(VERSIONS).where(VERSIONS.c.project == project, VERSIONS.c.model == model)
    row = _row(connection, _page(query, VERSIONS, size=1, before=None))
    if row is None:
        return NotFoundError(f"model {model} has no default version", action="create a version of it")
    newest = _version(row)
    return UnavailableError(
        f"model {model} has no default version, because none of its versions has been ready; the newest, "
        f"{newest.name}, is {newest.state}",
        action=newest.error_message or "try again soon",
    )


def _get_operation(connection: Connection, project: str, name: str) -> OperationRecord:
    row = _row(connection, select(OPERATIONS).where(OPERATIONS.c.project == project, OPERATIONS.c.name == name))
    if row is None:
        raise NotFoundError(f"project {project} has no operation {name!r}")
    return OperationRecord(**row)


def _version_names(connection: Connection, project: str, model: str) -> list[str]:
    query = select(VERSIONS.c.name).where(VERSIONS.c.project == project, VERSIONS.c.model == model)
    return list(connection.execute(query).scalars())


def _set_default(connection: Connection, project: str, model: str, name: str) -> None:
    connection.execute(
        update(MODELS).where(MODELS.c.project == project, MODELS.c.name == model).values(default_version=name)
    )


def _page(query: Select[Any], table: Table, *, size: int, before: tuple[float, str] | None) -> Select[Any]:
    """Returns a query for a page of rows, the newest first."""
    if before is not None:
        time_s, name = before
        older = and_(table.c.create_time_s == time_s, table.c.name < name)
        query = query.where(or_(table.c.create_time_s < time_s, older))
    return query.order_by(table.c.create_time_s.desc(), table.c.name.desc()).limit(size)


def _row(connection: Connection, query: Select[Any]) -> RowMapping | None:
    return connection.execute(query).mappings().one_or_none()


def _version(row: RowMapping) -> VersionRecord:
    return VersionRecord(**{**row, "state": VersionState(row["state"])})


def _is(record: VersionRecord) -> tuple[Any, ...]:
    return (
        VERSIONS.c.project == record.project,
        VERSIONS.c.model == record.model,
        VERSIONS.c.name == record.name,
    )
