"""The cluster's token: what its processes show one another that they know, and nobody else may learn."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lockstep.errors import ConfigError, CorruptDataError
from lockstep.home import Home
from lockstep.topology import CLUSTER_TOKEN, Topology

MIN_CHARACTERS: Final = 32

_TOKEN_BYTES: Final = 32
_HOW: Final = (
    'set it to the same in each of them, such as what `python -c "import secrets; print(secrets.token_hex())"` prints'
)


def cluster_token(topology: Topology, *, env: Mapping[str, str], home: Home) -> bytes:
    """Returns the token that all processes of a cluster have, and nobody else.

    ``LOCKSTEP_CLUSTER_TOKEN`` says it. A cluster that is on loopback alone needs no variable: its processes, which are
    one user's, find a file in the home, which the first of them makes.

    Args:
        topology: the cluster.
        env: the process's variables.
        home: where the file is, or shall be.

    Raises:
        ConfigError: the variable is too short, or is not set and others can reach the cluster.
        CorruptDataError: the file is no token, or others can read it.
        StorageWriteError: the home cannot be written.
    """
    named = env.get(CLUSTER_TOKEN)
    if named is not None:
        if len(named.strip()) < MIN_CHARACTERS:
            raise ConfigError(
                CLUSTER_TOKEN,
                received=f"{len(named.strip())} characters",
                allowed=f"{MIN_CHARACTERS} or more",
                action=_HOW,
            )
        return os.fsencode(named.strip())
    if not topology.is_on_loopback:
        raise ConfigError(f"{CLUSTER_TOKEN} is not set, and other machines reach the cluster's processes", action=_HOW)
    home.create()
    if not home.cluster_token.exists():
        _make(home.cluster_token)
    return _read(home.cluster_token)


def _make(path: Path) -> None:
    """Makes a file with a new token, unless another process is faster; whoever sees the file sees all of it."""
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_TOKEN_BYTES))
        os.link(partial, path)
    except FileExistsError:
        pass
    finally:
        Path(partial).unlink()


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise CorruptDataError(f"{path} may be known to others", action="remove it: another one is made")
        token = file.read().strip()
    if len(token) < MIN_CHARACTERS:
        raise CorruptDataError(f"{path} is not a token", action="remove it: another one is made")
    return token
