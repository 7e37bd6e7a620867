"""loadgen/settings/keyword_types.pyi from the table of settings: `python scripts/keyword_types.py` writes it.

Checkers read there which keywords `loadgen.bench` has; at run time they are made of the same rows. A test
holds that the file is what this makes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from loadgen.run.keywords import KEYWORDS, WorkloadOptions

STUB = Path(__file__).parent.parent / "loadgen" / "settings" / "keyword_types.pyi"
_HEAD = '''"""Keywords of calls, for type checkers: made by `python scripts/keyword_types.py`."""

from typing import Any, Literal, TypedDict

from loadgen.features.data.data_settings import Compat, DatasetName, PromptFormat, TraceFormat

class WorkloadOptions(TypedDict, total=False):
    """The keys of a profile, laid over the one that is named; docs/profiles.md has units and defaults."""

'''
_MIDDLE = '''
class BenchOptions(WorkloadOptions, total=False):
    """The options of `bench`, with the names and meanings of the flags of `loadgen bench`."""

'''


def main() -> int:
    """Write the file; 0."""
    STUB.write_text(rendered(), "utf-8")
    return 0


def rendered() -> str:
    """The whole file."""
    lines = {name: f"    {name}: {row.keyword_type}\n".replace("'", '"') for name, row in KEYWORDS.items()}
    keys = WorkloadOptions.__annotations__
    own = "".join(line for name, line in lines.items() if name in keys)
    return _HEAD + own + _MIDDLE + "".join(line for name, line in lines.items() if name not in keys)


if __name__ == "__main__":
    sys.exit(main())
