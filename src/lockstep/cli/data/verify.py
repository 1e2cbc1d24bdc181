"""``lockstep data verify``: verifies every checksum of packed files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.filesize import decimal

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import ERRORS, OUTPUT, duration
from lockstep.cli.data.shown import damage_documents, show_damages, show_notes
from lockstep.errors import LockstepError, counted

if TYPE_CHECKING:
    from lockstep.data.verification import Report


_MAX_DAMAGES: Final = 1000
"""The maximum number of damages in the JSON."""


@answers("VerificationForm")
def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A bucket or folder, a data set's split in it, a pattern of files, or a file."
        ),
    ],
    threads: Annotated[int, typer.Option(help="Number of files to read at once.", min=1, max=256)] = 8,
) -> Answer:
    """Verify every record of packed files, and compare the files with their manifests.

    The command checks both checksums of each record, and that no file is missing. If a file's name or manifest states
    them, it also checks the number of records, and the length and checksum of the whole file. It continues after
    damage, and reports all of it.

    TARGET is a path, or a file://, gs:// or s3:// URL:

        lockstep data verify gs://bucket/pets

        lockstep data verify gs://bucket/pets/pets-train

        lockstep data verify 'pets/pets-train-*.tfrec'

    Exit codes: 0 everything is intact; 65 data is damaged; 66 a file is missing, or there are no files; 64 the target
    or an option is not valid; 20 there is no permission to read the bucket; 74 the bucket cannot be read.
    """
    # Imported here because other commands start without NumPy, and the help without Rich's progress bars.
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from lockstep.data.verification import verify as verify_files

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=ERRORS, transient=True, disable=not ERRORS.is_terminal) as progress:
        task = progress.add_task("looking", total=None)

        def advance(num_bytes: int, total_bytes: int) -> None:
            progress.update(task, description="verifying", advance=num_bytes, total=total_bytes)

        report = verify_files(target, num_threads=threads, progress=advance)
    error: LockstepError | None = None
    try:
        report.raise_damage()
    except LockstepError as found:
        error = found
    return Answer(show=lambda: _show(report), document=_document(report), error=error)


def _document(report: Report) -> dict[str, Any]:
    return {
        "numRecords": report.num_records,
        "numStatedRecords": report.num_stated,
        "numDamagedRecords": report.num_damaged,
        "numFiles": len(report.files),
        "numMissingFiles": report.num_missing_files,
        "sizeBytes": report.size_bytes,
        "elapsedSeconds": report.elapsed_s,
        "damages": damage_documents(report.damages[:_MAX_DAMAGES]),
        "notes": list(report.notes),
    }


def _show(report: Report) -> None:
    from lockstep.data.verification import MAX_NAMED  # as above

    show_damages(OUTPUT, report.damages)
    for file in report.files:
        if file.num_damaged > MAX_NAMED:
            more = counted(file.num_damaged - MAX_NAMED, "more damaged record")
            OUTPUT.print(f"{file.url}: {more}")
    num_sound = report.num_records - report.num_damaged
    num_files = len(report.files)
    total = f"{num_files:,} of " if report.num_missing_files else ""
    OUTPUT.print(
        f"{num_sound:,} of {counted(report.num_stated, 'record')} "
        f"in {total}{counted(num_files + report.num_missing_files, 'file')} "
        f"{'is' if report.num_stated == 1 else 'are'} sound; "
        f"{decimal(report.size_bytes)} in {duration(report.elapsed_s)}, "
        f"{decimal(round(report.size_bytes / max(report.elapsed_s, 1e-6)))}/s"
    )
    if report.num_with_manifest < num_files:
        OUTPUT.print(f"{counted(num_files - report.num_with_manifest, 'file')} without a checksum in a manifest")
    show_notes(OUTPUT, report.notes)
