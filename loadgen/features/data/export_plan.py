"""Export: the requests of a plan as rows of JSON, so that another client, or a later run, sends the same.

vLLM's `custom` reads those of texts, our reader all.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadgen.base.clock import SECOND_NS
from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path, write_output
from loadgen.base.printing import print_text
from loadgen.plan.plan import Plan
from loadgen.plan.planned_requests import UNKNOWN_LEN, PromptRequests, Turns
from loadgen.plan.tokenizers import load_tokenizer
from loadgen.settings.request_settings import CHAT_APIS
from loadgen.wire.openai import Chat

_RECOUNTED = 1000  # texts
_MADE_TURNS = "random_turns"  # the kind of conversations whose texts are made by index when needed
FLAG = "--export-requests"
IDS, TEXTS, BODIES, CONVERSATIONS = "token ids", "texts", "whole bodies", "conversations"
_CHAT = "openai-chat"
_VLLMS_CHAT = ("--backend", _CHAT, "--endpoint", "/v1/chat/completions")
Decode = Callable[[list[int]], str]


def export_and_print(made: Plan, file: str | None, tokenizer: str | None, to_errors: bool = False) -> None:
    """Write a plan's requests to a file, if one is given, and print lines on it; raises UsageError."""
    if file is not None:
        print_text("\n".join(export_requests(made, file, tokenizer)), sys.stderr if to_errors else sys.stdout)


def export_requests(made: Plan, file: str, tokenizer: str | None) -> list[str]:
    """Write a plan's requests to a file, whole or not at all; return lines on content and readers.

    Token ids are written as text where there is a tokenizer. Raises UsageError where the file cannot be
    written.
    """
    path = expand_path(file)
    decode = None
    if tokenizer is not None and find_form(made) == IDS:
        decode = load_tokenizer(tokenizer, "ids").decode
    form = find_form(made, decode)
    if not path.name or path.is_dir():
        raise UsageError(f"{FLAG} {file}: is a directory: give the name of a file")
    try:
        write_output(path, lambda out: out.writelines(encode_rows(made, decode)))
    except OSError as error:
        raise UsageError(f"{FLAG}: cannot write {path}: {error.strerror or error}") from None
    count = 2 * len(made) if form == CONVERSATIONS else len(made)  # a message and its answer
    rows = "1 row" if count == 1 else f"{count} rows"
    return [
        f"requests: {path}, {rows} of {form}; plan {made.digest()}",
        *_explain_sending(made, path, form),
        *(() if decode is None or tokenizer is None else _warn_of_other_lengths(made, tokenizer, decode)),
    ]


def _warn_of_other_lengths(made: Plan, tokenizer: str, decode: Decode) -> Iterator[str]:
    """Yield a line if some of the first 1,000 texts encode to more or fewer tokens than their ids."""

    encode = load_tokenizer(tokenizer, "ids").encode
    assert isinstance(made.requests, PromptRequests)
    prompts = [made.requests.prompt(i) for i in range(min(len(made), _RECOUNTED))]
    texts = [(ids, decode(ids)) for ids in prompts if not isinstance(ids, str)]
    other = sum(len(encode(text, add_special_tokens=False)) != len(ids) for ids, text in texts)
    if other:
        yield (
            f"{other} of the first {len(texts)} texts have more or fewer tokens than the ids they are of: "
            "--prompt-format corpus makes texts that keep their lengths"
        )


def _explain_sending(made: Plan, path: Path, form: str) -> Iterator[str]:
    """Yield lines: the commands that send the file, and what of the plan is not in it."""
    always = ["--ignore-eos"] if made.profile.ignore_eos else []
    chat = made.profile.backend in CHAT_APIS
    backend = _CHAT if form == BODIES else made.profile.backend  # whose form whole bodies have
    more = [*always, *(["--backend", backend] if chat else [])]
    yield f"sent by: loadgen bench {shlex.join(['--dataset-path', str(path), *more])}"
    if form == CONVERSATIONS:
        yield "MLPerf's endpoints client reads such rows too; vLLM's custom reads none"
    elif form == BODIES:
        yield "vLLM's custom reads no whole bodies"
    elif form == IDS:
        yield "vLLM's custom reads no token ids: pass --tokenizer DIR to write them as text"
    else:
        own = (made.requests.output_lens[: len(made)] != UNKNOWN_LEN).all()
        words = ["--dataset-name", "custom", "--dataset-path", str(path), "--num-prompts", str(len(made))]
        words += ["--custom-output-len", "-1" if own else "N", "--disable-shuffle", "--skip-chat-template"]
        more = [*always, *(_VLLMS_CHAT if chat else ())]
        yield f"or by: vllm bench serve {shlex.join([*words, *more])}"
    if form != CONVERSATIONS and made.turns is not None:
        yield (
            "which request follows which response, and after what delay, is not in it: each row is a request "
            "with its history; the file of the conversations itself is sent as sessions"
        )
    if made.profile.open_loop:
        yield "when a request is due is not in the file: pass the same --request-rate, --schedule or --trace"


def find_form(made: Plan, decode: Decode | None = None) -> str:
    """Return the kind of a plan's rows: IDS, TEXTS, BODIES or CONVERSATIONS; with `decode` ids are texts."""
    if made.facts.kind == _MADE_TURNS:
        return CONVERSATIONS
    if not isinstance(made.requests, PromptRequests):
        return BODIES
    ids = decode is None and isinstance(made.requests.prompt(0), list)
    return IDS if ids else TEXTS


def encode_rows(made: Plan, decode: Decode | None = None) -> Iterator[bytes]:
    """Yield every request as a line of JSON: prompt and length, or its body's own fields.

    What all of them share, and the model's name where it is the plan's, is left to the flags of the command
    that sends it. Of conversations that are made here: a line for each message, as MLPerf's schema has them.
    """
    if made.facts.kind == _MADE_TURNS and made.turns is not None:
        yield from (msgspec.json.encode(row) + b"\n" for row in _list_messages(made.requests, made.turns))
        return
    for i in range(len(made)):
        yield msgspec.json.encode(_make_row(made, i, decode)) + b"\n"


def _list_messages(requests: Any, turns: Turns) -> Iterator[dict[str, Any]]:
    """Yield the rows of each session's messages, a user's and its answer by turns, as MLPerf has them."""
    for session in range(len(turns)):
        begin, system = int(turns.begins[session]), requests.system(session)
        for i in range(begin, turns.end(session)):
            same = {"conversation_id": f"session-{session}"}
            row = {**same, "turn": 2 * (i - begin) + 1, "role": "user", "content": requests.message(i)}
            if system and i == begin:
                row["system"] = system
            if turns.delays_ns[i]:
                row["delay_seconds"] = int(turns.delays_ns[i]) / SECOND_NS
            row["max_completion_tokens"] = int(requests.output_lens[i])
            yield row
            turn = 2 * (i - begin) + 2
            yield {**same, "turn": turn, "role": "assistant", "content": requests.answer(i)}


def _make_row(made: Plan, i: int, decode: Decode | None) -> dict[str, Any]:
    """Return request i as a row: its prompt, decoded if possible, and length, or its body as of OpenAI."""
    requests = made.requests
    if not isinstance(requests, PromptRequests):
        is_openai = isinstance(made.dialect, Chat) or not made.dialect.chat
        dialect = made.dialect if is_openai else Chat()
        body = requests.request(i, dialect, made.model)
        return {name: value for name, value in body.items() if name != "model" or value != made.model}
    prompt = requests.prompt(i)
    text = decode(prompt) if decode is not None and not isinstance(prompt, str) else prompt
    length = int(requests.output_lens[i])
    return {"prompt": text} if length == UNKNOWN_LEN else {"prompt": text, "output_tokens": length}
