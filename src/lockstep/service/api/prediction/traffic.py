"""``lockstep`` of a model, as requests give it: its traffic, and how many versions it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, final

from pydantic import AfterValidator, Field

from lockstep.jobs.parsing.fields import AbstractDocument, Int32, Text, rule_error

MAX_VERSIONS: Final = 1000
"""The largest number for ``lockstep.maxVersions``."""


def _check_split(split: Mapping[str, int]) -> Mapping[str, int]:
    total = sum(split.values())
    if split and (total != 100 or min(split.values()) < 0):
        raise rule_error(allowed=f"whole percents from 0 to 100 that sum to 100, or none; these sum to {total}")
    return split


TrafficSplit = Annotated[dict[Text, Int32], Field(max_length=100), AfterValidator(_check_split)]
"""The percent of each version, by its name. They sum to 100. If there are none, no version answers."""
MaxVersions = Annotated[Int32, Field(ge=0, le=MAX_VERSIONS)]
"""How many versions are kept; 0 for all."""


@final
class OwnModel(AbstractDocument):
    """Lockstep's own fields of a model.

    Attributes:
        traffic_split: the percent of each version; None if the request does not say.
        max_versions: how many versions are kept when another one becomes READY; 0 for all.
        traffic_changes: set by the service alone, and ignored.
    """

    traffic_split: TrafficSplit | None = None
    max_versions: MaxVersions = 0
    traffic_changes: object = None


@final
class RollbackRequest(AbstractDocument):
    """A request to restore the traffic of a model.

    Attributes:
        etag: the model's etag, if the model must not have changed since it was read.
    """

    etag: Text | None = None
