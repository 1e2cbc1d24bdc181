"""The versions of Python and of the packages that Lockstep needs, and whether they are compiled to byte code."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.surroundings import Surroundings
from lockstep.upstream.replacing import TESTED

PACKAGE: Final = "lockstep-train"
WITH_NEEDS: Final = (PACKAGE, "jax", "keras", "ray", "orbax-checkpoint", "grain")
"""The packages whose own requirements are compared with what is installed."""
NEWEST_TESTED: Final = (3, 14)
"""The newest Python that Lockstep is tested with."""
_SHOWN: Final = ("keras", "jax", "jaxlib", "ray")


def check_versions(surroundings: Surroundings) -> Result:
    """Compares the installed packages with what Lockstep and its main packages need."""
    del surroundings  # packages are those of this process
    findings = [
        *_of_python(),
        *judge_packages(WITH_NEEDS, needs_of=_needs_of, version_of=version_of),
        *judge_tested(version_of),
    ]
    shown = ", ".join(f"{name} {version_of(name) or 'missing'}" for name in _SHOWN)
    return Result(findings=tuple(findings), detail=f"Python {sys.version.split()[0]}, {shown}")


def _of_python() -> Iterable[Finding]:
    if sys.version_info[:2] > NEWEST_TESTED:
        newest = ".".join(map(str, NEWEST_TESTED))
        yield warning(
            "Lockstep was not tested with this Python",
            received=sys.version.split()[0],
            needed=f"3.11 to {newest}",
            remedy=f"uv venv --python {newest}",
        )


def judge_packages(
    packages: Iterable[str],
    *,
    needs_of: Callable[[str], Iterable[str]],
    version_of: Callable[[str], str | None],
) -> list[Finding]:
    """Returns the packages that are missing, too old or too new for another one, and those that exclude each other.

    Args:
        packages: the packages whose requirements count.
        needs_of: returns the requirements of a package, as its metadata has them.
        version_of: returns the installed version of a package; None if it is not installed.
    """
    found: list[Finding] = []
    for package in packages:
        for text in needs_of(package):
            finding = _of_need(text, package=package, version_of=version_of)
            if finding is not None:
                found.append(finding)
    if version_of("keras") is not None and version_of("keras-nightly") is not None:
        found.append(
            error(
                "two versions of Keras overwrite each other's files",
                received=f"keras {version_of('keras')} and keras-nightly {version_of('keras-nightly')}",
                needed="one of them",
                remedy="pip uninstall -y keras keras-nightly && pip install keras",
            )
        )
    return found


def judge_tested(version_of: Callable[[str], str | None]) -> list[Finding]:
    """Returns the versions of Keras and JAX that Lockstep was not tested with: its changes of both may not fit.

    Args:
        version_of: returns the installed version of a package; None if it is not installed.
    """
    found: list[Finding] = []
    for package, (oldest, newest) in TESTED.items():
        version = version_of(package)
        numbers = re.match(r"(\d+)\.(\d+)", version or "")
        if numbers is None or oldest <= (int(numbers[1]), int(numbers[2])) <= newest:
            continue
        first, last = (".".join(map(str, each)) for each in (oldest, newest))
        found.append(
            warning(
                "Lockstep was not tested with this version",
                received=f"{package} {version}",
                needed=f"{package} {first} to {last}",
                remedy=f"pip install '{package}=={last}.*'",
            )
        )
    return found


def _of_need(text: str, *, package: str, version_of: Callable[[str], str | None]) -> Finding | None:
    try:
        need = Requirement(text)
    except InvalidRequirement:
        return None
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return None
    version = version_of(need.name)
    if version is None and need.name == "keras" and version_of("keras-nightly") is not None:
        return None
    if version is not None and need.specifier.contains(version, prereleases=True):
        return None
    wanted = f"{need.name}{need.specifier}"
    return error(
        f"{package} does not fit the installed packages",
        received=f"{need.name} {version or 'is missing'}",
        needed=wanted,
        remedy=f"pip install '{wanted}'",
    )


def _needs_of(package: str) -> Iterable[str]:
    try:
        return metadata.requires(package) or ()
    except metadata.PackageNotFoundError:
        return ()


def version_of(package: str) -> str | None:
    """Returns the installed version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_byte_code(surroundings: Surroundings) -> Result:
    """Checks that Ray is compiled to byte code: otherwise each of its processes compiles all of it when it starts."""
    del surroundings
    spec = importlib.util.find_spec("ray")
    if spec is None or spec.origin is None:
        return Result(skipped="Ray is not installed")  # the check of versions reports it
    folder = Path(spec.origin).parent
    finding = judge_byte_code(folder)
    return Result(findings=() if finding is None else (finding,), detail=f"{folder} is compiled")


def judge_byte_code(folder: Path) -> Finding | None:
    """Returns the finding about a package of which most files are not compiled, or None.

    Args:
        folder: the folder of the package.
    """
    tag = sys.implementation.cache_tag
    sources = [path for place in (folder, folder / "_private") for path in place.glob("*.py")]
    compiled = [path for path in sources if (path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc").exists()]
    if len(compiled) * 2 >= len(sources):
        return None
    return warning(
        "Ray is not compiled to byte code",
        received=f"{len(compiled)} of {len(sources)} files in {folder}: the engine takes 10 s to start instead of 4",
        needed="byte code beside its files",
        remedy=f"{sys.executable} -m compileall -q {folder}",
    )
