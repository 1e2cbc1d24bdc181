"""The notebook runs from top to bottom in a kernel of its own, and holds no outputs of anybody's machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

PATH = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
TIMEOUT_S = 240


def read() -> Any:
    return nbformat.read(PATH, as_version=4)  # type: ignore[no-untyped-call]


def test_the_notebook_is_valid_and_has_no_outputs() -> None:
    notebook = read()
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) > 8
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for name in ("LOCKSTEP_URL", "LOCKSTEP_TOKEN", "LOCKSTEP_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCKSTEP_HOME", str(home))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    notebook = read()
    client = NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "\n".join(str(output.get("data", output.get("text", ""))) for output in outputs)
    assert [output for output in outputs if output.output_type == "error"] == []
    assert "SUCCEEDED" in text
    assert "(simulated machines)" in text
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3, "the plots"
    accuracies = [float(found) for found in re.findall(r"'accuracy': ([\d.]+)", text)]
    assert accuracies[0] > 0.5
    left = [process for process in psutil.process_iter() if any(str(home) in word for word in _words(process))]
    assert left == []
    assert os.listdir(home), "jobs, logs and models stay"


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
