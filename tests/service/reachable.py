"""A Python that other users than root may run, though the one of the tests may lie in root's own folder."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import lockstep
from lockstep.service.security.users import first_closed_folder


def make_python(folder: Path) -> tuple[Path, dict[str, str]]:
    """Makes a virtual environment that sees what this process's does; returns its Python and the variables it needs.

    Args:
        folder: where to make it; others may enter it.
    """
    base, variables = Path(sys.base_prefix), {}
    if first_closed_folder(base.resolve()) is not None:
        copied = folder / "base"
        version = f"python{sysconfig.get_python_version()}"

        def link(source: str, target: str) -> None:
            try:
                os.link(source, target)
            except OSError:
                shutil.copyfile(source, target)
                shutil.copymode(source, target)

        left_out = shutil.ignore_patterns("site-packages", "test", "__pycache__", "*.a")
        shutil.copytree(
            base / "lib" / version, copied / "lib" / version, copy_function=link, symlinks=True, ignore=left_out
        )
        (copied / "bin").mkdir()
        for library in (base / "lib").glob("libpython*.so*"):
            shutil.copyfile(library, copied / "lib" / library.name)
        shutil.copy(Path(sys.executable).resolve(), copied / "bin" / version)
        variables["LD_LIBRARY_PATH"] = str(copied / "lib")
        base = copied
        python = copied / "bin" / version
    else:
        python = Path(sys.executable).resolve()
    made = folder / "venv"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "python").symlink_to(python)
    (made / "pyvenv.cfg").write_text(f"home = {python.parent}\ninclude-system-site-packages = false\n")
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(made)}))
    packages.mkdir(parents=True)
    seen = [str(Path(lockstep.__file__).parent.parent), *site.getsitepackages()]
    (packages / "all.pth").write_text("".join(f"import site; site.addsitedir({name!r})\n" for name in seen))
    subprocess.run([made / "bin" / "python", "-c", "import lockstep"], check=True, env={**os.environ, **variables})
    return made / "bin" / "python", variables
