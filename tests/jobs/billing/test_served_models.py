"""Which model and version a job works for."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.jobs.billing.served_models import ServedModel, served_model

MODEL = "projects/p/models/m"


def test_a_servers_model_and_version_are_in_its_name() -> None:
    found = served_model("m/v1/3f2a90c1", is_server=True)
    assert found == ServedModel(model="m", version="v1")
    assert found.version_name == "m/v1"


@pytest.mark.parametrize(
    ("named", "version", "name"),
    [
        ({"modelName": MODEL}, None, "m"),
        ({"versionName": f"{MODEL}/versions/v2"}, "v2", "m/v2"),
    ],
    ids=["model", "version"],
)
def test_a_batch_predictions_model_is_the_one_that_it_names(
    named: dict[str, Any], version: str | None, name: str
) -> None:
    found = served_model("batch_1", is_server=False, prediction_input={"dataFormat": "JSON", **named})
    assert found == ServedModel(model="m", version=version)
    assert found.version_name == name


def test_other_jobs_work_for_no_model() -> None:
    assert served_model("train", is_server=False) is None
    assert served_model("batch_1", is_server=False, prediction_input={"uri": "gs://b/net.keras"}) is None
