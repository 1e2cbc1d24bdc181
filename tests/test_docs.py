"""The documents are true of the code as far as a test can tell: links, commands, examples, the generated reference."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from lockstep.cli.app import app
from lockstep.cli.reference import COMMANDS_PAGE, JSON_PAGE, write_pages
from lockstep.jobs.billing.budgets import parse_budgets
from lockstep.jobs.billing.prices import apply_prices
from lockstep.jobs.input.documents import parse_config
from lockstep.jobs.input.spec import LockstepExtensions
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.scheduling import parse_quotas
from lockstep.service import __main__ as service
from lockstep.service.api.prediction.model_requests import parse_version
from lockstep.service.control.schedule import MAX_SERVERS
from lockstep.service.prediction.draining import MAX_DRAIN_S
from lockstep.serving import __main__ as serving

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "benchmarks", "examples")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUM_COLUMNS_MAX = 100


def _blocks(page: Path, *languages: str) -> Iterator[str]:
    return (text for language, text in BLOCK.findall(page.read_text("utf-8")) if language in languages)


def _anchors(page: Path) -> set[str]:
    """Returns the anchors that a page's headings have on GitHub."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _commands(page: Path) -> list[list[str]]:
    """Returns what a page's shell blocks call of `lockstep` and `make`, without prompts, comments and redirections."""
    text = "\n".join(_blocks(page, "bash", "sh", "console")).replace("\\\n", " ")
    lines = [line.removeprefix("$ ") for line in text.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if line.startswith(("lockstep ", "make "))]
    return [list(takewhile(lambda word: word not in (">", "<", "|"), line)) for line in words]


def test_the_least_version_of_keras_is_the_one_that_the_page_about_security_gives_reasons_for() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    (least,) = [each.removeprefix("keras>=") for each in needed if each.startswith("keras")]
    assert f"Keras {least} or later" in (ROOT / "docs" / "security.md").read_text("utf-8")


def test_the_limits_of_predictions_are_those_of_the_code() -> None:
    page = " ".join((ROOT / "docs" / "prediction.md").read_text("utf-8").split())
    assert f"open ones for {service.SHUTDOWN_S} seconds" in page
    assert f"answers the open ones for {serving.SHUTDOWN_S} seconds" in page
    assert (MAX_DRAIN_S, "for two minutes at most" in page) == (120.0, True)
    assert f"At most {MAX_SERVERS} prediction servers run at once there" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text("utf-8")):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = page if not name else page.parent / name
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_examples_import_lockstep_before_keras(page: Path) -> None:
    late = [
        block
        for block in _blocks(page, "python")
        if re.search(r"^(import|from) keras\b", block, re.MULTILINE)
        and re.search(r"^(import|from) lockstep\b", block.partition("import keras")[2], re.MULTILINE)
    ]
    assert late == [], "Keras would look for TensorFlow, unless the reader's environment says otherwise"


def test_the_reference_of_the_command_line_is_up_to_date(tmp_path: Path) -> None:
    write_pages(tmp_path)
    for name in (COMMANDS_PAGE, JSON_PAGE):
        current = (ROOT / "docs" / name).read_text("utf-8")
        assert current == (tmp_path / name).read_text("utf-8"), "write it anew with `make docs`"


def test_every_variable_of_the_environment_is_explained() -> None:
    named = re.compile(r"\bLOCKSTEP_[A-Z]+(?:_[A-Z]+)*\b")
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    variables = set(named.findall(sources))
    assert "LOCKSTEP_HOME" in variables
    explained = set(named.findall("\n".join(page.read_text("utf-8") for page in PAGES if page.name != "cli.md")))
    assert sorted(variables - explained) == []


def test_every_key_of_lockstep_in_a_training_input_is_explained() -> None:
    text = (ROOT / "docs" / "submitting.md").read_text("utf-8")
    keys = [field.alias or name for name, field in LockstepExtensions.model_fields.items()]
    assert "stuckAfter" in keys
    assert [key for key in keys if not re.search(rf"^\|.*`{key}`.*\|", text, re.MULTILINE)] == []


def test_python_examples_parse() -> None:
    examples = [text for page in PAGES for text in _blocks(page, "python")]
    assert examples
    for text in examples:
        ast.parse(text)


def test_configurations_are_ones_that_the_service_takes() -> None:
    for page in PAGES:
        for text in _blocks(page, "yaml"):
            document = yaml.safe_load(text)
            if "provider" in document:
                continue  # a cluster's: test_docs_clusters.py
            if "machineTypes" in document:
                apply_prices(load_catalogue(), document=document, source=page.name)
                continue
            if "projects" in document:
                parse = parse_budgets if "alertShares" in text else parse_quotas
            else:
                parse = parse_config
            parse(document, source=page.name)


def test_settings_of_versions_are_ones_that_the_service_takes() -> None:
    documents = [json.loads(text) for text in _blocks(ROOT / "docs" / "prediction.md", "json")]
    versions = [document for document in documents if "lockstep" in document]
    assert len(versions) == 2
    for document in versions:
        parse_version({"name": "v1", "deploymentUri": "gs://bucket/net.keras", **document})


def test_commands_are_ones_that_exist() -> None:
    words = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    pages = [page for page in (*PAGES, *(ROOT / "examples").rglob("*.md")) if page.name != "cli.md"]
    commands = [command for page in pages for command in _commands(page)]
    assert len(commands) > 40
    for command in commands:
        if command[0] == "make":
            assert set(command[1:]) <= set(words), command
        if command[0] == "lockstep":
            _check_verb(command[1:])


@cache
def _command_line() -> Any:
    return typer.main.get_command(app)


def _check_verb(arguments: list[str]) -> None:
    """Reads a command line as `lockstep` would, and runs nothing; an unknown verb or flag raises."""
    command = _command_line()
    while subcommands := getattr(command, "commands", None):
        command, arguments = subcommands[arguments[0]], arguments[1:]
    command.make_context(command.name, list(arguments))


def test_a_flag_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        _check_verb(["submit", "job", "--modul-name", "train"])


def test_the_picture_of_the_architecture_fits_a_page() -> None:
    for page in PAGES:
        for text in _blocks(page, "text"):
            assert max(map(len, text.splitlines())) <= NUM_COLUMNS_MAX, page.name
