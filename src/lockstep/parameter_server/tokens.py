"""The cluster's token: a secret by which the processes of a cluster recognize each other."""

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
    """Returns the token that all processes of a cluster know, and nobody else.

    The variable ``LOCKSTEP_CLUSTER_TOKEN`` has the token. A cluster that is only on loopback needs no variable: its
    processes, which belong to one user, read the token from a file in the home. The first process creates the file.

    Args:
        topology: the cluster.
        env: the environment variables of the process.
        home: the home with the token's file.

    Raises:
        ConfigError: the variable is too short, or is not set although other machines can reach the cluster.
        CorruptDataError: the file has no token, or other users can read it.
        StorageWriteError: the home cannot be written to.
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
    """Creates the file with a new token, unless another process was faster.

    The file appears only when it is complete.
    """
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
            raise CorruptDataError(f"other users can read {path}", action="delete it: a new one is created")
        token = file.read().strip()
    if len(token) < MIN_CHARACTERS:
        raise CorruptDataError(f"{path} is not a token", action="delete it: a new one is created")
    return token
