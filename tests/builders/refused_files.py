"""Files that cannot be sent, each with the line that refuses it.

`python tests/builders/refused_files.py` stores the lines again in tests/features/refused_files.json. One more
file is one more object there, with any line until it is stored. FILE stands for its path: in the line, and
among the keys of the profile that would send it.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import NotRequired, TypedDict

from msgspec.structs import replace

from loadgen.base.errors import UsageError
from loadgen.engines.engines import find_by_name
from loadgen.plan import plan, profile
from loadgen.plan.request_sources import ModelTarget, Seed

STORED = Path(__file__).parents[1] / "features" / "refused_files.json"
TOKENIZER = Path(__file__).parents[1] / "data" / "tokenizer"
SUBJECT = ModelTarget(find_by_name("vLLM"), "served", vocab_size=1000)


class RefusedFile(TypedDict):
    """A file by its name and text, how it would be sent, and why it is not."""

    name: str
    text: str
    keys: dict[str, object]
    tokenizer: NotRequired[bool]  # whether that of the tests counts texts
    refused: str


def read_stored() -> list[RefusedFile]:
    """Read the files that are stored, without those that need transformers where it is not installed."""
    stored: list[RefusedFile] = json.loads(STORED.read_text("utf-8"))
    can_count = importlib.util.find_spec("transformers") is not None
    return [file for file in stored if can_count or "tokenizer" not in file]


def refuse(file: RefusedFile, directory: Path) -> str:
    """Make a plan of the file in a directory; return the line that refuses it, or that it is sent."""
    path = directory / file["name"]
    path.write_bytes(file["text"].encode("utf-8", "surrogateescape"))
    keys = {
        key: value.replace("FILE", str(path)) if isinstance(value, str) else value
        for key, value in file["keys"].items()
    }
    subject = replace(SUBJECT, tokenizer=str(TOKENIZER)) if "tokenizer" in file else SUBJECT
    try:
        plan.make(profile.build(keys), subject, Seed(1, chosen=True))
    except UsageError as error:
        return str(error).replace(str(path), "FILE")
    return "it is sent"


def main() -> None:
    """Store the line of each file again."""
    with tempfile.TemporaryDirectory() as directory:
        files = [{**file, "refused": refuse(file, Path(directory))} for file in read_stored()]
    STORED.write_text(json.dumps(files, indent=0) + "\n", "utf-8")


if __name__ == "__main__":
    main()
