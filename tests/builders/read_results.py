"""What is read of each file of another client, page and table, as it is stored.

`python tests/builders/read_results.py` stores it again in tests/study/importers/read_results.json: review the
diff. One more file in a folder of FOLDERS is one more there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.study.importers import result_sources
from loadgen.study.importers.result_sources import Sources

TESTS = Path(__file__).parents[1]
FOLDERS = ("data/results", "data/printed", "data/published", "study/importers/pages")
STORED = TESTS / "study" / "importers" / "read_results.json"
_FACTS = (
    "name", "model", "told_by", "engine", "machine", "memory_bytes", "simulated", "level", "speed_formula",
    "figures", "remarks", "unread",
)  # fmt: skip


def list_files() -> list[str]:
    """List the files that are read, below tests/."""
    paths = (path for folder in FOLDERS for path in (TESTS / folder).rglob("*") if path.is_file())
    return sorted(path.relative_to(TESTS).as_posix() for path in paths if path.name != "README.md")


def read_stored() -> dict[str, list[Any]]:
    """Read what is stored of each file."""
    stored: dict[str, list[Any]] = json.loads(STORED.read_text("utf-8"))
    return stored


def read_file(name: str) -> list[Any]:
    """Read the runs of a file, each with what is not empty of it, and a line on what is not read."""
    try:
        found = result_sources.read_sources([str(TESTS / name)], shows_progress=False)
    except UsageError as error:
        found = Sources((), (str(error),))
    runs: list[Any] = []
    for run in found.reported:
        facts = {fact: value for fact in _FACTS if (value := getattr(run, fact))}
        load = {key: value for key, value in run.load.json().items() if value is not None}
        runs.append({"source": run.source.rpartition("/")[2], **facts, "load": load})
    encoded: list[Any] = json.loads(json.dumps([*runs, *found.errors]).replace(f"{TESTS}/", ""))
    return encoded


def main() -> None:
    """Store what is read of every file again."""
    lines = [
        f"{json.dumps(name)}: [\n " + ",\n ".join(json.dumps(run) for run in read_file(name)) + "\n]"
        for name in list_files()
    ]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
