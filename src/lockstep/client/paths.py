"""Names in the paths of requests."""

from __future__ import annotations

from urllib.parse import quote

from lockstep.errors import InvalidInputError


def path_segment(name: str, *, what: str) -> str:
    """Returns a name, quoted as one segment of a URL's path.

    Args:
        name: the name.
        what: the kind of thing that it names, for the message.

    Raises:
        InvalidInputError: no segment can have this name.
    """
    if name in ("", ".", "..") or "/" in name:  # quoting does not make one segment of these
        raise InvalidInputError(f"not the name of a {what}", received=name, allowed="letters, digits and underscores")
    return quote(name, safe="")
