"""What ``.gitignore`` and ``.lockstepignore`` files leave out of a folder, by git's own rules."""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

from pathspec import GitIgnoreSpec

from lockstep.errors import ConfigError

IGNORE_FILES: Final = (".lockstepignore", ".gitignore")
"""In the order in which they are asked: what the first one says of a path, in whatever folder it lies, counts."""


@final
class IgnoreFiles:
    """The ignore files that have a say in a folder: its own, those below it, and those above it in its repository.

    The nearest file that says something of a path decides, and in it the last pattern that matches; a folder that is
    left out takes all that is in it with it.

    Args:
        folder: the folder; it is not left out itself, since somebody named it.

    Raises:
        ConfigError: a pattern is not one.
        OSError: an ignore file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._rules: dict[Path, GitIgnoreSpec | None] = {}
        self._top = folder
        above = [folder, *folder.parents]
        repository = next((place for place in above if (place / ".git").exists()), folder)
        if repository != folder:
            self._top = repository
            if self.leaves_out(folder, is_folder=True):  # then whatever is above says nothing of what is within
                self._top = folder

    def leaves_out(self, path: Path, *, is_folder: bool) -> bool:
        """Says whether a path below the folder is left out.

        Raises:
            ConfigError: a pattern is not one.
            OSError: an ignore file cannot be read.
        """
        places = [place for place in path.parents if place.is_relative_to(self._top)]
        for name in IGNORE_FILES:
            for place in places:
                rules = self._rules_of(place / name)
                relative = path.relative_to(place).as_posix() + ("/" if is_folder else "")
                said = None if rules is None else rules.check_file(relative).include
                if said is not None:
                    return said
        return False

    def _rules_of(self, path: Path) -> GitIgnoreSpec | None:
        if path not in self._rules:
            self._rules[path] = _read_rules(path)
        return self._rules[path]


def _read_rules(path: Path) -> GitIgnoreSpec | None:
    try:
        text = path.read_text("utf-8", errors="surrogateescape")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    try:
        return GitIgnoreSpec.from_lines(text.splitlines())
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", action="see gitignore(5) for what a pattern is") from None
