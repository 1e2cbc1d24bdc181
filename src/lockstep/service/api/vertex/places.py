"""What routes in Vertex AI's form read from a request: the location, and parameters of lists."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Path, Query
from pydantic import AfterValidator

from lockstep.errors import UnimplementedError
from lockstep.service.api.requests import Project
from lockstep.service.api.vertex.resources import Place

_NEWEST_FIRST: Final = ("", "create_time desc", "createTime desc")


Location = Annotated[str, Path(pattern=r"^[a-z][a-z0-9-]{0,62}$")]


def _place(project: Project, location: Location) -> Place:
    return Place(project=project, location=location)


def _check_list(
    order_by: Annotated[str, Query(alias="orderBy")] = "", read_mask: Annotated[str, Query(alias="readMask")] = ""
) -> None:
    if order_by not in _NEWEST_FIRST:
        raise UnimplementedError("orderBy: lists are sorted, newest first", action="leave it out")
    if read_mask:
        raise UnimplementedError("readMask: resources are returned as a whole", action="leave it out")


def _without_version(name: str) -> str:
    return name.partition("@")[0]


UploadedName = Annotated[
    str, Path(pattern=r"^[a-zA-Z][a-zA-Z0-9_]{0,127}(@1|@default)?$"), AfterValidator(_without_version)
]
"""The name of an uploaded model, maybe with its only version."""
InPlace = Annotated[Place, Depends(_place)]
WholeList = Depends(_check_list)
"""Refuses the parameters of lists that are not honoured."""
