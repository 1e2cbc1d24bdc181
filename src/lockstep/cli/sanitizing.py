r"""Removes characters that control a terminal from all text that the command line prints.

Otherwise, ``print("\x1b]0;a title\x07")`` in a job would set the title of the terminal of everyone who reads its log.
Names, errors, labels and descriptions come from other people too. So the text is sanitized where it is printed, rather
than in each command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

_COLOURS: Final = re.compile("\x1b\\[[0-9;:]*m")
"""Select Graphic Rendition (ECMA-48): colours and fonts, which neither move the cursor nor make a terminal respond."""
_END_OF_COLOURS: Final = "\x1b[0m"

_CONTROL_CHARACTERS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 except tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Unicode's Bidi_Control, which changes the order of text
    "\u2028\u2029\u206a-\u206f\ufff9-\ufffb"  # line and paragraph separators, deprecated and interlinear controls
    "\ud800-\udfff]"  # lone surrogates, which cannot be encoded
)


def sanitized(text: str, *, keeps_colours: bool = False) -> str:
    r"""Returns a text without characters that control a terminal.

    Colours are removed, or kept and reset at the end of the text. Each other control character becomes U+FFFD, to show
    that there was one. Newlines, tabs and all letters stay.

    Args:
        text: any text, such as ``"\x1b]52;c;aGk=\x07evil \x1b[31mred"``.
        keeps_colours: whether to keep colours.
    """
    if _CONTROL_CHARACTERS.search(text) is None:
        return text
    if not keeps_colours:
        return _CONTROL_CHARACTERS.sub(_REPLACEMENT, _COLOURS.sub("", text))
    # There is a part, which may be empty, between each two adjacent matches.
    parts = [_CONTROL_CHARACTERS.sub(_REPLACEMENT, part) for part in _COLOURS.split(text)]
    colours = _COLOURS.findall(text)
    if not colours:
        return parts[0]
    kept = "".join(part + colour for part, colour in zip(parts, [*colours, ""], strict=True))
    return kept + _END_OF_COLOURS


@final
class SanitizingConsole(Console):
    """Rich's console that sanitizes every text: in lines, in tables, and beside a progress bar.

    Control codes of Rich itself (the colours of a style, the cursor of a progress bar) are not text, and stay.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Sanitizes and renders a string; it is sanitized before its width is measured.

        Args:
            text: any text.
            options: the options of Rich's method.
        """
        return super().render_str(sanitized(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders any renderable of Rich, and sanitizes its text.

        Args:
            renderable: a string, or any other renderable of Rich.
            options: the width and other options; by default those of the console.
        """
        for segment in super().render(renderable, options):
            if segment.control or _CONTROL_CHARACTERS.search(segment.text) is None:
                yield segment
            else:
                yield Segment(sanitized(segment.text), segment.style)
