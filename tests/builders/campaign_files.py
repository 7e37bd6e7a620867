"""Campaign files in a few lines, and what their directories hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TINY = "input_len = 8\noutput_len = 3\nnum_prompts = 3\nmax_concurrency = 2\ntemperature = 0.0\n"
INSTANT = {"name": "instant", "preset": "instant"}


def written(directory: Path, *checkpoints: dict[str, Any], **keys: Any) -> Path:
    """`c.toml` in a directory, its profile `tiny.toml` beside it; a key that is None is left out."""
    (directory / "tiny.toml").write_text(TINY, "utf-8")
    told = {"name": "c", "profiles": ["./tiny.toml"], "repeats": 2, **keys}
    lines = [f"{key} = {_value(value)}" for key, value in told.items() if value is not None]
    for table in checkpoints:
        lines += ["[[checkpoints]]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    path = directory / "c.toml"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _value(value: Any) -> str:
    """A value as TOML; strings, numbers and lists are written as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


def the_directory(base: Path = Path("runs")) -> Path:
    """That of the one campaign."""
    (found,) = base.iterdir()
    return found


def cells(directory: Path) -> list[str]:
    """Ids of the finished cells, sorted."""
    return sorted(path.name for path in (directory / "cells").glob("*"))


def failures(directory: Path) -> dict[str, str]:
    """The reason of each cell that failed."""
    told = {path.stem: json.loads(path.read_text("utf-8")) for path in (directory / "failed").glob("*.json")}
    return {name: one["reason"] for name, one in sorted(told.items())}


def facts(directory: Path, known: str) -> dict[str, Any]:
    """What a finished cell's run says of itself."""
    found: dict[str, Any] = json.loads((directory / "cells" / known / "result.json").read_text("utf-8"))
    return dict(found["loadgen"])


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
