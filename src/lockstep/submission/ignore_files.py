"""Which files of a folder ``.gitignore`` and ``.lockstepignore`` exclude, by git's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Final, final

from pathspec import GitIgnoreSpec

from lockstep.errors import ConfigError

IGNORE_FILES: Final = (".lockstepignore", ".gitignore")
"""The names of ignore files, in order of precedence: a match in any ``.lockstepignore`` beats every ``.gitignore``."""


@final
class IgnoreFiles:
    """The ignore files that apply to a folder: its own, those below it, and those above it in its git repository.

    Among the files of one name, the one nearest to a path that has a matching pattern decides. Within a file, the last
    matching pattern decides. The contents of an excluded folder are excluded too.

    Args:
        folder: the folder; it is never excluded itself, because the user named it.

    Raises:
        ConfigError: a pattern is not valid.
        OSError: an ignore file cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._rules: dict[Path, GitIgnoreSpec | None] = {}
        self._top = folder
        above = [folder, *folder.parents]
        repository = next((place for place in above if (place / ".git").exists()), folder)
        if repository != folder:
            self._top = repository
            if self.excludes(folder, is_folder=True):  # then the files above it do not apply to its contents
                self._top = folder

    def excludes(self, path: Path, *, is_folder: bool) -> bool:
        """Returns whether a path below the folder is excluded.

        The caller checks the folders above the path first.

        Raises:
            ConfigError: a pattern is not valid.
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
