"""Which model and version a job works for, so that costs can be summed by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from lockstep.jobs.input.predictions import named_model


@final
@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """The model that a prediction server or a batch prediction works for.

    Attributes:
        model: the name of the model.
        version: the name of the version; None if a batch prediction named only the model.
    """

    model: str
    version: str | None

    @property
    def version_name(self) -> str:
        """The name of the version with that of its model; that of the model alone if the version is not recorded."""
        return self.model if self.version is None else f"{self.model}/{self.version}"


def served_model(
    job_id: str, *, is_server: bool, prediction_input: Mapping[str, Any] | None = None
) -> ServedModel | None:
    """Returns the model that a job works for; None for a job that works for none.

    Args:
        job_id: the name of the job; of a prediction server, ``MODEL/VERSION/ID``.
        is_server: whether the job is a prediction server.
        prediction_input: the prediction input of a batch prediction, in the contract's JSON; None for other jobs.
    """
    if is_server:
        model, version, _ = job_id.split("/")
        return ServedModel(model=model, version=version)
    if prediction_input is None:
        return None
    named = named_model(model_name=prediction_input.get("modelName"), version_name=prediction_input.get("versionName"))
    return None if named is None else ServedModel(model=named[1], version=named[2])
