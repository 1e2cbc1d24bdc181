"""The examples of the pages about data run as they stand."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "data"
PRINTED = {
    "dataset": r"(\(32, 2\) int64\n){3}\(4, 2\) int64\n\[1\.0, 3\.0, 5\.0\] int32\n",
    "README": r"\('day', 'night'\)\n[01]\.\d+\n",
    "batches": r"(\(32, 28, 28\) int64\n){3}\(4, 28, 28\) int64\n\(1, 0\)\n",
    "images": r"\[\(8, 56, 56, 3\), \(8, 56, 56, 3\), \(4, 56, 56, 3\)\]\n",
    "packing": r"\{'train': \d+, 'val': \d+\}\n\(32, 28, 28\)\n",
}


@pytest.mark.parametrize(
    "page", [pytest.param("README", marks=pytest.mark.heavy), "batches", "dataset", "images", "packing"]
)
def test_the_example_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = PAGES / f"{page}.md"
    block, *_ = re.findall(r"^```python\n(.*?)^```$", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    exec(compile(block, str(path), "exec"), {})
    assert re.fullmatch(PRINTED[page], capsys.readouterr().out)
