"""The first example of each page about strategies runs as it stands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.topology import virtual_devices_env

DOCS = Path(__file__).parents[1] / "docs" / "strategies"
PAGES = [path for path in sorted(DOCS.glob("*.md")) if path.name != "README.md"]
NUM_DEVICES = 4
TIMEOUT_S = 300

# One after the other in one process, which imports JAX and Keras once; what each said goes to a file.
RUNNER = """
import json, runpy, sys, traceback
results = {}
for path in sys.argv[2:]:
    try:
        runpy.run_path(path, run_name="__main__")
        results[path] = None
    except BaseException:
        results[path] = traceback.format_exc()
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """What went wrong, by the page's name; None for an example that ran."""
    folder = tmp_path_factory.mktemp("examples")
    programs = {page.name: folder / f"{page.stem}.py" for page in PAGES}
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        programs[page.name].write_text(blocks[0] if blocks else "raise AssertionError('the page has no example')")
    env = {**os.environ, **virtual_devices_env(NUM_DEVICES), "LOCKSTEP_HOME": str(folder / "home")}
    command = [sys.executable, "-W", "error", "-c", RUNNER, folder / "results.json", *programs.values()]
    ended = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr
    results = json.loads((folder / "results.json").read_text())
    return {name: results[str(program)] for name, program in programs.items()}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_the_first_example_runs(failures, page):
    assert failures[page.name] is None, failures[page.name]


def test_every_page_stands_in_the_list():
    listed = (DOCS / "README.md").read_text()
    assert [page.name for page in PAGES if f"]({page.name})" not in listed] == []
