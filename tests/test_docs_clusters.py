"""The page about clusters: each of its definitions is one, and it has every key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from lockstep.clusters.machines.kuberay_manifest import kuberay_manifest
from lockstep.clusters.machines.registry import check_machines
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.parsing.yaml_documents import parse_yaml
from lockstep.jobs.provisioning import ClusterDefinition, parse_cluster
from lockstep.jobs.provisioning.definition import NodeType, ProviderConfig

TEXT = (Path(__file__).parents[1] / "docs" / "clusters.md").read_text("utf-8")
DOCUMENTS: list[dict[str, Any]] = [
    parse_yaml(block, source="docs/clusters.md") for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
]
DEFINITIONS = {document["provider"]["type"]: document for document in DOCUMENTS if "provider" in document}


@pytest.mark.parametrize("provider", list(DEFINITIONS))
def test_its_clusters_can_be_used(provider: str) -> None:
    catalogue = load_catalogue()
    definition = parse_cluster(DEFINITIONS[provider], source="docs/clusters.md", catalogue=catalogue)
    check_machines(definition, catalogue=catalogue)
    if provider == "kubernetes":
        kuberay_manifest(definition, catalogue=catalogue)


def test_there_is_one_for_each_provider_that_it_names() -> None:
    assert sorted(DEFINITIONS) == ["aws", "azure", "gcp", "kubernetes", "local"]


def test_its_jobs_are_jobs() -> None:
    (job,) = [document for document in DOCUMENTS if "trainingInput" in document]
    assert len(parse_training_input(job, source="docs/clusters.md").lockstep.candidates) == 2


@pytest.mark.parametrize(
    ("model", "prefix"),
    [
        pytest.param(ClusterDefinition, "", id="cluster"),
        pytest.param(ProviderConfig, "provider.", id="provider"),
        pytest.param(NodeType, "", id="node type"),
    ],
)
def test_it_has_every_key(model: type[BaseModel], prefix: str) -> None:
    keys = [field.alias or name for name, field in model.model_fields.items()]
    missing = [key for key in keys if f"| `{prefix}{key}` |" not in TEXT and f"| `{prefix}{key}." not in TEXT]
    assert not missing
