"""Starts a prediction server that may run a package's code: ``python -m lockstep.serving.confined --user ID ...``.

The process starts as root. It downloads the model and the packages, of which it reads only the model's list of classes.
It gives the files to the user, becomes that user permanently, and then executes the server in the same process. So the
server has no privileges, no credentials for buckets, and nothing in its memory that root has read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lockstep.errors import LockstepError, ModelError, StorageWriteError
from lockstep.jobs.running.orders import SPOOL_VARIABLE
from lockstep.processes.confinement import CLOSED, SEARCHABLE, change_owner, switch_user
from lockstep.serving.model_files import SUFFIX, fetch_for_another, find_model
from lockstep.serving.needed_code import needed_code
from lockstep.serving.process import OWN_FOLDER, READY_FILE, TOKEN_FILE

_PASSED_ON: Final = frozenset(
    {
        "PATH",
        "LANG",
        "TZ",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "NPROC",
        "KERAS_BACKEND",
        "PYTHONUNBUFFERED",
        SPOOL_VARIABLE,
    }
)
_PASSED_PREFIXES: Final = ("LC_", "JAX_", "XLA_")
_CACHE: Final = "JAX_COMPILATION_CACHE_DIR"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepares the server, and replaces this process by it. Returns an exit code if that fails.

    Args:
        arguments: the command-line arguments without the program's name; the process's own by default.
    """
    parser = argparse.ArgumentParser(prog="python -m lockstep.serving.confined")
    parser.add_argument("--user", type=int, required=True, help="id of the user that the server runs as")
    parser.add_argument("--folder", type=Path, required=True, help="the server's folder, with its token")
    parser.add_argument("--bucket", required=True, help="URL of the service's default bucket")
    parser.add_argument("--model-url", required=True)
    parser.add_argument("--package-url", action="append", default=[])
    parser.add_argument("--program")
    options = parser.parse_args(arguments)
    own = options.folder / OWN_FOLDER
    try:
        packages = _fetch(options, own=own)
        for folder in (own / "home", own / "tmp"):
            folder.mkdir(mode=CLOSED)
        (own / TOKEN_FILE).write_bytes((options.folder / TOKEN_FILE).read_bytes())
        change_owner(own, user=options.user)
        options.folder.chmod(SEARCHABLE)
        switch_user(options.user)
    except (LockstepError, OSError) as error:
        sys.stderr.write(f"cannot load the model {options.model_url}: {error}\n")
        return error.exit_code if isinstance(error, LockstepError) else StorageWriteError.exit_code
    command = [
        *(sys.executable, "-P", "-m", "lockstep.serving"),
        f"--model-url={own / f'model{SUFFIX}'}",
        f"--display-url={options.model_url}",
        f"--ready-file={own / READY_FILE}",
        f"--token-file={own / TOKEN_FILE}",
        *(f"--package-url={path}" for path in packages),
        *(() if options.program is None else (f"--program={options.program}",)),
    ]
    return os.execve(sys.executable, command, confined_environment(os.environ, own=own))  # noqa: S606 (no shell)


def confined_environment(env: Mapping[str, str], *, own: Path) -> dict[str, str]:
    """Returns the environment of a confined server: no credentials, and its own home and temporary folder.

    Args:
        env: the environment of a server that is not confined.
        own: the folder that belongs to the server.
    """
    kept = {name: value for name, value in env.items() if name in _PASSED_ON or name.startswith(_PASSED_PREFIXES)}
    kept.pop(_CACHE, None)  # a user could put code there that another one would run
    return {**kept, "HOME": str(own / "home"), "TMPDIR": str(own / "tmp"), "USER": "job", "LOGNAME": "job"}


def _fetch(options: argparse.Namespace, *, own: Path) -> list[Path]:
    """Downloads the model, and the packages if the model needs code. Returns the paths of the packages."""
    own.mkdir(mode=CLOSED)
    model = own / f"model{SUFFIX}"
    fetch_for_another(find_model(options.model_url), path=model, bucket=options.bucket)
    if not needed_code(model).names:
        return []
    packages: list[Path] = []
    for number, url in enumerate(options.package_url):
        name = url.rpartition("/")[2]
        if name in ("", ".", ".."):
            raise ModelError("a package's URL", received=url, allowed="the URL of a .tar.gz or a .whl")
        path = own / "packages" / str(number) / name
        path.parent.mkdir(parents=True)
        fetch_for_another(url, path=path, bucket=options.bucket)
        packages.append(path)
    return packages


if __name__ == "__main__":
    sys.exit(main())
