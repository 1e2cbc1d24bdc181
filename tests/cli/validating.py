"""Validates the JSON that commands print against the forms that the documentation names."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from lockstep.cli.reference import commands_with_json, form_named


def validated(name: str, text: str) -> Any:
    """Returns the JSON that a command has printed: one document, or a list of those on its lines.

    Args:
        name: the command, without ``lockstep``.
        text: what it has printed.
    """
    spec = commands_with_json()[name]
    documents = [json.loads(line) for line in text.splitlines()] if spec.is_lines else [json.loads(text)]
    for document in documents:
        errors: list[str] = []
        for form in spec.forms:
            try:
                TypeAdapter(form_named(form)).validate_python(document)
            except ValueError as error:
                errors.append(str(error))
        assert len(errors) < len(spec.forms), errors
    return documents if spec.is_lines else documents[0]
