import re
import tempfile
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "data" / "packing.md"


def test_the_example_of_the_page_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "{'train': 901, 'val': 99}\n(32, 28, 28)\n"
