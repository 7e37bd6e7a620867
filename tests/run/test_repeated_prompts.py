"""Ways of sending the same prompts again: computed again, or the run says that a prefix cache knew them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from builders import data_files
from builders.loops import loop_over, read_tables
from fakes.caching_server import CachingServer
from fakes.virtual_run import BASE_URL
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.run.session import MAY_KNOW, PARTED
from loadgen.server.control import EMPTIED

ROWS = 24
_TOKENIZER = str(Path(__file__).parents[1] / "data" / "tokenizer")


def text(seed: int, words: int = 160) -> str:
    """A text that no other of these begins with."""
    return " ".join(f"w{(seed * 7919 + j * 104729 + seed * j * 31) % 9973}" for j in range(words))


def write_prompts(rows: list[dict[str, Any]]) -> Callable[[Path], str]:
    """What writes a file of these rows."""
    return lambda place: data_files.jsonl(place, rows)


def chat(content: Any, **more: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {
        "messages": [*more.pop("before", ()), {"role": "user", "content": content}],
        "max_tokens": 4,
        **more,
    }


def picture(i: int) -> list[dict[str, Any]]:
    """A text with an image."""
    url = "data:image/png;base64," + f"{i:04}" * 2000
    return [{"type": "text", "text": text(i, 20)}, {"type": "image_url", "image_url": {"url": url}}]


def list_turns(conversation: int) -> list[dict[str, Any]]:
    """A conversation of three questions and answers."""
    own: list[dict[str, Any]] = [
        {
            "conversation_id": f"c{conversation}",
            "turn": turn,
            "role": "user" if turn % 2 else "assistant",
            "content": text(1000 * conversation + turn, 60),
        }
        for turn in range(1, 7)
    ]
    own[0]["system"] = "You are helpful."
    return own


def write_csv(place: Path) -> str:
    """A sheet of prompts."""
    path = place / "prompts.csv"
    path.write_text("prompt,output_tokens\n" + "".join(f'"{text(i)}",4\n' for i in range(ROWS)), "utf-8")
    return str(path)


def write_sharegpt(place: Path) -> str:
    """Conversations as of ShareGPT."""
    path = place / "sharegpt.json"
    pairs = [
        {
            "id": str(i),
            "conversations": [{"from": "human", "value": text(i)}, {"from": "gpt", "value": text(99)}],
        }
        for i in range(ROWS)
    ]
    path.write_text(json.dumps(pairs), "utf-8")
    return str(path)


SYSTEM = {"role": "system", "content": text(7, 300)}
OWN_SYSTEM = {"role": "system", "content": text(7, 80)}
TOOLS = [{"type": "function", "function": {"name": "find", "description": text(8, 200)}}]
FILES: dict[str, Callable[[Path], str]] = {
    "prompts": write_prompts([{"prompt": text(i), "output_tokens": 4} for i in range(ROWS)]),
    "ids": write_prompts(
        [{"prompt": [(i * 97 + j * j) % 900 for j in range(300)], "output_tokens": 4} for i in range(ROWS)]
    ),
    "chat": write_prompts([chat(text(i)) for i in range(ROWS)]),
    "shared": write_prompts([chat(text(i, 40), before=[SYSTEM]) for i in range(ROWS)]),
    "half shared": write_prompts([chat(text(i, 140), before=[SYSTEM]) for i in range(ROWS)]),
    "two thirds of its own": write_prompts([chat(text(i), before=[OWN_SYSTEM]) for i in range(ROWS)]),
    "tooled": write_prompts([chat(text(i, 40), tools=TOOLS) for i in range(ROWS)]),
    "images": write_prompts([chat(picture(i), before=[SYSTEM]) for i in range(ROWS)]),
    "own salt": write_prompts([chat(text(i), cache_salt="mine") for i in range(ROWS)]),
    "talks": write_prompts([turn for number in range(8) for turn in list_turns(number)]),
    "questions": write_prompts(
        [{"question_id": i, "category": "c", "turns": [text(i)]} for i in range(ROWS)]
    ),
    "blocks": write_prompts(
        [
            {"timestamp": i * 100, "input_length": 2048, "output_length": 4}
            | {"hash_ids": [0, 1, 2 + 2 * i, 3 + 2 * i]}
            for i in range(ROWS)
        ]
    ),
    "sheet": write_csv,
    "sharegpt": write_sharegpt,
}
SERVERS: dict[str, dict[str, Any]] = {
    "vllm": {"reports": "counters"},
    "detailed": {"reports": "usage"},
    "unsalted": {"reports": "counters", "salted": False},
    "sglang": {"owner": "sglang", "salted": False, "reset": True},
    "unknown": {"owner": "", "salted": False},
}
# The beginning of a run's line on the prefix cache; "": no line.
LINES = {"parted": PARTED, "emptied": EMPTIED, "may know": MAY_KNOW.partition("{")[0], "": ""}


class Case(NamedTuple):
    """Commands to a server with a prefix cache, which runs find their prompts there, what is done."""

    server: str
    changes: dict[str, Any]
    commands: list[str]
    warm: str  # the doubt prefix-cache, by run
    how: str | None  # of every run; None: they differ
    file: str


# By why the prompts are known, or not.
CASES = {name: Case(*row) for rows in read_tables("repeated_prompts").values() for name, row in rows.items()}


def measure(case: Case, place: Path) -> list[dict[str, Any]]:
    """What the runs of a case say of themselves, in the order in which they ended."""
    given = {"FILE": FILES[case.file](place), "SLO": "ttft p90 < 2s", "TOKENIZER": _TOKENIZER}
    with VirtualServing(CachingServer(**(SERVERS[case.server] | case.changes))):
        for command in case.commands:
            words = [given.get(word, word) for word in command.split()]
            code = cli.main([*words, "--quiet", "--base-url", BASE_URL, "--run-dir", str(place / "runs")])
            assert code == (words[0] == "limit")  # a file of 24 rows is over before a limit is found
    found = sorted((place / "runs").rglob("result.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text("utf-8"))["loadgen"] for path in found]


def check(case: Case, place: Path) -> None:
    """The runs that find their prompts in the cache have the doubt, and all say what was done."""
    runs = measure(case, place)
    doubts = [{doubt["name"] for doubt in run["verdict"]["doubts"]} for run in runs]
    assert " ".join("warm" if "prefix-cache" in each else "cold" for each in doubts) == case.warm
    if case.how is not None:
        how = LINES[case.how]
        lines = [run["cache_reset"] for run in runs]
        assert [line for line in lines if not line.startswith(how) or bool(line) != bool(how)] == []


FEW = ("vllm, a second command", "vllm, one seed", "unknown, --repeat")


@loop_over("name", FEW)
def test_the_same_prompts_again_are_computed_or_doubted(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)


@pytest.mark.long
@loop_over("name", [name for name in CASES if name not in FEW])
def test_all_ways_of_sending_the_same_prompts_again(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)
