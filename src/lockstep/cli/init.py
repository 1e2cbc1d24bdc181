"""``lockstep init``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import OUTPUT
from lockstep.errors import ConflictError, InvalidInputError, StorageWriteError, closest

TEMPLATES: Final = {
    "fit": "Keras's `fit`, with checkpoints and TensorBoard",
    "loop": "a training loop of its own",
}
"""What each template's script trains with."""

_PLACE: Final = Path(__file__).parent / "templates"


@answers("WrittenFilesForm")
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="The folder, which is created if it does not exist.")
    ] = Path(),
    template: Annotated[
        str, typer.Option(help="; ".join(f"{name}: {text}" for name, text in TEMPLATES.items()) + ".")
    ] = "fit",
) -> Answer:
    """Write a script and a job configuration to begin with. They run as they are, here and on a cluster.

    The files are train.py, config.yaml and .lockstepignore. A file that exists is never overwritten.
    """
    if template not in TEMPLATES:
        raise InvalidInputError("--template", received=template, allowed=TEMPLATES, action=closest(template, TEMPLATES))
    files = files_of(template)
    write_files(folder, files=files)
    return Answer(show=lambda: _show(folder), document={"folder": str(folder.absolute()), "files": list(files)})


def _show(folder: Path) -> None:
    place = shlex.quote(str(folder))
    OUTPUT.print(f"wrote train.py, config.yaml and .lockstepignore in {folder.absolute()}")
    OUTPUT.print("run it on this machine:", style="dim")
    OUTPUT.print(f"  lockstep local train --package-path {place} --module-name train", soft_wrap=True)
    OUTPUT.print("run it as a job:", style="dim")
    config = shlex.quote(str(folder / "config.yaml"))
    OUTPUT.print("  lockstep up", soft_wrap=True)
    OUTPUT.print(f"  lockstep submit first_job --package-path {place} --config {config}", soft_wrap=True)


def files_of(template: str) -> dict[str, str]:
    """Returns the contents of the files of a template, by their names.

    Args:
        template: one of `TEMPLATES`.
    """
    sources = {"train.py": template, "config.yaml": "config", ".lockstepignore": "ignore"}
    return {name: (_PLACE / f"{source}.txt").read_text("utf-8") for name, source in sources.items()}


def write_files(folder: Path, *, files: dict[str, str]) -> None:
    """Writes files to a folder, all or none.

    Args:
        folder: the folder, which is created if it does not exist.
        files: the contents by name.

    Raises:
        ConflictError: one of the files exists.
        StorageWriteError: the folder cannot be written.
    """
    there = [name for name in files if os.path.lexists(folder / name)]
    if there:
        raise ConflictError(
            f"{folder.absolute()} has {', '.join(there)} already, so nothing was written",
            action="name another folder: lockstep init FOLDER",
        )
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:  # fails if it was made meanwhile
                written.append(folder / name)
                file.write(content)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise StorageWriteError(f"{folder.absolute()} cannot be written: {error.strerror}") from None
