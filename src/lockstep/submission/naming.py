"""How a submitter knows the parameters of a submission, for messages: by flags, or by the arguments of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Naming: TypeAlias = Callable[[str], str]
"""Returns the submitter's name of a parameter: ``--package-path`` or ``package_path`` for ``package_path``."""


def argument_name(parameter: str) -> str:
    """Returns the name of a parameter in Python, which is the parameter's own."""
    return parameter


def flag_name(parameter: str) -> str:
    """Returns the flag of a parameter, such as ``--master-image-uri`` for ``master_image_uri``."""
    return "-- USER_ARGS" if parameter == "user_args" else f"--{parameter.replace('_', '-')}"
