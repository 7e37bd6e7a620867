"""Stubs from the table of settings: `python scripts/keyword_types.py` writes them.

Checkers read in `loadgen/settings/keyword_types.pyi` which keywords `loadgen.bench` has, and in
`loadgen/plan/profile_keys.pyi` which keys a profile; at run time both are made of the same rows. A test holds
that the files are what this makes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from loadgen.run.command.keywords import KEYWORDS, WorkloadOptions
from loadgen.settings.table import PROFILE_KEYS

_LOADGEN = Path(__file__).parent.parent / "loadgen"
STUB = _LOADGEN / "settings" / "keyword_types.pyi"
PROFILE_STUB = _LOADGEN / "plan" / "profile_keys.pyi"
_HEAD = '''"""Keywords of calls, for type checkers: made by `python scripts/keyword_types.py`."""

from typing import Any, Literal, TypedDict

from loadgen.settings.data_settings import DatasetName
from loadgen.settings.image_settings import ImageFormat, ImageTransport
from loadgen.settings.prompt_settings import Compat, PromptFormat
from loadgen.settings.request_settings import Backend
from loadgen.settings.trace_settings import TraceFormat

class WorkloadOptions(TypedDict, total=False):
    """The keys of a profile, laid over the one that is named; docs/profiles.md has units and defaults."""

'''
_MIDDLE = '''
class BenchOptions(WorkloadOptions, total=False):
    """The options of `bench`, with the names and meanings of the flags of `loadgen bench`."""

'''


def main() -> int:
    """Write the files; 0."""
    STUB.write_text(rendered(), "utf-8")
    PROFILE_STUB.write_text(render_profile(), "utf-8")
    return 0


def rendered() -> str:
    """The whole file."""
    lines = {name: f"    {name}: {row.keyword_type}\n".replace("'", '"') for name, row in KEYWORDS.items()}
    keys = WorkloadOptions.__annotations__
    own = "".join(line for name, line in lines.items() if name in keys)
    others = "".join(line for name, line in lines.items() if name not in keys)
    return _HEAD + own + _MIDDLE + others


def render_profile() -> str:
    """The whole file of the keys of a profile."""
    modules: dict[str, list[str]] = {}
    for subject in PROFILE_KEYS:
        modules.setdefault(subject.__module__, []).append(subject.__name__)
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items())]
    bases = "".join(f"    {subject.__name__},\n" for subject in PROFILE_KEYS)
    head = '"""Keys of a profile, for type checkers: made by `python scripts/keyword_types.py`."""\n\n'
    return head + "\n".join(lines) + f"\n\nclass ProfileKeys(\n{bases}    frozen=True,\n): ...\n"


if __name__ == "__main__":
    sys.exit(main())
