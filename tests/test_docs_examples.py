"""The first example of each page about strategies runs as it stands."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.topology import virtual_devices_env

DOCS = Path(__file__).parents[1] / "docs" / "strategies"
# Their examples start themselves in other roles: a process of its own for each.
CLUSTER_PAGES = [
    *(DOCS / f"parameter_server{part}.md" for part in ("", "_checkpoints", "_loops")),
    DOCS / "sparse_embeddings.md",
]
OWN_PROCESS_PAGES = [*CLUSTER_PAGES, DOCS.parent / "checkpoints.md"]
PAGES = [path for path in sorted(DOCS.glob("*.md")) if path.name != "README.md"]
ALONE = [path for path in PAGES if path not in CLUSTER_PAGES]
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


def first_example(page):
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return blocks[0] if blocks else "raise AssertionError('the page has no example')"


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """What went wrong, by the page's name; None for an example that ran."""
    folder = tmp_path_factory.mktemp("examples")
    programs = {page.name: folder / f"{page.stem}.py" for page in ALONE}
    for page in ALONE:
        programs[page.name].write_text(first_example(page))
    env = {**os.environ, **virtual_devices_env(NUM_DEVICES), "LOCKSTEP_HOME": str(folder / "home")}
    command = [sys.executable, "-W", "error", "-c", RUNNER, folder / "results.json", *programs.values()]
    ended = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr
    results = json.loads((folder / "results.json").read_text())
    return {name: results[str(program)] for name, program in programs.items()}


@pytest.mark.parametrize("page", ALONE, ids=[page.stem for page in ALONE])
def test_the_first_example_runs(failures, page):
    assert failures[page.name] is None, failures[page.name]


@pytest.mark.heavy
@pytest.mark.parametrize("page", OWN_PROCESS_PAGES, ids=[page.stem for page in OWN_PROCESS_PAGES])
def test_the_example_of_a_process_of_its_own_runs(tmp_path, page):
    program = tmp_path / "train.py"
    program.write_text(first_example(page))
    env = {**os.environ, **virtual_devices_env(1), "LOCKSTEP_HOME": str(tmp_path / "home")}
    keras_own = "ignore:__array__ implementation:DeprecationWarning"  # as Keras reads an optimizer's learning rate
    command = [sys.executable, "-W", "error", "-W", keras_own, program]
    ended = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "was killed" not in ended.stderr, ended.stderr
    assert float(ended.stdout.splitlines()[-1]) >= 0


@pytest.mark.heavy
def test_a_table_of_servers_becomes_a_model_of_one_piece(tmp_path):
    training, whole = re.findall(
        r"^```python\n(.*?)^```$", CLUSTER_PAGES[-1].read_text(), flags=re.MULTILINE | re.DOTALL
    )
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef)
    lines = [ast.unparse(one) for one in ast.parse(training).body if isinstance(one, kept) or is_data(one)]
    again = (
        "import keras; print(keras.saving.load_model('whole.keras').evaluate(ids, clicks, batch_size=256, verbose=0))"
    )
    programs = {"train.py": training, "whole.py": "\n".join([*lines, whole, again])}
    env = {**os.environ, **virtual_devices_env(1), "LOCKSTEP_HOME": str(tmp_path / "home")}
    printed = []
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        ended = subprocess.run(
            [sys.executable, name], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        printed += ended.stdout.splitlines()[-1 - (name == "whole.py") :]
    served, applied, loaded = map(float, printed)
    assert served < 0.69, "it has learned"
    assert applied == pytest.approx(served, rel=1e-5)
    assert loaded == applied


def is_data(statement):
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in ("ids", "clicks")


def test_every_page_stands_in_the_list():
    listed = (DOCS / "README.md").read_text()
    assert [page.name for page in PAGES if f"]({page.name})" not in listed] == []
