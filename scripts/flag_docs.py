"""The tables of docs/from-vllm.md and docs/from-others.md: `python scripts/flag_docs.py` writes them.

They are those of loadgen/settings/other_clients/ and loadgen/settings/backends.py, which answer on the
command line too; the text around them is the pages' own. A test holds that the pages have the tables as
they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from loadgen.settings import backends
from loadgen.settings.other_clients.client import OtherClient
from loadgen.settings.other_clients.lookup import OTHERS
from loadgen.settings.other_clients.vllm import VLLM

DOCS = Path(__file__).parent.parent / "docs"
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)


def main() -> int:
    """Write the pages; 0."""
    for name, tables in TABLES.items():
        page = DOCS / name
        page.write_text(written(page.read_text("utf-8"), tables), "utf-8")
    return 0


def written(page: str, tables: Iterable[str]) -> str:
    """The page with these in place of its tables, in their order; as many as it has."""
    following = iter(tables)
    return _TABLE.sub(lambda _: next(following), page)


def _flags(client: OtherClient) -> str:
    rows = [f"| `{flag}` | {what} | {_marked(words)} |" for flag, what, words in client.rows()]
    return "\n".join(["| flag | here | |", "| --- | --- | --- |", *rows, ""])


def _apis() -> str:
    names: dict[str, list[str]] = {ours: [ours] for ours in backends.OWN}
    for name, ours in backends.ALIASES.items():
        names[ours].append(name)
    rows = [f"| {_listed(those)} | `{ours}` |" for ours, those in names.items()]
    reasons: dict[str, list[str]] = {}
    for name, reason in backends.REFUSED.items():
        reasons.setdefault(reason, []).append(name)
    rows += [f"| {_listed(those)} | refused: {_marked(reason)} |" for reason, those in reasons.items()]
    return "\n".join(["| name | here |", "| --- | --- |", *rows, ""])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _marked(words: str) -> str:
    """The words with each flag as code, where it is not inside code."""
    parts = words.rstrip(",").split("`")
    parts[::2] = [re.sub(r"(--[a-z][\w-]*)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


TABLES = {
    "from-vllm.md": [_apis(), _flags(VLLM)],
    "from-others.md": [_flags(client) for client in OTHERS],
}

if __name__ == "__main__":
    sys.exit(main())
