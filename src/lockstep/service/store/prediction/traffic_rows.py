"""Reads and writes the traffic of models, and its changes, within a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update

from lockstep.errors import WrongStateError
from lockstep.service.store.prediction.records import ModelRecord, VersionRecord, VersionState
from lockstep.service.store.prediction.retention import excess_versions
from lockstep.service.store.prediction.rows import check_answers, read_version, version_names, version_record
from lockstep.service.store.prediction.traffic import WHOLE, Traffic, TrafficChange, make_traffic
from lockstep.service.store.tables import MODELS, TRAFFIC_CHANGES, VERSIONS

MAX_CHANGES: Final = 20
"""How many changes of a model's traffic are kept: the latest ones."""


def write_traffic(
    connection: Connection, model: ModelRecord, traffic: Traffic, *, changed_by: str, now_s: float
) -> None:
    """Sets the traffic of a model, and records the change. A traffic that stays is not recorded.

    Args:
        connection: the connection, in a transaction that has locked the model.
        model: the model, as it was read in this transaction.
        traffic: the new traffic.
        changed_by: the label of who changes it.
        now_s: the time, in seconds since 1970 UTC.
    """
    if traffic == model.traffic:
        return
    is_model = (MODELS.c.project == model.project, MODELS.c.name == model.name)
    connection.execute(update(MODELS).where(*is_model).values(traffic=traffic))
    change = {"project": model.project, "model": model.name, "time_s": now_s, "changed_by": changed_by}
    connection.execute(insert(TRAFFIC_CHANGES).values(**change, traffic=traffic))
    is_change = (TRAFFIC_CHANGES.c.project == model.project, TRAFFIC_CHANGES.c.model == model.name)
    numbers = select(TRAFFIC_CHANGES.c.seq).where(*is_change).order_by(TRAFFIC_CHANGES.c.seq.desc())
    if (oldest := connection.execute(numbers.offset(MAX_CHANGES - 1).limit(1)).scalar()) is not None:
        connection.execute(delete(TRAFFIC_CHANGES).where(*is_change, TRAFFIC_CHANGES.c.seq < oldest))


def read_changes(connection: Connection, project: str, model: str) -> list[TrafficChange]:
    """Reads the latest changes of a model's traffic, the latest first."""
    query = (
        select(TRAFFIC_CHANGES.c.time_s, TRAFFIC_CHANGES.c.changed_by, TRAFFIC_CHANGES.c.traffic)
        .where(TRAFFIC_CHANGES.c.project == project, TRAFFIC_CHANGES.c.model == model)
        .order_by(TRAFFIC_CHANGES.c.seq.desc())
    )
    return [TrafficChange(**row) for row in connection.execute(query).mappings()]


def delete_changes(connection: Connection, project: str, model: str) -> None:
    """Deletes the changes of a model's traffic."""
    connection.execute(
        delete(TRAFFIC_CHANGES).where(TRAFFIC_CHANGES.c.project == project, TRAFFIC_CHANGES.c.model == model)
    )


def write_split(
    connection: Connection, model: ModelRecord, split: Mapping[str, int], *, changed_by: str, now_s: float
) -> None:
    """Sets the traffic of a model to the percents of versions, by their names; see `write_traffic`.

    Raises:
        NotFoundError: If there is no such version.
        WrongStateError: If a version is not READY.
    """
    versions = [read_version(connection, model.project, model.name, name) for name in split]
    for version in versions:
        check_answers(version)
    uids = {version.name: version.uid for version in versions}
    traffic = make_traffic(split, uids=uids, default=model.default_version)
    write_traffic(connection, model, traffic, changed_by=changed_by, now_s=now_s)


def check_split(connection: Connection, model: ModelRecord, split: Mapping[str, int], *, new: str) -> None:
    """Checks the split that a model gets once a new version is READY: all others that it names must be READY now.

    Raises:
        NotFoundError: If there is no such version.
        WrongStateError: If a version is not READY.
    """
    for name in split:
        if name != new:
            check_answers(read_version(connection, model.project, model.name, name))


def ready_split(connection: Connection, new: VersionRecord, split: Mapping[str, int]) -> dict[str, int]:
    """Returns a split for a version that has become READY. It gets the shares of versions that no longer are.

    A version that was created after it, with the name of one that was deleted, gets nothing.
    """
    is_other = (VERSIONS.c.project == new.project, VERSIONS.c.model == new.model, VERSIONS.c.name.in_(split))
    is_ready = VERSIONS.c.state == VersionState.READY.value
    is_older = VERSIONS.c.create_time_s <= new.create_time_s
    ready = set(connection.execute(select(VERSIONS.c.name).where(*is_other, is_ready, is_older)).scalars())
    kept = {name: share for name, share in split.items() if name in ready and name != new.name}
    return {**kept, new.name: WHOLE - sum(kept.values())}


def leave_traffic(connection: Connection, model: ModelRecord, name: str, *, changed_by: str, now_s: float) -> None:
    """Takes the traffic from a version that will be deleted, if it is the only one of its model; see `write_traffic`.

    Raises:
        WrongStateError: If it has traffic, and the model has other versions.
    """
    share = next((share for share in model.traffic if share.version == name), None)
    if share is None:
        return
    if len(version_names(connection, model.project, model.name)) > 1:
        is_default = ", and is its default" if name == model.default_version else ""
        raise WrongStateError(
            f"version {name} has {share.percent}% of the traffic of {model.name}{is_default}",
            action=f"give it to others first, with `lockstep models traffic {model.name} VERSION=PERCENT ...`",
        )
    write_traffic(connection, model, (), changed_by=changed_by, now_s=now_s)


def read_restorable(connection: Connection, model: ModelRecord) -> Traffic:
    """Reads the traffic that a model had before its last change.

    Raises:
        WrongStateError: If it had none, or one of the versions is not there any more, or is not READY.
    """
    action = f"choose versions with `lockstep models traffic {model.name} VERSION=PERCENT ...`"
    traffic = _previous_traffic(connection, model)
    if not traffic:
        raise WrongStateError(f"no version of {model.name} had traffic before the last change of it", action=action)
    by_uid = {version.uid: version for version in _read_versions(connection, model)}
    for share in traffic:
        version = by_uid.get(share.uid)
        if version is None or version.state is not VersionState.READY:
            state = "was deleted" if version is None else f"is {version.state}"
            raise WrongStateError(
                f"version {share.version}, which had {share.percent}% of the traffic of {model.name} before, {state}",
                action=action,
            )
    return traffic


def read_excess(connection: Connection, model: ModelRecord, *, newest: VersionRecord) -> list[VersionRecord]:
    """Reads the versions that a model has beyond the number that it keeps.

    Args:
        connection: the connection, in a transaction that has locked the model.
        model: the model.
        newest: the version that has just become READY, which is kept.
    """
    if model.max_versions is None:
        return []
    traffic = (*model.traffic, *_previous_traffic(connection, model))
    kept = {newest.uid, *(share.uid for share in traffic)}
    return excess_versions(_read_versions(connection, model), max_versions=model.max_versions, kept=kept)


def _previous_traffic(connection: Connection, model: ModelRecord) -> Traffic:
    changes = read_changes(connection, model.project, model.name)
    return changes[1].traffic if len(changes) > 1 else ()


def _read_versions(connection: Connection, model: ModelRecord) -> list[VersionRecord]:
    """Reads the versions of a model, the oldest first."""
    query = select(VERSIONS).where(VERSIONS.c.project == model.project, VERSIONS.c.model == model.name)
    rows = connection.execute(query.order_by(VERSIONS.c.create_time_s, VERSIONS.c.name))
    return [version_record(row) for row in rows.mappings()]
