"""``lockstep migrate``: rewrites scripts of `tf.keras` and `tf.distribute` for Keras 3 and Lockstep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.console import ERRORS, print_document
from lockstep.cli.data.shown import printable
from lockstep.errors import LockstepError, counted

if TYPE_CHECKING:
    from lockstep.migration import Migrated


@answers("MigrationForm")
def migrate(
    script_or_folder: Annotated[
        Path, typer.Argument(metavar="SCRIPT_OR_FOLDER", help="A script, or a folder with scripts, at any depth.")
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Write the scripts anew, instead of showing the diff.")
    ] = False,
    keep_tf_data: Annotated[
        bool,
        typer.Option("--keep-tf-data", help="Leave input pipelines of tf.data as they are: TensorFlow stays for them."),
    ] = False,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Rewrite scripts of tf.keras and tf.distribute for Keras 3 and Lockstep.

    The command prints the changes as a unified diff for `git apply` or `patch -p1`. With --write, it changes the files.
    Comments and layout are kept. No code of the scripts is run. Rewritten scripts are not changed again.

    Code that cannot be rewritten stays as it is, under a comment "# lockstep migrate: ..." that says what to do. These
    places are also listed on standard error, each with a link to the documentation.

    Exit codes: 0 success, even if places are left to change by hand; 64 a file is not valid Python (the others are
    rewritten); 66 there are no scripts; 73 a file cannot be written.
    """
    # Imported here because it imports Keras, which other commands do not need.
    from lockstep.migration import find_scripts, migrate_file

    worst: LockstepError | None = None
    documents: list[dict[str, Any]] = []
    for path in find_scripts(script_or_folder):
        try:
            migrated = migrate_file(path, keep_tf_data=keep_tf_data)
            if write and migrated.is_changed:
                migrated.write()
        except LockstepError as error:
            ERRORS.print(printable(f"lockstep: error: {error}"))
            worst = error if worst is None or error.exit_code > worst.exit_code else worst
            documents.append({"path": str(path), "isChanged": False, "remarks": [], "error": str(error)})
            continue
        documents.append(_document(migrated))
        if output_format is Format.TABLE:
            _show(migrated, write=write)
    return Answer(
        show=lambda: _sum_up(documents, write=write),
        document={"scripts": documents},
        error=None if worst is None else typer.Exit(worst.exit_code),
    )


def _document(migrated: Migrated) -> dict[str, Any]:
    remarks = [{"line": each.line, "what": each.what, "link": each.link} for each in migrated.remarks]
    return {"path": str(migrated.path), "isChanged": migrated.is_changed, "remarks": remarks, "error": None}


def _sum_up(documents: Sequence[Mapping[str, Any]], *, write: bool) -> None:
    num_changed = sum(each["isChanged"] for each in documents)
    num_left = sum(len(each["remarks"]) for each in documents)
    what = "rewritten" if write else "would change; apply with --write" if num_changed else "would change"
    ERRORS.print(
        f"{num_changed:,} of {counted(len(documents), 'script')} {what}; {counted(num_left, 'place')} to change by hand"
    )


def _show(migrated: Migrated, *, write: bool) -> None:
    if not write and migrated.is_changed:
        print_document(migrated.diff())  # unchanged if redirected to a file, so that it can be applied
    for remark in migrated.remarks:
        ERRORS.print(printable(f"{migrated.path}:{remark.line}: {remark.what} ({remark.link})"))
