"""Models, versions and operations in the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Unpack, final

from sqlalchemy import Engine, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from lockstep.errors import ConflictError, NotFoundError, UnavailableError, WrongStateError
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.prediction.operation_rows import (
    cancel_creation,
    end_operations,
    mark_deleting,
    operation_values,
)
from lockstep.service.store.prediction.policies import RequestLogging
from lockstep.service.store.prediction.records import (
    ModelChange,
    ModelRecord,
    OperationCode,
    OperationRecord,
    VersionChange,
    VersionRecord,
)
from lockstep.service.store.prediction.rows import (
    is_version,
    page,
    read_model,
    read_operation,
    read_row,
    read_traffic,
    read_version,
    version_names,
    version_record,
    write_revision,
)
from lockstep.service.store.prediction.traffic import Traffic, TrafficChange
from lockstep.service.store.prediction.traffic_rows import (
    check_split,
    delete_changes,
    leave_traffic,
    read_changes,
    read_excess,
    read_restorable,
    write_split,
    write_traffic,
)
from lockstep.service.store.prediction.version_rows import NewVersion, delete_version, version_values, write_version
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

    def create_model(
        self,
        *,
        project: str,
        name: str,
        description: str,
        labels: Mapping[str, str],
        region: str | None = None,
        max_versions: int | None = None,
    ) -> ModelRecord:
        """Records a new model.

        Args:
            project: the project that owns the model.
            name: the name of the model within the project.
            description: the description of the model.
            labels: the labels of the model.
            region: the region of its prediction servers; None for any.
            max_versions: how many versions are kept when another one becomes READY; None for all.

        Raises:
            ConflictError: If the project has a model of this name.
        """
        values = {
            "project": project,
            "name": name,
            "description": description,
            "labels": dict(labels),
            "region": region,
            "max_versions": max_versions,
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
            delete_changes(connection, project, name)
            connection.execute(delete(MODELS).where(MODELS.c.project == project, MODELS.c.name == name))
            operation = operation_values(project, "DELETE_MODEL", name, None, now_s=self._clock())
            connection.execute(insert(OPERATIONS).values({**operation, "end_time_s": self._clock()}))
        return self.get_operation(project=project, name=operation["name"])

    def create_version(self, **version: Unpack[NewVersion]) -> OperationRecord:
        """Records a new version as CREATING, in the region of its model.

        With `scaling`, the number of its servers begins with the policy's.

        Args:
            **version: the version; see `VersionRecord`.

        Raises:
            NotFoundError: If there is no such model, or no version that `split_when_ready` names.
            WrongStateError: If such a version is not READY.
            ConflictError: If the model has a version of this name.
        """
        project, model, name = version["project"], version["model"], version["name"]
        operation = operation_values(project, "CREATE_VERSION", model, name, now_s=self._clock())
        values = version_values(version, create_time_s=self._clock())
        try:
            with writing(self._engine, guard=self._guard) as connection:
                record = read_model(connection, project, model, to_write=True)
                check_split(connection, record, version.get("split_when_ready") or {}, new=name)
                connection.execute(insert(VERSIONS).values({**values, "region": record.region}))
                connection.execute(insert(OPERATIONS).values(operation))
        except IntegrityError:
            raise ConflictError(f"model {model} has a version {name!r} already", action="choose another name") from None
        return self.get_operation(project=project, name=operation["name"])

    def get_version(self, *, project: str, model: str, name: str) -> VersionRecord:
        """Returns a version of a model.

        Raises:
            NotFoundError: If there is no such version.
        """
        with reading(self._engine) as connection:
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

    def request_loggings(self) -> dict[str, RequestLogging]:
        """Returns which requests are written to a bucket, by the uid of the version, for all versions with any."""
        with reading(self._engine) as connection:
            rows = connection.execute(select(VERSIONS.c.uid, VERSIONS.c.request_logging))
            return {uid: logging for uid, logging in rows if logging is not None}

    def get_traffic(self, *, project: str, model: str) -> Traffic:
        """Returns which versions of a model answer the requests that name no version; at least one.

        Raises:
            NotFoundError: If there is no such model, or no version at all.
            UnavailableError: If no version answers, since none has become READY.
        """
        with reading(self._engine) as connection:
            return read_traffic(connection, project, model)

    def list_traffic_changes(self, *, project: str, model: str) -> list[TrafficChange]:
        """Returns the latest changes of a model's traffic, the latest first; none if there is no such model."""
        with reading(self._engine) as connection:
            return read_changes(connection, project, model)

    def set_default(self, *, project: str, model: str, name: str, changed_by: str) -> VersionRecord:
        """Gives all traffic of a model to one version, which is then its default.

        Raises:
            NotFoundError: If there is no such version.
            WrongStateError: If the version is not READY, so that it would not answer.
        """
        with writing(self._engine, guard=self._guard) as connection:
            record = read_model(connection, project, model, to_write=True)
            write_split(connection, record, {name: 100}, changed_by=changed_by, now_s=self._clock())
            write_revision(connection, project, model)
            return read_version(connection, project, model, name)

    def patch_model(self, *, project: str, name: str, change: ModelChange, changed_by: str) -> OperationRecord:
        """Changes what the owner of a model may change. The returned operation is done.

        Args:
            project: the project.
            name: the name of the model.
            change: returns what changes, given the model as it is; it may raise an exception to change nothing.
            changed_by: the label of who changes it.

        Raises:
            NotFoundError: If there is no such model, or no version that would get traffic.
            WrongStateError: If a version that would get traffic is not READY.
        """
        now_s = self._clock()
        operation = {**operation_values(project, "UPDATE_MODEL", name, None, now_s=now_s), "end_time_s": now_s}
        model = (MODELS.c.project == project, MODELS.c.name == name)
        with writing(self._engine, guard=self._guard) as connection:
            record = read_model(connection, project, name, to_write=True)
            changes = change(record)
            if changes.split is not None:
                write_split(connection, record, changes.split, changed_by=changed_by, now_s=now_s)
            values = {**changes.columns, "revision": record.revision + 1}
            connection.execute(update(MODELS).where(*model).values(values))
            connection.execute(insert(OPERATIONS).values(operation))
        return self.get_operation(project=project, name=operation["name"])

    def rollback(
        self, *, project: str, model: str, check: Callable[[ModelRecord], object], changed_by: str
    ) -> ModelRecord:
        """Restores the traffic of a model as it was before its last change. That is a change too.

        Args:
            project: the project.
            model: the name of the model.
            check: is called with the model as it is; it may raise an exception to change nothing.
            changed_by: the label of who restores it.

        Raises:
            NotFoundError: If there is no such model.
            WrongStateError: If there was no traffic before, or one of its versions cannot answer any more.
        """
        with writing(self._engine, guard=self._guard) as connection:
            record = read_model(connection, project, model, to_write=True)
            check(record)
            traffic = read_restorable(connection, record)
            write_traffic(connection, record, traffic, changed_by=changed_by, now_s=self._clock())
            write_revision(connection, project, model)
            return read_model(connection, project, model)

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
        operation = operation_values(project, "UPDATE_VERSION", model, name, now_s=self._clock())
        with writing(self._engine, guard=self._guard) as connection:
            read_model(connection, project, model, to_write=True)
            record = read_version(connection, project, model, name)
            values = {**change(record), "revision": record.revision + 1}
            if values.get("num_servers", record.num_servers) == record.num_servers:
                operation["end_time_s"] = operation["create_time_s"]
            else:
                values["update_operation"] = operation["name"]
                followed = (OperationCode.CANCELLED, f"another update followed: {operation['name']}")
                end_operations(connection, record, "UPDATE_VERSION", now_s=self._clock(), error=followed)
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
                end_operations(connection, record, "UPDATE_VERSION", now_s=self._clock())

    def note_use(self, uid: str, *, time_s: float) -> None:
        """Records that a version was used for predictions, unless a later use is recorded.

        Args:
            uid: the uid of the version, which may have been removed.
            time_s: the time, in seconds since 1970 UTC.
        """
        is_later = or_(VERSIONS.c.last_use_time_s.is_(None), VERSIONS.c.last_use_time_s < time_s)
        with writing(self._engine, guard=self._guard) as connection:
            connection.execute(update(VERSIONS).where(VERSIONS.c.uid == uid, is_later).values(last_use_time_s=time_s))

    def begin_delete_version(
        self, *, project: str, model: str, name: str, deleted_by: str = "service"
    ) -> OperationRecord:
        """Marks a version as DELETING. `Deployments` then ends its prediction servers and removes it.

        Args:
            project: the project.
            model: the name of the model.
            name: the name of the version.
            deleted_by: the label of who deletes it.

        Raises:
            NotFoundError: If there is no such version.
            WrongStateError: If the version has traffic, and the model has other versions.
        """
        with writing(self._engine, guard=self._guard) as connection:
            record = read_model(connection, project, model, to_write=True)
            version = read_version(connection, project, model, name)
            leave_traffic(connection, record, name, changed_by=deleted_by, now_s=self._clock())
            operation = mark_deleting(connection, version, now_s=self._clock())
        return self.get_operation(project=project, name=operation)

    def retire_versions(self, newest: VersionRecord) -> list[str]:
        """Marks the oldest versions of a model as DELETING if it has more than it keeps; returns their names.

        Versions with traffic stay, and those that `rollback` would give traffic.

        Args:
            newest: the version that has just become READY, which stays too.
        """
        with writing(self._engine, guard=self._guard) as connection:
            model = read_model(connection, newest.project, newest.model, to_write=True)
            excess = read_excess(connection, model, newest=newest)
            for version in excess:
                mark_deleting(connection, version, now_s=self._clock())
            return [version.name for version in excess]

    def update_version(self, record: VersionRecord, **changes: Any) -> bool:
        """Sets columns of a version if its state is still that of the record.

        A version that becomes READY or FAILED ends the operation of its creation. One that becomes READY gets all
        traffic of its model if no version has any, or the traffic that was asked for when it was created.

        Args:
            record: the version as it was read.
            **changes: the columns to set.

        Returns:
            Whether the columns were set.
        """
        with writing(self._engine, guard=self._guard) as connection:
            return write_version(connection, record, changes, now_s=self._clock())

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
            delete_version(connection, record, now_s=self._clock())

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
            cancel_creation(connection, project, name, principal_label=principal_label, now_s=self._clock())
