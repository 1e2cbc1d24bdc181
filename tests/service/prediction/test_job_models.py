"""Which models a job left: wherever its program wrote them below the job's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

WRITE = """
import os, pathlib
top = pathlib.Path(os.environ["AIP_MODEL_DIR"]).parent
for name in {names!r}:
    (top / name).parent.mkdir(parents=True, exist_ok=True)
    (top / name).write_text("x" if name.endswith(".keras") else "")
"""


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ([], []),
        (["model/model.keras"], ["model/model.keras"]),
        (["model/model.keras", "checkpoints/e1.keras", "other.keras"], ["model/model.keras"]),
        (["export/1/net.keras", "export/notes.txt"], ["export/1/net.keras"]),
        (["model/notes.txt", "b.keras", "a.keras"], ["a.keras", "b.keras"]),
    ],
)
def test_models_are_found_where_the_program_wrote_them(
    written: list[str], found: list[str], service: Served, bench: Bench
) -> None:
    bench.create("writes", WRITE.format(names=written))
    bench.step_until_over("writes")
    job = service.http.get("/v1/projects/local/jobs/writes").json()
    assert job["state"] == "SUCCEEDED"
    top = Path(job["lockstep"]["outputs"]["model"]).parent
    answer = service.http.get("/v1/projects/local/jobs/writes/models").json()
    assert answer == {"models": [{"url": str(top / name), "sizeBytes": "1"} for name in found]}


def test_a_link_that_a_program_made_is_no_model(service: Served, bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "others.keras").write_text("of another project")
    link = "import os, pathlib; folder = pathlib.Path(os.environ['AIP_MODEL_DIR']); folder.mkdir(parents=True)"
    bench.create("links", f"{link}; (folder / 'm.keras').symlink_to({str(tmp_path / 'others.keras')!r})")
    bench.step_until_over("links")
    assert service.http.get("/v1/projects/local/jobs/links/models").json() == {"models": []}
