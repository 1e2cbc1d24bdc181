"""Updates the tables of `docs/migrating.md`. `make docs` runs it in the repository's folder."""

from __future__ import annotations

from pathlib import Path

from lockstep.migration.symbols import PAGE, with_tables

if __name__ == "__main__":
    page = Path(PAGE)
    page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
