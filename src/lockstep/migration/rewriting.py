"""Rewrites a whole script, by running the passes in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, final

import libcst as cst

from lockstep.errors import InvalidInputError
from lockstep.migration.functions import FunctionPass
from lockstep.migration.imports import ImportPass, without_duplicates
from lockstep.migration.methods import MethodPass
from lockstep.migration.names import NamePass
from lockstep.migration.remarks import Remark, read_remarks
from lockstep.migration.removals import RemovalPass, UnusedPass
from lockstep.migration.scripts import Options, Script
from lockstep.migration.tapes import rewrite_tapes
from lockstep.migration.training_steps import TrainingStepPass

_TOLD_BY: Final = ("tensorflow", "keras")
"""A script with none of these words is not changed."""


_HAS_LOCKSTEP: Final = re.compile(r"^(?:import|from) lockstep\b", re.MULTILINE)
_HAS_KERAS: Final = re.compile(r"^\s*(?:import|from) (?:tensorflow|keras)\b", re.MULTILINE)


@final
@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """The result of rewriting a script.

    Attributes:
        source: the rewritten script.
        encoding: the encoding that the script declares.
        remarks: the remarks about code that a person has to change, in the order of the lines.
    """

    source: str
    encoding: str
    remarks: tuple[Remark, ...]


def rewrite(source: str | bytes, *, name: str = "the script", keep_tf_data: bool = False) -> Rewritten:
    """Rewrites a script of `tf.keras` and `tf.distribute` for Keras 3 and Lockstep, without running it.

    Comments and layout are kept. Code that cannot be rewritten stays as it is, with a comment before it that says what
    to do. Rewriting a rewritten script again changes nothing.

    Args:
        source: the script's text, or its bytes in the encoding that they declare.
        name: the name of the script in error messages.
        keep_tf_data: whether to leave input pipelines of ``tf.data`` unchanged.

    Raises:
        InvalidInputError: the script cannot be parsed as Python.
    """
    try:
        module = cst.parse_module(source)
    except (cst.ParserSyntaxError, UnicodeDecodeError, LookupError, RecursionError) as error:
        line = f", line {error.editor_line}" if isinstance(error, cst.ParserSyntaxError) else ""
        raise InvalidInputError(
            f"{name}{line}: cannot be parsed as Python",
            action="fix it first, or leave it out",
        ) from error
    before = module.code
    if not any(word in before for word in _TOLD_BY):
        return Rewritten(source=before, encoding=module.encoding, remarks=())
    options = Options(keep_tf_data=keep_tf_data)
    script = Script(module).passed(TrainingStepPass(options))
    script = rewrite_tapes(script, options)
    for kind in (FunctionPass, MethodPass, RemovalPass, UnusedPass, NamePass):
        script = script.passed(kind(options))
    script = script.passed(_with_lockstep(ImportPass(options), script, options))
    module = without_duplicates(script.module)
    return Rewritten(source=module.code, encoding=module.encoding, remarks=read_remarks(module.code))


def _with_lockstep(imports: ImportPass, script: Script, options: Options) -> ImportPass:
    """Adds the import of Lockstep to every script that imports Keras, because it selects the JAX backend."""
    if not _HAS_LOCKSTEP.search(script.code) and ("keras" in options.needed or _HAS_KERAS.search(script.code)):
        options.needed.add("lockstep")
    return imports
