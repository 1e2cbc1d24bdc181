"""Updates the table of replacements in `docs/architecture.md`. `make docs` runs it in the repository's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lockstep.upstream.table import REPLACEMENTS, Stage

PAGE: Final = "docs/architecture.md"
BEGIN: Final = "<!-- the table of replacements: written by `make docs` -->\n"
END: Final = "<!-- end of the table -->\n"


def with_table(page: str) -> str:
    """Returns the page with a new table between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{_table()}\n{END}{after}"


def _table() -> str:
    lines: list[str] = []
    for stage in Stage:
        lines += [
            f"When {stage.value}:",
            "",
            "| function | required parameters or methods | effect of the replacement | unnecessary once |",
            "|---|---|---|---|",
        ]
        for row in REPLACEMENTS:
            if row.stage is stage:
                expected = ", ".join(row.parameters) or "-"
                lines.append(f"| `{row.title}` | {expected} | {row.effect} | {row.removable_when} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    path = Path(PAGE)
    path.write_text(with_table(path.read_text("utf-8")), "utf-8")
