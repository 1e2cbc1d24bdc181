"""Uploaded models in the database: Vertex AI's models, which are deployed as versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from sqlalchemy import Engine, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from lockstep.errors import ConflictError, NotFoundError, WrongStateError
from lockstep.service.store.database import Guard, reading, unguarded, writing
from lockstep.service.store.prediction.records import VersionRecord
from lockstep.service.store.prediction.rows import page, read_row, version_record
from lockstep.service.store.tables import UPLOADED_MODELS, VERSIONS


@final
@dataclass(frozen=True, kw_only=True)
class UploadedModelRecord:
    """An uploaded model: the location of a model's files, with a name.

    Attributes:
        region: the region that it was uploaded to.
        artifact_uri: the bucket URL of the folder with the ``.keras`` file.
        container_spec: the container of its servers, as ``GoogleCloudAiplatformV1ModelContainerSpec`` in JSON; None if
            it was uploaded without one.
        create_time_s: the time of the upload, in seconds since 1970 UTC.
        update_time_s: the time of the last change, in seconds since 1970 UTC.
    """

    project: str
    name: str
    description: str
    labels: Mapping[str, str]
    region: str
    artifact_uri: str
    container_spec: Mapping[str, Any] | None
    create_time_s: float
    update_time_s: float


@final
class UploadStore:
    """The store of uploaded models. Thread-safe. Each method is one transaction.

    Args:
        engine: the opened database.
        clock: the clock, in seconds since 1970 UTC.
        guard: called in each transaction before it writes; it may raise an exception to forbid the transaction.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.time, guard: Guard = unguarded) -> None:
        self._engine = engine
        self._clock = clock
        self._guard = guard

    def create(
        self,
        *,
        project: str,
        name: str,
        description: str,
        labels: Mapping[str, str],
        region: str,
        artifact_uri: str,
        container_spec: Mapping[str, Any] | None,
    ) -> UploadedModelRecord:
        """Records an uploaded model. The arguments are those of `UploadedModelRecord`.

        Raises:
            ConflictError: If the project has an uploaded model of this name.
        """
        now_s = self._clock()
        record = UploadedModelRecord(
            project=project,
            name=name,
            description=description,
            labels=dict(labels),
            region=region,
            artifact_uri=artifact_uri,
            container_spec=container_spec,
            create_time_s=now_s,
            update_time_s=now_s,
        )
        try:
            with writing(self._engine, guard=self._guard) as connection:
                connection.execute(insert(UPLOADED_MODELS).values(vars(record)))
        except IntegrityError:
            raise ConflictError(
                f"project {project} has an uploaded model {name!r} already", action="choose another name, or delete it"
            ) from None
        return record

    def get(self, *, project: str, name: str, region: str) -> UploadedModelRecord:
        """Returns an uploaded model of a region.

        Raises:
            NotFoundError: If there is no such model in the region.
        """
        query = select(UPLOADED_MODELS).where(
            UPLOADED_MODELS.c.project == project, UPLOADED_MODELS.c.name == name, UPLOADED_MODELS.c.region == region
        )
        with reading(self._engine) as connection:
            row = read_row(connection, query)
        if row is None:
            raise NotFoundError(f"project {project} has no uploaded model {name!r} in {region}")
        return UploadedModelRecord(**row)

    def page(
        self, *, project: str, region: str, size: int, before: tuple[float, str] | None = None
    ) -> list[UploadedModelRecord]:
        """Returns up to `size` uploaded models of a region, the newest first.

        Args:
            project: the project.
            region: the region.
            size: the maximum number of models.
            before: the creation time and name of the last model of the previous page.
        """
        query = select(UPLOADED_MODELS).where(UPLOADED_MODELS.c.project == project, UPLOADED_MODELS.c.region == region)
        with reading(self._engine) as connection:
            rows = connection.execute(page(query, UPLOADED_MODELS, size=size, before=before))
            return [UploadedModelRecord(**row) for row in rows.mappings()]

    def versions_of(self, *, project: str, name: str) -> list[VersionRecord]:
        """Returns the versions that an uploaded model is deployed as, the oldest first."""
        query = (
            select(VERSIONS)
            .where(VERSIONS.c.project == project, VERSIONS.c.uploaded_model == name)
            .order_by(VERSIONS.c.create_time_s, VERSIONS.c.name)
        )
        with reading(self._engine) as connection:
            return [version_record(row) for row in connection.execute(query).mappings()]

    def update(self, record: UploadedModelRecord, *, changes: Mapping[str, Any]) -> UploadedModelRecord:
        """Changes an uploaded model. The versions that it is deployed as stay as they are.

        Args:
            record: the model as it was read.
            changes: the columns to set.

        Raises:
            NotFoundError: If it was deleted since it was read.
        """
        chosen = (UPLOADED_MODELS.c.project == record.project, UPLOADED_MODELS.c.name == record.name)
        is_same = UPLOADED_MODELS.c.create_time_s == record.create_time_s
        values = {**changes, "update_time_s": self._clock()}
        with writing(self._engine, guard=self._guard) as connection:
            connection.execute(update(UPLOADED_MODELS).where(*chosen, is_same).values(values))
        return self.get(project=record.project, name=record.name, region=record.region)

    def delete(self, *, project: str, name: str, region: str) -> None:
        """Deletes an uploaded model. The files stay.

        Raises:
            NotFoundError: If there is no such model in the region.
            WrongStateError: If it is deployed.
        """
        self.get(project=project, name=name, region=region)
        deployed = self.versions_of(project=project, name=name)
        if deployed:
            raise WrongStateError(
                f"uploaded model {name} is deployed: version {deployed[0].name} of {deployed[0].model}",
                action="undeploy it first",
            )
        chosen = (UPLOADED_MODELS.c.project == project, UPLOADED_MODELS.c.name == name)
        with writing(self._engine, guard=self._guard) as connection:
            connection.execute(delete(UPLOADED_MODELS).where(*chosen))
