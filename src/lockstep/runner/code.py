"""The user's code on the node: source archives fetched from the bucket and unpacked."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import CorruptDataError
from lockstep.storage import read_url


def unpack(packages: Sequence[str], *, folder: Path) -> list[Path]:
    """Fetches source archives and unpacks each into the folder.

    Args:
        packages: bucket URLs of ``.tar.gz`` archives that hold one folder each, as `lockstep submit` makes them.
        folder: where to unpack; made if absent.

    Returns:
        The unpacked top folders, in the order of the packages.

    Raises:
        MissingInputError: an archive does not exist.
        StorageError: an archive could not be read.
        CorruptDataError: an archive is damaged, or reaches outside the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tops: list[Path] = []
    for url in packages:
        data = read_url(url)
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
                # The "data" filter refuses absolute names, links and anything that points out of the folder.
                archive.extractall(folder, filter="data")
                names = [name.split("/", 1)[0] for name in archive.getnames()]
        except (tarfile.TarError, EOFError, OSError) as error:
            raise CorruptDataError(
                f"source archive {url} cannot be unpacked: {error}", action="submit the job again"
            ) from error
        if not names or len(set(names)) != 1:
            raise CorruptDataError(f"source archive {url}", received=sorted(set(names)), allowed="one top folder")
        tops.append(folder / names[0])
    return tops
