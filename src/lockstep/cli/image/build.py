"""``lockstep image build``: builds a container image of a folder's program."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import ERRORS, OUTPUT
from lockstep.cli.image.containerfile import (
    NAMES,
    PROJECT,
    REQUIREMENTS,
    default_base,
    find_module,
    write_containerfile,
)
from lockstep.containers import ContainerEngine, check_reference, open_engine
from lockstep.containers import build as build_arguments
from lockstep.errors import ContainerEngineError, ImageError, InvalidInputError, MissingInputError, counted
from lockstep.submission.naming import flag_name
from lockstep.submission.packing import check_module, included_files

_IGNORE_FILES = (".containerignore", ".dockerignore")


@answers(hints=True)
def build(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder with the program; its ignore files apply.")
    ] = Path(),
    tag: Annotated[str, typer.Option(help="The image's name, such as registry.example.com/team/trainer:1.")] = "",
    containerfile: Annotated[
        Path | None,
        typer.Option(
            help="Containerfile to use. Default: FOLDER's Containerfile or Dockerfile, otherwise a generated one."
        ),
    ] = None,
    base: Annotated[str | None, typer.Option(help="Base image, with Python, of a generated Containerfile.")] = None,
    module_name: Annotated[str | None, typer.Option(help="The module that a generated Containerfile runs.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without doing it.")] = False,
) -> Answer | None:
    """Build a container image of a program, with podman or docker.

    If the folder has no Containerfile, one is generated for this build, and printed. To change it, save it in the
    folder.
    """
    if not tag:
        raise InvalidInputError("--tag is missing", allowed="the image's name")
    check_reference(tag, what="--tag")
    folder = folder.resolve()
    files = included_files(folder, what="FOLDER")
    named = _find_containerfile(folder, asked=containerfile)
    if named is not None and (base or module_name):
        raise InvalidInputError("--base and --module-name are only for a generated Containerfile", received=str(named))
    text = _read(named) if named is not None else _write(folder, files, base=base, module=module_name)
    OUTPUT.print(f"Containerfile: {named or 'none in the folder; generated for this build:'}")
    if named is None:
        for line in text.splitlines():
            OUTPUT.print(f"    {line}", soft_wrap=True)
    OUTPUT.print(f"files: {counted(len(files), 'file')} of {folder}")
    if named is None and not any((folder / name) in files for name in (REQUIREMENTS, PROJECT)):
        ERRORS.print(f"no {REQUIREMENTS} or {PROJECT}: only the packages of the base image are installed", style="dim")
    if dry_run:
        OUTPUT.print(f"would build {tag}: {shlex.join(build_arguments(tag=tag, containerfile='FILE', folder='FILES'))}")
        return None
    engine = open_engine()
    OUTPUT.print(f"building {tag} with {engine.describe()}")
    _build(engine, folder, files, text=text, tag=tag)
    return Answer(
        show=lambda: OUTPUT.print(f"built {tag}"), hint=f"to push it to its registry: lockstep image push {tag}"
    )


def _find_containerfile(folder: Path, *, asked: Path | None) -> Path | None:
    if asked is not None:
        if not asked.is_file():
            raise MissingInputError(f"--containerfile: no file {asked}")
        return asked.resolve()
    return next((folder / name for name in NAMES if (folder / name).is_file()), None)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise MissingInputError(f"{path} cannot be read: {reason}") from None


def _write(folder: Path, files: list[Path], *, base: str | None, module: str | None) -> str:
    names: dict[str, str | None] = {path.relative_to(folder).as_posix(): None for path in files}
    if PROJECT in names:
        names[PROJECT] = _read(folder / PROJECT)
    if module is not None:
        check_module(folder, module=module, naming=flag_name)
    if base is not None:
        check_reference(base, what="--base")
    return write_containerfile(names, base=base or default_base(), module=module or find_module(list(names)))


def _build(engine: ContainerEngine, folder: Path, files: list[Path], *, text: str, tag: str) -> None:
    """Builds an image from a copy of the files that are not excluded.

    A copy is needed because container engines read only their own ignore files.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-image-") as place:
        context, containerfile = Path(place, "files"), Path(place, "Containerfile")
        containerfile.write_text(text, "utf-8")
        own = [path for path in (folder / name for name in _IGNORE_FILES) if path.is_file()]
        for path in [*files, *own]:
            target = context / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        arguments = build_arguments(tag=tag, containerfile=str(containerfile), folder=str(context))
        try:
            code = subprocess.run([engine.path, *arguments], env=dict(engine.env), check=False).returncode
        except OSError as error:
            raise ContainerEngineError(f"{engine.kind} could not be run: {error}") from error
    if code:
        raise ImageError(f"{engine.kind} could not build {tag}: exit code {code}", action="see its output above")
