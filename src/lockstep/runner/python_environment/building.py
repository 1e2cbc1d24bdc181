"""Builds a Python environment with uv, on top of the node's own packages.

The node's packages count as installed: a package that the program needs and the node has is not downloaded. If the
program needs another version than the node's, that version is installed, and is found first.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import uv

from lockstep.errors import InvalidInputError, StorageWriteError, UnavailableError
from lockstep.processes.confinement import change_owner
from lockstep.runner.confinement import take_ownership
from lockstep.runner.python_environment.cache import EnvironmentCache, Lease
from lockstep.runner.python_environment.sources import Source, SourceKind

INSTALLER: Final = "the node"
NODE_FILE: Final = "_the_node.pth"

_PASSED_ON: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "NETRC"),
        "LD_LIBRARY_PATH",  # where a Python may have its own library
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    }
)
_INDEXES: Final = frozenset(
    {
        *("UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX_STRATEGY", "UV_KEYRING_PROVIDER"),
        *("UV_INSECURE_HOST", "UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_OFFLINE"),
    }
)
_INDEX_PREFIX: Final = "UV_INDEX"  # UV_INDEX, UV_INDEX_URL, and the credentials of named indexes
_PIPS: Final = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_TRUSTED_HOST": "UV_INSECURE_HOST",
}
"""uv's names of pip's variables."""

_CAUSE: Final = re.compile(r"\bBecause\b.*", re.DOTALL)
_ERROR: Final = re.compile(r"(?:^|\n)\s*(?:error:|\u00d7)\s*(.*)", re.DOTALL)
_DECORATION: Final = re.compile(r"[│├╰─▶\u00d7]+|\bcause:|\bCaused by:")
_UNREACHABLE: Final = re.compile(
    r"error sending request|server error \(5\d\d|dns error|tcp connect error|timed out|Connection (?:refused|reset)"
    r"|Could not connect|Network is unreachable",
    re.IGNORECASE,
)
_FULL: Final = "No space left on device"


@final
@dataclass(frozen=True, kw_only=True)
class _Package:
    """One of the node's packages, with the head of its metadata."""

    name: str
    version: str
    head: str


@final
class EnvironmentBuilder:
    """Provides a program's Python environment from a cache, and builds it if the cache does not have it.

    Args:
        cache: the cache of environments.
        node: the environment variables of this process; those that name package indexes are passed on.
        user: the id of the user that builds, which must run no code of packages: only wheels are installed. None for
            this process's own user.
        report_line: called with each line of output, from the thread that builds.
    """

    def __init__(
        self,
        cache: EnvironmentCache,
        *,
        node: Mapping[str, str],
        user: int | None = None,
        report_line: Callable[[str], object],
    ) -> None:
        self._cache = cache
        self._user = user
        self._report_line = report_line
        self._indexes = indexes(node)
        self._env = {
            **{name: value for name, value in node.items() if name in _PASSED_ON},
            **self._indexes,
            "UV_CACHE_DIR": str(cache.downloads),
            "UV_COMPILE_BYTECODE": "1",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "NO_COLOR": "1",
        }
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._aborted = False

    def provide(self, source: Source) -> Lease:
        """Returns the environment. Blocks until this process or another one has built it.

        Args:
            source: the source of the environment.

        Raises:
            InvalidInputError: If the environment cannot be built as requested.
            UnavailableError: If a package index does not answer.
            StorageWriteError: If the disk is full.
        """
        self._report_line(f"lockstep: the Python environment of {source.name}")
        key = environment_key(source, indexes=self._indexes)
        return self._cache.lease(
            key,
            build=lambda target: self._build(source, target),
            on_wait=lambda: self._report_line("lockstep: another process is building it"),
        )

    def abort(self) -> None:
        """Ends a build in progress, from another thread; `provide` then raises an error."""
        with self._lock:
            self._aborted = True
            if self._process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _build(self, source: Source, target: Path) -> None:
        if self._user is None:
            self._install(source, target)
            return
        own = target.with_name(f"{target.name}.home")  # its downloads are not shared with other users
        shutil.rmtree(own, ignore_errors=True)
        try:
            for folder in (target, own):
                change_owner(folder, user=self._user)
            self._env.update(UV_CACHE_DIR=str(own), HOME=str(own), TMPDIR=str(own), UV_NO_BUILD="1")
            self._install(source, target)
            take_ownership(target)
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _install(self, source: Source, target: Path) -> None:
        options = ("--no-project", "--relocatable", "--allow-existing", "--quiet", f"--python={sys.executable}")
        self._uv("venv", *options, str(target), at=source)
        packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(target)}))
        _declare_node_packages(packages)
        if source.kind is SourceKind.LOCKED_PROJECT:
            options = ("--frozen", "--inexact", "--no-default-groups", "--no-install-project", "--no-editable")
            self._uv("sync", *options, f"--python={target / 'bin' / 'python'}", at=source, project=target)
        else:
            only = () if self._user is None else ("--no-build",)
            self._uv("pip", "install", *only, f"--python={target}", "--requirements", source.name, at=source)
        _expose_node_packages(packages)

    def _uv(self, *arguments: str, at: Source, project: Path | None = None) -> None:
        """Runs uv in the program's folder, and passes its lines on as they appear."""
        env = self._env if project is None else {**self._env, "UV_PROJECT_ENVIRONMENT": str(project)}
        with self._lock:
            if self._aborted:
                raise InvalidInputError("the build was stopped")
            process = self._process = subprocess.Popen(
                [uv.find_uv_bin(), *arguments],
                cwd=at.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=-1 if self._user is None else 0o022,
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
            )
        assert process.stdout is not None
        lines: list[str] = []
        with process.stdout:
            for line in process.stdout:
                text = line.decode(errors="replace").rstrip()
                lines.append(text)
                if text:
                    self._report_line(text)
        code = process.wait()
        with self._lock:
            self._process = None
        if code:
            raise _failure(at, lines, code)


def indexes(node: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that configure package indexes, by uv's names."""
    found = {_PIPS[name]: value for name, value in node.items() if name in _PIPS and value}
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = ",".join(found["UV_FIND_LINKS"].split())  # pip separates them by spaces
    own = {name: value for name, value in node.items() if name in _INDEXES or name.startswith(_INDEX_PREFIX)}
    return {**found, **own}


def environment_key(source: Source, *, indexes: Mapping[str, str]) -> str:
    """Returns the key of an environment: a digest of everything that decides its content.

    Args:
        source: the source of the environment.
        indexes: the variables that configure package indexes.
    """
    # The node's packages, including Lockstep, count too, since the environment is built on top of them.
    node = sorted(f"{package.name}=={package.version}" for package in _node_packages())
    parts = {
        "source": source.digest(),
        "python": sys.version,
        "prefix": sys.prefix,
        "platform": sysconfig.get_platform(),
        "node": node,
        "indexes": sorted(indexes.items()),
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


@functools.cache
def _node_packages() -> tuple[_Package, ...]:
    """Returns the packages that are installed on the node."""
    found: list[_Package] = []
    for distribution in importlib.metadata.distributions():
        # Only the head, without the description after it, and not parsed by `importlib`: there are hundreds of
        # packages.
        head = (distribution.read_text("METADATA") or "").partition("\n\n")[0]
        name, version = (re.search(rf"^{field}: *(\S+)", head, re.MULTILINE) for field in ("Name", "Version"))
        if name is not None and version is not None:
            found.append(_Package(name=name[1], version=version[1], head=f"{head}\n"))
    return tuple(found)


def _declare_node_packages(packages: Path) -> None:
    """Makes uv see the node's packages as installed, by files with their names, versions and requirements only."""
    names = ("METADATA", "INSTALLER", "RECORD")
    for package in _node_packages():
        folder = packages / f"{re.sub(r'[^A-Za-z0-9.]+', '_', package.name)}-{package.version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(package.head)
        (folder / "INSTALLER").write_text(INSTALLER)
        # The files that uv removes when another version replaces the package.
        (folder / "RECORD").write_text("".join(f"{folder.name}/{name},,\n" for name in names))


def _expose_node_packages(packages: Path) -> None:
    """Removes the files of `_declare_node_packages`, and puts the node's packages on the path after the others."""
    for folder in packages.glob("*.dist-info"):
        with suppress(FileNotFoundError):
            if (folder / "INSTALLER").read_text() == INSTALLER:
                shutil.rmtree(folder)
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    # addsitedir rather than the bare path, so that the node's own .pth files apply, too.
    (packages / NODE_FILE).write_text("".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders))


def _failure(source: Source, lines: Sequence[str], code: int) -> Exception:
    text = "\n".join(lines)
    found = _CAUSE.search(text) or _ERROR.search(text)
    said = _DECORATION.sub(" ", found[found.lastindex or 0] if found else (lines or [f"uv ended with {code}"])[-1])
    problem = f"the Python environment of {source.name} cannot be built: {' '.join(said.split())}"
    if _FULL in text:
        return StorageWriteError(problem)
    if found is not None and _UNREACHABLE.search(text) and _CAUSE.search(text) is None:
        return UnavailableError(problem)
    return InvalidInputError(problem)
