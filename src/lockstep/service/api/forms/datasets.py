"""The forms of packed data sets."""

from __future__ import annotations

from typing import NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.service.api.forms.answers import STRICT


@with_config(STRICT)
class FeatureForm(TypedDict):
    """A feature of the records, such as ``{"name": "label", "text": "int64"}``."""

    name: str
    text: str


@with_config(STRICT)
class DataSetForm(TypedDict):
    """A split of a packed data set. ``numRecords`` is None if neither a manifest nor the files' names state it."""

    url: str
    name: str
    numRecords: int | None
    sizeBytes: int
    numShards: int
    numMissing: int
    features: list[FeatureForm]
    classes: list[str]
    source: str
    createTime: str | None
    problems: list[str]


@with_config(STRICT)
class DataSetListForm(TypedDict):
    """A page of the data sets in a folder. ``truncated`` says that the folder has more objects than are looked at."""

    folder: str
    datasets: list[DataSetForm]
    truncated: bool
    nextPageToken: NotRequired[str]


@with_config(STRICT)
class ShardForm(TypedDict):
    """A file of a data set. ``numRecords`` is None if nothing states it."""

    file: str
    numRecords: int | None
    sizeBytes: int
    missing: bool


@with_config(STRICT)
class RecordForm(TypedDict):
    """One record: a line of text for each feature, and its first image as a ``data:`` URL; None if it has none."""

    values: dict[str, str]
    label: str
    image: str | None


@with_config(STRICT)
class DataSetPageForm(DataSetForm):
    """A data set with its first files and its first records."""

    shards: list[ShardForm]
    records: list[RecordForm]
