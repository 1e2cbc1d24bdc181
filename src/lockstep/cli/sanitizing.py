r"""What a terminal would obey is taken out of all that the command line prints.

``print("\x1b]0;a title\x07")`` in a job would otherwise set the title of the terminal of whoever reads its log.
Names, errors, labels and descriptions are somebody else's words as well, so this happens where text leaves the process,
not in each verb.
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
"""Select Graphic Rendition (ECMA-48): colours and type, which move and answer nothing."""
_END_OF_COLOURS: Final = "\x1b[0m"

_OBEYED: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and new line, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Unicode's Bidi_Control: text is shown in another order
    "\u2028\u2029\u206a-\u206f\ufff9-\ufffb"  # separators of lines, deprecated and interlinear controls
    "\ud800-\udfff]"  # surrogates alone, which cannot be written
)


def sanitized(text: str, *, keeps_colours: bool = False) -> str:
    r"""Returns a text that a terminal shows and does not obey.

    Colours are left out, or ended with the text; any other control character becomes U+FFFD, so that one sees that
    there was something. New lines, tabs and all letters stay.

    Args:
        text: any text, such as ``"\x1b]52;c;aGk=\x07evil \x1b[31mred"``.
        keeps_colours: let colours through.
    """
    if _OBEYED.search(text) is None:
        return text
    if not keeps_colours:
        return _OBEYED.sub(_REPLACEMENT, _COLOURS.sub("", text))
    # No two matches lie next to each other without a part between them, which may be empty.
    parts = [_OBEYED.sub(_REPLACEMENT, part) for part in _COLOURS.split(text)]
    colours = _COLOURS.findall(text)
    if not colours:
        return parts[0]
    kept = "".join(part + colour for part, colour in zip(parts, [*colours, ""], strict=True))
    return kept + _END_OF_COLOURS


@final
class SanitizingConsole(Console):
    """Rich's console, of which every text is sanitized: of lines, of tables, of what stands beside a progress bar.

    What Rich itself has a terminal do (colours of a style, the cursor of a progress bar) is no text, and stays.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Renders a string, sanitized before anything measures how wide it is.

        Args:
            text: any text.
            options: Rich's.
        """
        return super().render_str(sanitized(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders anything that Rich can, and sanitizes its texts.

        Args:
            renderable: a string, or anything else of Rich's.
            options: how wide, and so on; the console's own by default.
        """
        for segment in super().render(renderable, options):
            if segment.control or _OBEYED.search(segment.text) is None:
                yield segment
            else:
                yield Segment(sanitized(segment.text), segment.style)
