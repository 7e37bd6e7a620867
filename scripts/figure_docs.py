"""The tables of figures in docs/metrics.md: `python scripts/figure_docs.py` writes them.

They are those of loadgen/figures/figure_table.py; the text around them is the page's own. A test holds that
the page has them as they are.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from loadgen.figures import figure_table

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
HEADINGS = ("Latencies", "Speeds", "Rates")


def main() -> int:
    """Write the page; 0."""
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
    return 0


def written(page: str) -> str:
    """The page with the tables of figures in place of the first one under each of their headings."""
    for heading, table in zip(HEADINGS, figure_table.tables(), strict=True):
        place = re.compile(rf"(\n## {heading}\n(?:[^|#\n].*\n|\n)*)(?:\|.*\n)+")
        if found := place.search(page):
            page = f"{page[: found.end(1)]}{table}\n{page[found.end() :]}"
    return page


if __name__ == "__main__":
    sys.exit(main())
