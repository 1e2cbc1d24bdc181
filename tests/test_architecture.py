"""The shape of the source: the import rule between the rooms, the sizes and the names of files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
NUM_LINES_MAX = 500
NUM_FUNCTION_LINES_MAX = 60
NAMES_WITHOUT_A_NOUN = {"utils", "util", "helpers", "common", "misc"}

FOUND = [path for folder in ("src", "tests", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
FILES = [path for path in FOUND if not path.is_relative_to(ROOT / "benchmarks" / ".data")]  # rivals' environments


def test_the_rooms_keep_the_import_rule() -> None:
    # In a process of its own: import-linter sets up logging, and with it would silence the loggers of other tests.
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(
        [*command, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kept, 0 broken" in done.stdout


def packages_of(module: str) -> set[str]:
    """Returns the packages that a module is in: importing it runs their `__init__` first."""
    parts = module.split(".")
    return {".".join(parts[:depth]) for depth in range(1, len(parts))}


def test_no_imports_go_in_a_circle() -> None:
    graph = grimp.build_graph("lockstep", cache_dir=None)
    imports: dict[str, set[str]] = {}
    for module in graph.modules:
        direct = graph.find_modules_directly_imported_by(module)
        run_first = set[str]().union(*map(packages_of, direct)) - packages_of(module) - {module}
        imports[module] = direct | run_first
    assert len(imports) > 100, "the modules are found"
    assert list(TopologicalSorter(imports).static_order()), "else it names the circle"


def test_no_file_is_too_long_to_read() -> None:
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in FILES}
    assert sizes, "no files were found"
    assert {name: size for name, size in sizes.items() if size > NUM_LINES_MAX} == {}


def test_no_function_is_too_long_to_read() -> None:
    """Counts the body without its docstring: a command has many flags, and a public function many arguments."""
    sizes: dict[str, int] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                code = node.body[1:] if ast.get_docstring(node) else node.body
                sizes[f"{path.relative_to(ROOT)}: {node.name}"] = (
                    (node.end_lineno or 0) - code[0].lineno + 1 if code else 0
                )
    assert len(sizes) > 1000, "the functions are found"
    assert {name: size for name, size in sizes.items() if size > NUM_FUNCTION_LINES_MAX} == {}


def test_what_is_started_imports_nothing_from_the_folder_that_it_is_started_in() -> None:
    own = [path for path in FILES if path.is_relative_to(ROOT / "src") and "testing" not in path.parts]
    starts = {path.name: re.findall(r'sys\.executable, (?:"-P", )?"-m", "[\w.]+"', path.read_text()) for path in own}
    found = {name: starts for name, starts in starts.items() if starts}
    # A plan runs the user's script, and looks for modules where that is.
    assert {name for name, starts in found.items() if any("-P" not in start for start in starts)} == {"launch.py"}
    assert found.keys() >= {"lifecycle.py", "head.py", "runner_process.py"}


def test_files_are_named_by_a_noun() -> None:
    assert [path for path in FILES if path.stem.strip("_") in NAMES_WITHOUT_A_NOUN] == []


@pytest.mark.parametrize("package", ["lockstep.client", "lockstep.clusters", "lockstep.data"])
def test_what_a_package_imports_when_it_is_used_is_all_there(package: str) -> None:
    module = import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert set(module._LAZY) <= set(module.__all__)
    assert not hasattr(module, "no_such_name")


PRIVATE_MODULES = ("keras.src", "jax._src", "jax.interpreters", "jaxlib")
PRIVATE_ATTRIBUTES = {
    "_call_has_training_arg",
    "_compile_loss",
    "_compile_metrics",
    "_compute_loss",
    "_direct_assign",
    "_get_jax_state",
    "_initial_epoch",
    "_iterations",
    "_jax_state",
    "_layout",
    "_learning_rate",
    "_loss_tracker",
    "_make_function",
    "_path",
    "_shape",
    "_symbolic_build",
    "_trainable_variables",
    "_value",
}
"""Of Keras's models, optimizers and variables."""


def private_parts(path: Path) -> list[str]:
    """Returns what a file imports, reads or writes of Keras's and JAX's private parts."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [name for name in names if f"{name}.".startswith(tuple(f"{one}." for one in PRIVATE_MODULES))]
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_ATTRIBUTES:
            owner = node.value
            is_own = isinstance(owner, ast.Name) and owner.id in {"self", "cls", "found", "other"}
            found += [] if is_own else [f"{ast.unparse(owner)}.{node.attr}"]
    return found


def test_one_room_touches_the_private_parts_of_keras_and_jax() -> None:
    own = [path for path in FILES if path.is_relative_to(ROOT / "src") and "testing" not in path.parts]
    room = [path for path in own if "upstream" in path.parts]
    assert any(private_parts(path) for path in room), "the test sees them"
    found = {path.relative_to(ROOT).as_posix(): private_parts(path) for path in own if path not in room}
    assert {name: parts for name, parts in found.items() if parts} == {}
