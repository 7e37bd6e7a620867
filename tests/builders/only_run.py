"""The one run that a test's command has kept below `runs`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadgen.report.run_directory import REPORT, RESULT


def stored() -> tuple[dict[str, Any], str]:
    """The facts and the report of the one run, the report as one line."""
    (directory,) = Path("runs").iterdir()
    facts = json.loads((directory / RESULT).read_text("utf-8"))["loadgen"]
    return facts, " ".join((directory / REPORT).read_text("utf-8").split())
