"""What is read of each file of another client, page and table, and what an audit finds, as it is stored.

`python tests/builders/read_results.py` stores it again in tests/study/importers/read_results.json: review the
diff. One more file in a folder of FOLDERS is one more there, as is one more case in a file of CASES: a line
`%% name`, and what stands in the file below it. A name with a suffix is the file's, any other is of a page;
{A} and {B} are two results, {A br} and {B br} the same as one line.
"""

from __future__ import annotations

import json
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from loadgen.base.errors import UsageError
from loadgen.features.roofline import machines
from loadgen.study.audit.findings import audit_runs
from loadgen.study.compare import run_groups
from loadgen.study.importers import result_sources
from loadgen.study.importers.result_sources import Sources

TESTS = Path(__file__).parents[1]
FOLDERS = ("data/results", "data/printed", "data/published", "study/importers/pages")
CASES = TESTS / "study" / "importers" / "cases"
STORED = TESTS / "study" / "importers" / "read_results.json"
# The machine that a file is audited on, where it names none.
_MACHINES = {"jetson_thor_serving.md": "jetson-thor"}
_FACTS = (
    "name", "model", "told_by", "engine", "machine", "memory_bytes", "simulated", "level", "speed_formula",
    "figures", "remarks", "unread",
)  # fmt: skip


def make_block(ttft_ms: float, speed: float) -> str:
    """Make a result as a client prints it."""
    seconds = 12800 / speed
    rows = {
        "Successful requests:": "100",
        "Maximum request concurrency:": "10",
        "Benchmark duration (s):": f"{seconds:.2f}",
        "Total input tokens:": "102400",
        "Total generated tokens:": "12800",
        "Request throughput (req/s):": f"{100 / seconds:.2f}",
        "Output token throughput (tok/s):": f"{speed:.2f}",
        "Mean TTFT (ms):": f"{ttft_ms:.2f}",
        "Mean TPOT (ms):": "12.00",
    }
    body = "".join(f"{label:<41}{figure}\n" for label, figure in rows.items())
    return f"{' Serving Benchmark Result '.center(50, '=')}\n{body}{'=' * 50}\n"


@cache
def read_cases() -> dict[str, str]:
    """Read the cases: a file's content by the name that it is stored under."""
    blocks = {"A": make_block(80, 640), "B": make_block(70, 700)}
    blocks |= {f"{name} br": block.replace("\n", "<br>") for name, block in blocks.items()}
    cases = dict[str, str]()
    for path in sorted(CASES.glob("*.txt")):
        _, *parts = re.split(r"^%% (.+)\n", path.read_text("utf-8"), flags=re.MULTILINE)
        for name, content in zip(parts[::2], parts[1::2], strict=True):
            filled = re.sub(r"\{([AB](?: br)?)\}", lambda match: blocks[match[1]], content)
            cases[f"{path.relative_to(TESTS).as_posix()}: {name}"] = filled
    return cases


def list_files() -> list[str]:
    """List the files that are read, below tests/, and the cases."""
    paths = (path for folder in FOLDERS for path in (TESTS / folder).rglob("*") if path.is_file())
    return [
        *sorted(path.relative_to(TESTS).as_posix() for path in paths if path.name != "README.md"),
        *read_cases(),
    ]


def read_stored() -> dict[str, list[Any]]:
    """Read what is stored of each file."""
    stored: dict[str, list[Any]] = json.loads(STORED.read_text("utf-8"))
    return stored


def read_file(name: str) -> list[Any]:
    """Read the runs of a file or a case, each with what is not empty, and a line on what is not read."""
    if (content := read_cases().get(name)) is None:
        return _read_path(TESTS / name, TESTS)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "place", f"page{Path(name.partition(': ')[2]).suffix or '.md'}")
        path.parent.mkdir()
        path.write_text(content, "utf-8")
        return _read_path(path, path.parent)


def _read_path(path: Path, below: Path) -> list[Any]:
    try:
        found = result_sources.read_sources([str(path)], shows_progress=False)
    except UsageError as error:
        found = Sources((), (str(error),))
    runs: list[Any] = []
    key = _MACHINES.get(path.name)
    machine = None if key is None else machines.find_machine(key)
    rows, audited = run_groups.name_rows(found.reported), audit_runs(found.reported, machine, None)
    for run, row, audit in zip(found.reported, rows, audited, strict=True):
        facts = {fact: value for fact in _FACTS if (value := getattr(run, fact))}
        load = {key: value for key, value in run.load.json().items() if value is not None}
        told = {} if row == run.name else {"row": row}  # its name among the others of the file
        findings = {each.rule.code: each.evidence for each in audit.findings}
        doubts = {"verdict": audit.verdict, "findings": findings} if findings else {}
        runs.append({"source": run.source.rpartition("/")[2], **told, **facts, "load": load, **doubts})
    encoded: list[Any] = json.loads(json.dumps([*runs, *found.errors]).replace(f"{below}/", ""))
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
