"""Ways of sending the same prompts again: computed again, or the run says that a prefix cache knew them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builders import data_files
from builders.loops import loop_over
from fakes.caching_server import CachingServer
from fakes.virtual_run import BASE_URL
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.run.session import MAY_KNOW, PARTED
from loadgen.server.control import EMPTIED

ROWS = 24
KNOWN = MAY_KNOW.partition("{")[0]
_TOKENIZER = Path(__file__).parents[1] / "data" / "tokenizer"


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
TOOLS = [{"type": "function", "function": {"name": "find", "description": text(8, 200)}}]
PROMPTS = write_prompts([{"prompt": text(i), "output_tokens": 4} for i in range(ROWS)])
IDS = write_prompts(
    [{"prompt": [(i * 97 + j * j) % 900 for j in range(300)], "output_tokens": 4} for i in range(ROWS)]
)
CHAT = write_prompts([chat(text(i)) for i in range(ROWS)])
SHARED = write_prompts([chat(text(i, 40), before=[SYSTEM]) for i in range(ROWS)])
HALF_SHARED = write_prompts([chat(text(i, 140), before=[SYSTEM]) for i in range(ROWS)])
TOOLED = write_prompts([chat(text(i, 40), tools=TOOLS) for i in range(ROWS)])
IMAGES = write_prompts(
    [
        chat(
            [
                {"type": "text", "text": text(i, 20)},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64," + f"{i:04}" * 2000}},
            ],
            before=[SYSTEM],
        )
        for i in range(ROWS)
    ]
)
OWN_SALT = write_prompts([chat(text(i), cache_salt="mine") for i in range(ROWS)])
TALKS = write_prompts([turn for number in range(8) for turn in list_turns(number)])
QUESTIONS = write_prompts([{"question_id": i, "category": "c", "turns": [text(i)]} for i in range(ROWS)])
BLOCKS = write_prompts(
    [
        {
            "timestamp": i * 100,
            "input_length": 2048,
            "output_length": 4,
            "hash_ids": [0, 1, 2 + 2 * i, 3 + 2 * i],
        }
        for i in range(ROWS)
    ]
)

FILE = "bench --dataset-path FILE --max-concurrency 2"
CHATS = f"{FILE} --backend openai-chat"
MADE = "bench --random-input-len 256 --random-output-len 4 --num-prompts 24 --max-concurrency 2"
SHAREGPT = f"bench --dataset-name sharegpt --dataset-path FILE --tokenizer {_TOKENIZER} --num-prompts 20"
SHORT = "bench --random-input-len 48 --random-output-len 4 --num-prompts 24"
TURNS = "bench --turns 3 --num-sessions 8 --backend openai-chat --random-input-len 64 --random-output-len 8"
LIMIT = "limit --dataset-path FILE --slo SLO --over concurrency --min-duration 1s --max-runs 2 --to 2"
TRACE = "bench --trace FILE"


@dataclass(frozen=True)
class Case:
    """Commands to a server with a prefix cache, which runs find their prompts there, what is done."""

    server: dict[str, Any]
    commands: Sequence[str]
    warm: Sequence[bool]  # the doubt prefix-cache, by run
    how: str | None = (
        ""  # the beginning of every run's line on the prefix cache; "": no line; None: they differ
    )
    write: Callable[[Path], str] = PROMPTS


VLLM: dict[str, Any] = {"reports": "counters"}
DETAILED: dict[str, Any] = {"reports": "usage"}
UNSALTED: dict[str, Any] = {"reports": "counters", "salted": False}
SGLANG: dict[str, Any] = {"owner": "sglang", "salted": False, "reset": True}
UNKNOWN: dict[str, Any] = {"owner": "", "salted": False}
COLD, WARM = [False], [True]
CASES = {
    # A file again, on a server that takes a salt: unlike, and its cache finds nothing.
    "vllm, --repeat": Case(VLLM, [f"{FILE} --repeat 3"], COLD * 3, PARTED),
    "vllm, a second command": Case(VLLM, [FILE, FILE], COLD * 2, PARTED),
    "vllm, cached tokens in usage": Case(DETAILED, [f"{FILE} --repeat 2"], COLD * 2, PARTED),
    "vllm, a warm-up": Case(VLLM, [f"{FILE} --repeat 2 --num-warmups 2"], COLD * 2, PARTED),
    "vllm, ids": Case(VLLM, [f"{FILE} --repeat 2"], COLD * 2, PARTED, IDS),
    "vllm, a sheet": Case(VLLM, [f"{FILE} --repeat 2"], COLD * 2, PARTED, write_csv),
    "vllm, bodies": Case(VLLM, [f"{CHATS} --repeat 2"], COLD * 2, PARTED, CHAT),
    "vllm, a template": Case({**DETAILED, "template": 40}, [f"{CHATS} --repeat 2"], COLD * 2, PARTED),
    "vllm, a system prompt of all": Case(DETAILED, [f"{CHATS} --repeat 2"], COLD * 2, PARTED, SHARED),
    "vllm, tools of all": Case(DETAILED, [f"{CHATS} --repeat 2"], COLD * 2, PARTED, TOOLED),
    "vllm, images under a system prompt of all": Case(
        DETAILED, [f"{CHATS} --repeat 2"], COLD * 2, PARTED, IMAGES
    ),
    "vllm, questions": Case(VLLM, [f"{FILE} --output-len 4 --repeat 2"], COLD * 2, PARTED, QUESTIONS),
    "vllm, conversations": Case(DETAILED, [f"{CHATS} --output-len 4 --repeat 2"], COLD * 2, PARTED, TALKS),
    "vllm, conversations, live": Case(
        DETAILED, [f"{CHATS} --output-len 4 --assistant live --repeat 2"], COLD * 2, PARTED, TALKS
    ),
    "vllm, ShareGPT": Case(VLLM, [f"{SHAREGPT} --repeat 2", SHAREGPT], COLD * 3, PARTED, write_sharegpt),
    "vllm, a rate": Case(VLLM, ["bench --dataset-path FILE --request-rate 20 --repeat 2"], COLD * 2, PARTED),
    "vllm, all at once": Case(VLLM, ["bench --dataset-path FILE --repeat 2"], COLD * 2, PARTED),
    "vllm, a sweep": Case(VLLM, ["sweep --dataset-path FILE --concurrency 1,2,4"], COLD * 3, PARTED),
    "vllm, repeats of a seed": Case(VLLM, [f"{FILE} --seed 1 --repeat 2"], COLD * 2, None),
    # The user asked for the texts as they are: by a seed, by a salt, in the rows.
    "vllm, one seed": Case(VLLM, [f"{FILE} --seed 1"] * 2, [*COLD, *WARM]),
    "vllm, one seed, usage": Case(DETAILED, [f"{CHATS} --seed 1"] * 2, [*COLD, *WARM]),
    "vllm, one seed, a shared system prompt": Case(
        DETAILED,
        [f"{CHATS} --seed 1"] * 2,
        [*COLD, *WARM],
        "",
        write_prompts(
            [chat(text(i, 160), before=[{"role": "system", "content": text(7, 80)}]) for i in range(ROWS)]
        ),
    ),
    "vllm, one seed, a system prompt of two thirds": Case(
        VLLM, [f"{CHATS} --seed 1"] * 2, [*COLD, *WARM], "", HALF_SHARED
    ),
    "vllm, one seed, conversations": Case(
        DETAILED, [f"{CHATS} --output-len 4 --seed 1"] * 2, [*COLD, *WARM], "", TALKS
    ),
    "vllm, one seed, made prompts": Case(VLLM, [f"{MADE} --seed 1"] * 2, [*COLD, *WARM]),
    "vllm, one seed, made sessions": Case(DETAILED, [f"{TURNS} --seed 1"] * 2, [*COLD, *WARM]),
    "vllm, one seed, a trace": Case(VLLM, [f"{TRACE} --seed 1"] * 2, [*COLD, *WARM], "", BLOCKS),
    "vllm, a salt of one's own": Case(
        VLLM, [FILE + ' --extra-body {"cache_salt":"mine"}'] * 2, [*COLD, *WARM], PARTED
    ),
    "vllm, a salt in the rows": Case(DETAILED, [CHATS] * 2, [*COLD, *WARM], PARTED, OWN_SALT),
    # The salt is ignored or refused, or the version has none.
    "a salt without effect": Case(UNSALTED, [f"{FILE} --repeat 3"], [*COLD, *WARM * 2], PARTED),
    "a salt that is refused": Case(
        {**VLLM, "refuses_salt": True}, [f"{FILE} --repeat 2 --num-warmups 2"], [*COLD, *WARM], KNOWN
    ),
    "an old version": Case({**UNSALTED, "version": "0.9.2"}, [f"{FILE} --repeat 2"], [*COLD, *WARM], KNOWN),
    "an old version in dev mode": Case(
        {**UNSALTED, "version": "0.9.2", "reset": True}, [f"{FILE} --repeat 2"], COLD * 2, EMPTIED
    ),
    "vllm in dev mode, --reset-cache": Case(
        {**VLLM, "reset": True}, [f"{FILE} --seed 1 --reset-cache"] * 2, COLD * 2, EMPTIED
    ),
    # No salt, and a cache that can be emptied.
    "sglang, --repeat": Case(SGLANG, [f"{FILE} --repeat 3"], COLD * 3, EMPTIED),
    "sglang, a second command": Case(SGLANG, [CHATS, CHATS], COLD * 2, EMPTIED, CHAT),
    "sglang, one seed": Case({**SGLANG, "reports": "counters"}, [f"{FILE} --seed 1"] * 2, [*COLD, *WARM], ""),
    "sglang that keeps its cache": Case(
        {**SGLANG, "reset": False, "reports": "counters"}, [f"{FILE} --repeat 2"], [*COLD, *WARM], KNOWN
    ),
    # Neither salt nor reset, nor a word about cached tokens: TTFT tells.
    "unknown, --repeat": Case(UNKNOWN, [f"{FILE} --repeat 3"], [*COLD, *WARM * 2], KNOWN),
    "unknown, all at once": Case(UNKNOWN, ["bench --dataset-path FILE --repeat 2"], [*COLD, *WARM], KNOWN),
    "unknown, a second command": Case(UNKNOWN, [FILE, FILE], [*COLD, *WARM], KNOWN),
    "unknown, another server by its label": Case(UNKNOWN, [FILE, f"{FILE} --label B"], COLD * 2, KNOWN),
    "unknown, one seed": Case(UNKNOWN, [f"{FILE} --seed 1"] * 2, [*COLD, *WARM]),
    "unknown, a harder load of them": Case(UNKNOWN, [FILE, f"{FILE}0"], [*COLD, *WARM], KNOWN),
    "unknown, a lighter load of them": Case(UNKNOWN, [f"{FILE}0", FILE], COLD * 2, KNOWN),
    "unknown, a sweep": Case(
        UNKNOWN, ["sweep --dataset-path FILE --concurrency 1,2,4"], [*COLD, *WARM * 2], KNOWN
    ),
    "vllm without salts, a sweep": Case(
        UNSALTED, ["sweep --dataset-path FILE --concurrency 1,2,4"], [*COLD, *WARM * 2], PARTED
    ),
    # A search tries the server first.
    "vllm, a limit": Case(VLLM, [LIMIT], COLD * 2, PARTED),
    "vllm without salts, a limit": Case(UNSALTED, [LIMIT], [*COLD, *WARM], PARTED),
    "unknown, a rate": Case(
        UNKNOWN, ["bench --dataset-path FILE --request-rate 20"] * 2, [*COLD, *WARM], KNOWN
    ),
    "unknown, conversations": Case(
        UNKNOWN, [f"{CHATS} --output-len 4 --repeat 2"], [*COLD, *WARM], KNOWN, TALKS
    ),
    "unknown, chat": Case(UNKNOWN, [f"{CHATS} --repeat 2"], [*COLD, *WARM], KNOWN, CHAT),
    "unknown, ShareGPT in another order": Case(
        UNKNOWN, [f"{SHAREGPT} --max-concurrency 2 --repeat 2"], [*COLD, *WARM], KNOWN, write_sharegpt
    ),
    "unknown, cached tokens in usage": Case(
        {**UNKNOWN, "reports": "usage"}, [FILE, FILE], [*COLD, *WARM], KNOWN
    ),
    "unknown, without a cache": Case({**UNKNOWN, "caching": False}, [f"{FILE} --repeat 3"], COLD * 3, KNOWN),
    "unknown, without a cache, cold at first": Case(
        {**UNKNOWN, "caching": False, "warm_up_s": 0.5}, [f"{FILE} --repeat 3"], COLD * 3, KNOWN
    ),
    # Prompts that are made here are unlike in each run: nothing is done about them.
    "made prompts": Case(VLLM, [f"{MADE} --repeat 2", MADE], COLD * 3),
    "made prompts with a shared prefix": Case(
        DETAILED, [f"{MADE} --random-prefix-len 512 --repeat 2"], COLD * 2, ""
    ),
    "made prefix groups": Case(
        DETAILED, [f"{MADE} --random-prefix-len 256 --prefix-groups 4 --repeat 2"], COLD * 2, ""
    ),
    "made sessions": Case(DETAILED, [f"{TURNS} --repeat 2"], COLD * 2),
    "short made prompts under a template": Case(
        {**DETAILED, "template": 20}, [f"{SHORT} --backend openai-chat --repeat 2"], COLD * 2
    ),
    "made prompts of an unknown server": Case(UNKNOWN, [f"{MADE} --repeat 2"], COLD * 2),
    "a trace with hash ids": Case(VLLM, [f"{TRACE} --repeat 2"], COLD * 2, "", BLOCKS),
}


def measure(case: Case, place: Path) -> list[dict[str, Any]]:
    """What the runs of a case say of themselves, in the order in which they ended."""
    file = case.write(place)
    with VirtualServing(CachingServer(**case.server)):
        for command in case.commands:
            words = [{"FILE": file, "SLO": "ttft p90 < 2s"}.get(word, word) for word in command.split()]
            code = cli.main([*words, "--quiet", "--base-url", BASE_URL, "--run-dir", str(place / "runs")])
            assert code == (1 if command == LIMIT else 0)  # a file of 24 rows is over before a limit is found
    found = sorted((place / "runs").rglob("result.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text("utf-8"))["loadgen"] for path in found]


def list_warm(runs: Sequence[dict[str, Any]]) -> list[bool]:
    """Which runs have the doubt that a prefix cache knew their prompts."""
    return ["prefix-cache" in {doubt["name"] for doubt in run["verdict"]["doubts"]} for run in runs]


def check(case: Case, place: Path) -> None:
    """The runs that find their prompts in the cache have the doubt, and all say what was done."""
    runs = measure(case, place)
    assert list_warm(runs) == list(case.warm)
    lines = [run["cache_reset"] for run in runs]
    if case.how is not None:
        assert [line for line in lines if not line.startswith(case.how) or bool(line) != bool(case.how)] == []


FEW = ("vllm, a second command", "vllm, one seed", "unknown, --repeat")


@loop_over("name", FEW)
def test_the_same_prompts_again_are_computed_or_doubted(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)


@pytest.mark.long
@loop_over("name", [name for name in CASES if name not in FEW])
def test_all_ways_of_sending_the_same_prompts_again(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)
