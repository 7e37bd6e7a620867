"""Drop-in: command lines of `vllm bench serve` over the files of tests/data/drop_in, and their plans here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from loadgen.engines.engines import UNKNOWN
from loadgen.plan import plan, profile
from loadgen.plan.plan import Plan
from loadgen.plan.request_sources import ModelTarget, Seed

DIRECTORY = Path(__file__).parents[1] / "data" / "drop_in"
TOKENIZER = DIRECTORY.parent / "tokenizer"


def commands() -> list[list[str]]:
    """The arguments of each command; files are named from the directory."""
    lines: list[str] = json.loads((DIRECTORY / "commands.json").read_text("utf-8"))
    return [line.split() for line in lines]


def planned(argv: list[str], tokenizer: str | None = str(TOKENIZER), **more: Any) -> Plan:
    """The plan of a command line."""
    given = dict(zip([word for word in argv if word.startswith("--")], _values(argv), strict=True))
    seed = int(str(given.pop("--seed", 0)))
    random = str(given["--dataset-name"]) == "random"
    keys = {flag[2:].replace("-", "_"): value for flag, value in given.items()}
    if not random and (tokens := keys.pop("output_len", None)) is not None:
        keys |= {f"{name}_output_len": tokens for name in ("sharegpt", "custom", "prefix_repetition")}
    if random:
        keys = {key.removeprefix("random_"): value for key, value in keys.items()} | {
            "prompt_format": "text-vllm"
        }
    subject = ModelTarget(UNKNOWN, "any", tokenizer=tokenizer)
    return plan.make(profile.build({**keys, **more}), subject, Seed(seed, chosen=True))


def sent(made: Plan) -> list[list[Any]]:
    """Each request as vllm_loaders.py has it: a digest of its prompt, both lengths, a trace's time."""
    rows: list[list[Any]] = []
    for i in range(len(made)):
        body = json.loads(made.body(i))
        prompt = body["prompt"]
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, separators=(",", ":"))
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        at_s = None if made.offsets_ns is None or made.facts.schedule is None else made.offsets_ns[i] / 1e9
        rows.append([digest, int(made.requests.input_lens[i]), body["max_tokens"], at_s])
    return rows


def _values(argv: list[str]) -> list[str | bool]:
    values: list[str | bool] = []
    for position, word in enumerate(argv):
        if word.startswith("--"):
            following = argv[position + 1] if position + 1 < len(argv) else "--"
            values.append(True if following.startswith("--") else following)
    return values
