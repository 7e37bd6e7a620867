"""Export: the requests of a plan in a file, so that another client, or a later run, sends the same."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from loadgen.base.errors import UsageError
from loadgen.base.files import expand_path, write_output
from loadgen.features.data import exported_plan
from loadgen.features.data.exported_plan import BODIES, CONVERSATIONS, IDS, Decode
from loadgen.plan.plan import Plan
from loadgen.plan.requests import UNKNOWN_LEN, PromptRequests
from loadgen.report.printing import print_text

_RECOUNTED = 1000  # texts
FLAG = "--export-requests"


def shown(made: Plan, file: str | None, tokenizer: str | None, to_errors: bool = False) -> None:
    """Write a plan's requests to the file that was asked for, and print what it holds; raises UsageError."""
    if file is not None:
        print_text("\n".join(export(made, file, tokenizer)), sys.stderr if to_errors else sys.stdout)


def export(made: Plan, file: str, tokenizer: str | None) -> list[str]:
    """Write a plan's requests to a file, whole or not at all; lines on what it holds and who reads it.

    Token ids are written as text where there is a tokenizer. Raises UsageError where the file cannot be
    written.
    """
    path = expand_path(file)
    decode = _decode(made, tokenizer)
    form = exported_plan.form(made, decode)
    if not path.name or path.is_dir():
        raise UsageError(f"{FLAG} {file}: is a directory: give the name of a file")
    try:
        write_output(path, lambda out: out.writelines(exported_plan.rows(made, decode)))
    except OSError as error:
        raise UsageError(f"{FLAG}: cannot write {path}: {error.strerror or error}") from None
    return [
        f"requests: {path}, {_counted(made, form)} of {form}; plan {made.digest()}",
        *_readers(made, path, form),
        *(() if decode is None or tokenizer is None else _recounted(made, tokenizer, decode)),
    ]


def _counted(made: Plan, form: str) -> str:
    count = 2 * len(made) if form == CONVERSATIONS else len(made)  # a message and its answer
    return f"{count} row{'s' * (count > 1)}"


def check(file: str | None, plans: int) -> None:
    """Raises UsageError where there are several plans for one file."""
    if file is not None and plans > 1:
        raise UsageError(f"{FLAG} writes one plan: leave out --repeat, and name one profile")


def _decode(made: Plan, tokenizer: str | None) -> Decode | None:
    """What makes text of a plan's ids; None where there are none, or no tokenizer."""
    if tokenizer is None or exported_plan.form(made) != IDS:
        return None
    from loadgen.plan.prompts.tokenizers import load_tokenizer  # slow, and only ids need it

    return load_tokenizer(tokenizer, "ids").decode


def _recounted(made: Plan, tokenizer: str, decode: Decode) -> Iterator[str]:
    """How many of the texts that ids became are other tokens when they are read; of the first thousand."""
    from loadgen.plan.prompts.tokenizers import load_tokenizer

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


def _readers(made: Plan, path: Path, form: str) -> Iterator[str]:
    """The command lines that send these rows, and what they cannot say."""
    more = ["--ignore-eos"] if made.profile.ignore_eos else []
    chat = made.profile.backend == "openai-chat"
    more += ["--backend", "openai-chat"] if chat else []
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
        more += ["--endpoint", "/v1/chat/completions"] if chat else []
        yield f"or by: vllm bench serve {shlex.join([*words, *more])}"
    if form == BODIES and made.turns is not None:
        yield (
            "which request follows which answer, and after what delay, is not in it: each row is a request "
            "with its history; the file of the conversations itself is sent as sessions"
        )
    if made.profile.open_loop:
        yield "when a request is due is not in the file: pass the same --request-rate, --schedule or --trace"
