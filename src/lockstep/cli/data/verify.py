"""``lockstep data verify``: every checksum of packed files."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lockstep.cli.console import OUTPUT, duration


def verify(
    target: Annotated[str, typer.Argument(help="A file, a pattern, or a bucket.")],
    threads: Annotated[int, typer.Option(help="How many files are read at once.", min=1, max=256)] = 8,
) -> None:
    """Check every record of packed files, and what their manifests state."""
    from lockstep.data.verification import MAX_NAMED
    from lockstep.data.verification import verify as verify_files

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=OUTPUT, transient=True, disable=not OUTPUT.is_terminal) as progress:
        task = progress.add_task("looking", total=None)

        def advance(num_bytes: int, total_bytes: int) -> None:
            progress.update(task, description="verifying", advance=num_bytes, total=total_bytes)

        report = verify_files(target, num_threads=threads, progress=advance)
    if len(report.damages) > 1:
        for damage in report.damages:
            OUTPUT.print(f"{damage.error}")
        for file in report.files:
            if file.num_damaged > MAX_NAMED:
                OUTPUT.print(f"{file.url}: {file.num_damaged - MAX_NAMED:,} more damaged records")
    num_sound = report.num_records - report.num_damaged
    OUTPUT.print(
        f"{num_sound:,} of {report.num_records:,} records in {len(report.files)} files are sound; "
        f"{decimal(report.size_bytes)} in {duration(report.elapsed_s)}, "
        f"{decimal(round(report.size_bytes / max(report.elapsed_s, 1e-6)))}/s"
    )
    if report.num_with_manifest < len(report.files):
        OUTPUT.print(f"of {len(report.files) - report.num_with_manifest} files no manifest states a checksum")
    report.raise_damage()
