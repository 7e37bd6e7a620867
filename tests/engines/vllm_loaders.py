"""What `vllm bench serve` would send, by its own loaders; nothing is sent: its sending function is replaced.

Run in tests/data/drop_in by the engines' Python: `PYTHONHASHSEED=0 python …/tests/engines/vllm_loaders.py
> requests.json` reads commands.json. A request is a digest of its prompt, both lengths, a trace's time.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib
import importlib.util
import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

MODEL = ["--model", "any", "--base-url", "http://127.0.0.1:9", "--tokenizer", "../tokenizer"]


def main() -> None:
    """Print each command of commands.json with its requests."""
    output, sys.stdout = sys.stdout, sys.stderr  # it prints its arguments
    time.sleep = lambda seconds: None  # for each command it waits for the config.json that a tokenizer lacks
    commands = [line.split() for line in json.loads(Path("commands.json").read_text("utf-8"))]
    cases = [json.dumps({"argv": argv, "requests": requests(argv)}) for argv in commands]
    made_by = json.dumps(f"vllm {metadata.version('vllm')}, transformers {metadata.version('transformers')}")
    output.write('{"made_by": ' + made_by + ', "cases": [\n' + ",\n".join(cases) + "\n]}\n")


def requests(argv: list[str]) -> list[list[Any]] | None:
    """The requests that a command line makes vLLM send; None where it lacks the pandas that it reads with."""
    if "custom" in argv and importlib.util.find_spec("pandas") is None:
        return None
    serve: Any = importlib.import_module("vllm.benchmarks.serve")  # not there where this is checked
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    sent: list[list[Any]] = []

    async def noted(**arguments: Any) -> Any:
        for request in arguments["input_requests"]:
            prompt = request.prompt
            text = prompt if isinstance(prompt, str) else json.dumps(prompt, separators=(",", ":"))
            digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
            sent.append([digest, request.prompt_len, request.expected_output_len, request.timestamp])
        raise InterruptedError

    serve.benchmark = noted
    try:
        asyncio.run(serve.main_async(parser.parse_args([*MODEL, *argv])))
    except InterruptedError:
        return sent
    raise SystemExit(f"{argv}: nothing would be sent")


if __name__ == "__main__":
    main()
