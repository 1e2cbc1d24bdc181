"""Packed data sets: which a bucket has, what is in each, and its first records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import htpy as h
from rich.filesize import decimal
from starlette.requests import Request

from lockstep.errors import LockstepError
from lockstep.service.api import datasets as datasets_api
from lockstep.service.console.calls import call
from lockstep.service.console.layout import default_project, facts, page, table, when, with_query
from lockstep.service.console.names import check_name
from lockstep.service.console.signing_in import Session
from lockstep.service.context import ServiceContext
from lockstep.service.threads import Pool, runs_in

PAGE_SIZE: Final = 20
NUM_RECORDS: Final = 24
MAX_COLUMNS: Final = 12
NOT_FOUND: Final = 404
TITLES: Final = ("Data set", "Records", "Size", "Files", "Features", "Packed", "Problems")


@runs_in(Pool.BUCKET)
def show(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page with the data sets of a folder."""
    query = request.query_params
    project = check_name(query.get("project") or default_project(session.principal), what="project")
    folder, token = query.get("folder", ""), query.get("page", "")
    try:
        found = call(
            datasets_api.list_data_sets,
            session.principal,
            context,
            project=project,
            folder=folder,
            page_size=PAGE_SIZE,
            page_token=token,
        )
        listed: h.Node = _listed(found, project=project, folder=folder, token=token)
    except LockstepError as error:  # of the folder, which the reader can correct
        if error.http_status == NOT_FOUND:
            raise
        found, listed = {"folder": folder}, h.p(".error", role="alert")[str(error)]
    return page(
        h.form(".bar", method="get", action="/data")[
            h.label["Project", h.input(name="project", value=project, autocomplete="off")],
            h.label["Folder", h.input(".wide", name="folder", value=folder or found["folder"], spellcheck="false")],
            h.button(type="submit")["Show"],
        ],
        listed,
        title="Data",
        session=session,
        path="/data",
        project=project,
    )


def _listed(found: Mapping[str, Any], *, project: str, folder: str, token: str) -> h.Node:
    rows = [_row(data_set, project=project, folder=found["folder"]) for data_set in found["datasets"]]
    following = found.get("nextPageToken", "")
    values = {"project": project, "folder": folder}
    return [
        table(TITLES, rows, label="Data sets", numbers=(1, 2, 3))
        if rows
        else h.p(".muted")[
            f"No packed data set is in {found['folder']}. Make one with ", h.code["lockstep data pack"], "."
        ],
        h.p(".muted")["The folder has more files than are looked at. Name a folder in it."]
        if found["truncated"]
        else None,
        h.p(".bar")[
            h.a(".button", href=with_query("/data", values))["First"] if token else None,
            h.a(".button", href=with_query("/data", {**values, "page": following}))["Next"] if following else None,
        ]
        if token or following
        else None,
    ]


def _row(data_set: Mapping[str, Any], *, project: str, folder: str) -> tuple[h.Node, ...]:
    names = [feature["name"] for feature in data_set["features"]]
    return (
        h.a(href=data_set_path(project, data_set["url"]))[data_set["url"].removeprefix(folder).strip("/")],
        _count(data_set["numRecords"]),
        decimal(data_set["sizeBytes"]),
        str(data_set["numShards"]),
        ", ".join(names[:MAX_COLUMNS]) or "-",
        when(data_set["createTime"]),
        h.span(".error")["; ".join(data_set["problems"])] if data_set["problems"] else "",
    )


def data_set_path(project: str, url: str) -> str:
    """Returns the path of a data set's page."""
    return with_query(f"/projects/{project}/data", {"url": url})


@runs_in(Pool.BUCKET)
def show_data_set(request: Request, session: Session, context: ServiceContext) -> h.Element:
    """Returns the page of a data set."""
    project, url = check_name(request.path_params["project"], what="project"), request.query_params.get("url", "")
    found = call(
        datasets_api.read_data_set, session.principal, context, project=project, url=url, num_records=NUM_RECORDS
    )
    classes = ", ".join(found["classes"])
    return page(
        h.p[h.a(href=with_query("/data", {"project": project}))[f"Data of {project}"]],
        (h.p(".error", role="alert")[problem] for problem in found["problems"]),
        facts(
            [
                ("Place", h.code[found["url"]]),
                ("Records", _count(found["numRecords"])),
                ("Size", f"{decimal(found['sizeBytes'])} in {found['numShards']} files"),
                ("Packed", when(found["createTime"])),
                ("From", found["source"] or "-"),
                ("Classes", classes or "-"),
            ]
        ),
        h.h2["First records"],
        _sheet(found["records"]),
        _records(found["records"]),
        h.h2["Features"],
        table(("Name", "What it is"), [(each["name"], each["text"]) for each in found["features"]], label="Features")
        if found["features"]
        else h.p(".muted")["There is no manifest that could say it."],
        h.h2["Files"],
        _files(found["shards"]),
        h.p["Read them in a job: ", h.code[f"lockstep.data.RecordSource({found['url']!r})"]],
        title=f"Data set {found['name']}",
        session=session,
        path="/data",
        project=project,
    )


def _sheet(records: Sequence[Mapping[str, Any]]) -> h.Node:
    """Returns the images of records, each with its label."""
    shown = [(number, record) for number, record in enumerate(records) if record["image"] is not None]
    if not shown:
        return None
    return h.ul(".sheet")[
        (
            h.li[
                h.img(src=record["image"], alt=f"image of record {number}", loading="lazy"),
                h.span[record["label"] or f"record {number}"],
            ]
            for number, record in shown
        )
    ]


def _records(records: Sequence[Mapping[str, Any]]) -> h.Node:
    if not records:
        return h.p(".muted")["There are none that could be shown."]
    names = list(dict.fromkeys(name for record in records for name in record["values"]))[:MAX_COLUMNS]
    rows = [(str(number), *(record["values"].get(name, "") for name in names)) for number, record in enumerate(records)]
    shown = table(("Record", *names), rows, label="First records", numbers=(0,))
    has_images = any(record["image"] is not None for record in records)
    whole = h.details[h.summary["The records as a table"], shown] if has_images else shown
    return h.div("#records")[whole]


def _files(shards: Sequence[Mapping[str, Any]]) -> h.Element:
    rows = [
        (
            h.code[shard["file"]],
            _count(shard["numRecords"]),
            "-" if shard["missing"] else decimal(shard["sizeBytes"]),
            h.span(".error")["missing"] if shard["missing"] else "",
        )
        for shard in shards
    ]
    return table(("File", "Records", "Size", "Problem"), rows, label="Files", numbers=(1, 2))


def _count(number: int | None) -> str:
    return "not stated" if number is None else f"{number:,}"
