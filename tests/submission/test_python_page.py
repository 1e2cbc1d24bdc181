"""The examples of docs/python.md run one after the other, as one script of a reader's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.testing.served import HOME_TOKEN, Served

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, sys
import tensorboardX
print("arguments", sys.argv[1:], flush=True)
with tensorboardX.SummaryWriter(os.environ["AIP_TENSORBOARD_LOG_DIR"] + "/train") as writer:
    for step in range(3):
        writer.add_scalar("epoch_loss", 1 / (1 + step), step)
"""


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_every_example_of_the_page_runs(service: Served, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    (tmp_path / "page.py").write_text("\n".join(blocks))
    (tmp_path / "my_job").mkdir()
    (tmp_path / "my_job" / "train.py").write_text(SCRIPT)
    env = {**os.environ, "LOCKSTEP_URL": service.url, "LOCKSTEP_TOKEN": HOME_TOKEN}
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=360, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"^\{'accuracy': ([\d.]+)\}$", done.stdout, re.MULTILINE)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) > 0.7
    assert "arguments ['--epochs', '3']" in done.stdout
    assert "ValueError: no such data" in done.stdout
    assert re.search(r"^2 +0\.333", done.stdout, re.MULTILINE), "the curve of the script"
    assert len(re.findall(r"^0\.0(?:01|1) [\d.]+ \d", done.stdout, re.MULTILINE)) == 2
    assert "SUCCEEDED" in done.stderr, "progress, as lines"
