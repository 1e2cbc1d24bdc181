"""A function becomes a program with everything that it uses, or one line that names what a job cannot have."""

from __future__ import annotations

import functools
import linecache
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import InvalidInputError
from lockstep.jobs.running.function_calls import FunctionCall
from lockstep.submission.functions import check_call, function_program
from lockstep.submission.naming import argument_name

Notebook = Callable[[str], dict[str, Any]]


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    """Runs a cell as a notebook does: in ``__main__``, with its source in the cache of lines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    made: list[str] = []

    def run(cell: str) -> dict[str, Any]:
        text = textwrap.dedent(cell)
        name = f"/tmp/ipykernel_1/{len(made)}.py"
        made.append(name)
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), names)
        return names

    yield run
    for name in made:
        linecache.cache.pop(name, None)


def program(function: object, folder: Path | None = None) -> str:
    return function_program(function, folder=folder, naming=argument_name).source


def refusal(function: object, folder: Path | None = None) -> str:
    with pytest.raises(InvalidInputError) as caught:
        program(function, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_function_brings_what_it_uses_in_an_order_that_runs(notebook: Notebook, tmp_path: Path) -> None:
    notebook(
        """
        import functools
        import json as j
        import xml
        import xml.dom.minidom
        from dataclasses import dataclass
        from math import floor
        EPOCHS = 3
        NAMES = {"a": [1, 2.5, None], "b": (True, "text")}
        UNUSED = object()
        """
    )
    names = notebook(
        """
        def twice(function):
            @functools.wraps(function)
            def wrapper(*args):
                return 2 * function(*args)

            return wrapper

        @dataclass(frozen=True)
        class Point:
            x: int = EPOCHS

            def total(self):
                return self.x + base(self)

        def base(point):
            return 10 if point is None else recursive(3)

        def recursive(n):
            return 0 if n == 0 else recursive(n - 1)

        short = base
        """
    )
    names = notebook(
        """
        @twice
        def doubled(x, *, add=floor(1.5)):
            return x + add

        def train(n, *, epochs=EPOCHS):
            total = sum(item for item in NAMES["a"] if item)
            document = xml.dom.minidom.parseString("<a/>").documentElement.tagName
            return j.dumps([n, epochs, total, document, Point().total(), doubled(n), short(None)])
        """
    )
    text = program(names["train"])
    assert text.count("def base") == text.count("class Point") == 1
    assert text.index("EPOCHS = 3") < text.index("class Point") < text.index("def train")
    assert "UNUSED" not in text
    assert text.index("import lockstep\n") < text.index("import json as j")
    path = tmp_path / "written.py"
    path.write_text(text)
    assert runpy.run_path(str(path))["train"](5) == '[5, 3, 3.5, "a", 3, 12, 10]'


def test_a_value_is_copied_as_it_is_when_the_function_is_submitted(notebook: Notebook) -> None:
    names = notebook("RATE = 0.5\ndef train():\n    return RATE\n")
    notebook("RATE = 0.25")
    assert "RATE = 0.25\n" in program(names["train"])
    names = notebook("def train():\n    return 'the newer one'\n")
    assert "the newer one" in program(names["train"])
    assert "RATE" not in program(names["train"])


def test_a_class_without_methods_is_found_in_its_cell(notebook: Notebook) -> None:
    notebook("class Plain:\n    size = 1\n")
    notebook("class Plain:\n    size = 2\n")
    assert "size = 2" in program(notebook("def train():\n    return Plain.size\n")["train"])


def test_names_are_imported_from_where_people_import_them(notebook: Notebook) -> None:
    names = notebook(
        """
        import numpy as np
        from collections import OrderedDict as Ordered
        from concurrent.futures import ThreadPoolExecutor
        from lockstep.errors import counted
        def train():
            return np.zeros(3), Ordered(), ThreadPoolExecutor, counted
        """
    )
    text = program(names["train"])
    for line in (
        "import numpy as np",
        "from collections import OrderedDict as Ordered",
        "from lockstep.errors import counted",
    ):
        assert f"{line}\n" in text
    assert "import ThreadPoolExecutor\n" in text


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        pytest.param(
            "images = bytearray(3)\ndef train():\n    return images",
            "train uses the global images, a value of type bytearray, which a job cannot have; allowed: modules",
            id="a value that cannot be written",
        ),
        pytest.param(
            "def outer():\n    size = 3\n    kind = 'a'\n    def train():\n        return size, kind\n"
            "    return train\ntrain = outer()",
            "train uses variables of the function around it; received 'kind, size'; pass them as arguments",
            id="closure",
        ),
        pytest.param(
            "def outer():\n    def train():\n        return 1\n    return train\ntrain = outer()",
            "train is defined inside another function",
            id="inner function",
        ),
        pytest.param("train = lambda: 1", "a lambda cannot be submitted", id="lambda"),
        pytest.param("async def train():\n    pass", "train is a coroutine or a generator", id="coroutine"),
        pytest.param("def train():\n    yield 1", "train is a coroutine or a generator", id="generator"),
        pytest.param("def train():\n    return missing", "train uses missing, which is not defined", id="undefined"),
        pytest.param(
            "def train():\n    display(1)", "train uses display, which exists only in a notebook", id="IPython"
        ),
        pytest.param(
            "def help_it():\n    return missing\ndef train():\n    return help_it()",
            "help_it uses missing, which is not defined",
            id="of a helper",
        ),
        pytest.param(
            "import functools\ndef add(a, b):\n    return a + b\nplus = functools.partial(add, 1)\n"
            "def train():\n    return plus(2)",
            "train uses the global plus, a value of type partial, which a job cannot have",
            id="a made function",
        ),
        pytest.param(
            "import functools\ndef step():\n    pass\nstep = functools.lru_cache(step)\ndef train():\n    step()",
            "train uses the global step",
            id="wrapped without a decorator",
        ),
        pytest.param("NAN = float('nan')\ndef train():\n    return NAN", "train uses the global NAN", id="nan"),
    ],
)
def test_what_a_job_cannot_have_is_named(notebook: Notebook, cell: str, said: str) -> None:
    assert refusal(notebook(cell)["train"]).startswith(said)


def test_what_is_no_function_is_refused(notebook: Notebook) -> None:
    class Trainer:
        def train(self) -> None: ...

    assert "of type int" in refusal(3)
    assert "of type partial" in refusal(functools.partial(print))
    assert "of type method" in refusal(Trainer().train)
    assert "of type builtin_function_or_method" in refusal(len)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def train():\n    pass", names)
    assert "the source of the function train is not known" in refusal(names["train"])


def test_code_of_this_machine_has_to_be_packed(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    (folder / "inner").mkdir(parents=True)
    (folder / "tools_of_mine.py").write_text("def load():\n    return 1\n")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "model.py").write_text("def build():\n    return 2\n")
    monkeypatch.syspath_prepend(folder)
    names = notebook(
        "import tools_of_mine\nfrom inner.model import build\ndef train():\n    return tools_of_mine.load(), build()\n"
    )
    try:
        said = refusal(names["train"])
        assert said.startswith(("the module inner.model is not installed", "the module tools_of_mine is not installed"))
        assert "name its folder with package_path" in said
        assert "not installed" in refusal(names["train"], tmp_path), "there they would have other names"
        text = program(names["train"], folder)
        assert "import tools_of_mine\n" in text
        assert "from inner.model import build\n" in text

        made = function_program(names["build"], folder=None, naming=argument_name)
        assert made.folder == folder / "inner", "the folder of the package, whose parent is importable too"
        assert "from inner.model import build\n" in made.source
        elsewhere = refusal(names["build"], tmp_path / "mine" / "inner" / "none")
        assert elsewhere.startswith("the module inner.model does not lie in package_path")
    finally:
        for name in ("tools_of_mine", "inner", "inner.model"):
            sys.modules.pop(name, None)


def test_a_function_of_an_installed_package_is_refused() -> None:
    assert refusal(textwrap.dedent).startswith("dedent belongs to the installed module textwrap")


def test_arguments_that_a_function_does_not_take_are_refused(notebook: Notebook) -> None:
    train = notebook("def train(data, *, epochs=1):\n    pass")["train"]
    check_call(train, args=["gs://b"], kwargs={"epochs": 2})
    with pytest.raises(InvalidInputError, match=r"^train\(data, \*, epochs=1\) does not take .*missing .*'data'$"):
        check_call(train, args=[], kwargs={})


def test_the_program_of_a_script_calls_the_function_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from lockstep.submission.functions import function_program
            from lockstep.submission.naming import argument_name

            SIZE = 4

            def train(n, *, times=1):
                print("called", n * times + SIZE)

            if __name__ == "__main__":
                sys.stdout.write(function_program(train, folder=None, naming=argument_name).source)
            """
        )
    )
    written = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True).stdout
    (tmp_path / "lockstep_train.py").write_text(written)
    call = FunctionCall(args=[5], kwargs={"times": 2}).to_text()
    command = [sys.executable, "-m", "lockstep_train", call, "--job-dir", "gs://b/j"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "called 14\n"
    bad = subprocess.run(command[:3], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "the call of the function is missing" in bad.stderr
