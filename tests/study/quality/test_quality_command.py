"""`loadgen quality` against servers whose distributions are known: what it prints, keeps and refuses."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadgen
from builders.loops import loop_over, read_tables
from builders.markov_chain import MarkovModel, disturb, make_chain, normalize
from builders.required import require
from fakes.markov_server import MarkovServer
from fakes.scripted_server import Answer, Asked, End, ScriptedServer, whole
from loadgen import cli
from loadgen.base.signals import SIGNALS, stop
from loadgen.settings.keyword_types import BenchOptions
from loadgen.study.quality import probability_server, quality_text
from loadgen.study.quality.quality_command import (
    QualityKeywords,
    QualityRequest,
)
from loadgen.study.quality.quality_record import Quality
from loadgen.study.quality.quality_text import QualityPlan
from loadgen.study.quality.reference_file import (
    read_reference,
)

TABLES = read_tables("quality_command")
REFERENCE = make_chain()
CANDIDATE = disturb(REFERENCE, 0.03)
COMPLETIONS, FAILS = "/v1/completions", "500 Internal Server Error"
FEW = ["--tokens", "160", "--answer-tokens", "16", "--quiet"]


@pytest.fixture(autouse=True)
def short_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Score a short text."""
    text = tmp_path / "text"
    text.write_text("".join(f"{number} is {number * number} less {number}.\n" for number in range(140)))
    monkeypatch.setattr(quality_text, "_FILE", text)


@pytest.fixture(scope="module")
def reference() -> Iterator[str]:
    with ScriptedServer(MarkovServer(REFERENCE, "bf16")) as server:
        yield server.base_url


@pytest.fixture(scope="module")
def candidate() -> Iterator[str]:
    with ScriptedServer(MarkovServer(CANDIDATE, "fp8")) as server:
        yield server.base_url


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code of `loadgen quality`, and what it printed."""
    code = cli.main(["quality", *words, *FEW])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def measure(capsys: pytest.CaptureFixture[str], *words: str) -> Quality:
    """The quality that `loadgen quality --json` prints."""
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return Quality.model_validate_json(out)


def compared(candidate: str, reference: str) -> list[str]:
    """The flags that hold a server to another."""
    return ["--base-url", candidate, "--reference-url", reference]


def test_two_servers_are_compared(reference: str, candidate: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *compared(candidate, reference))
    assert (code, err) == (0, "")
    assert out.startswith("Quality, against the reference\n")
    for part in ("fp8 ", "; KL usual for", "worst response", "noise floor", "reference: bf16"):
        assert part in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_a_server_that_breaks_now_and_then_is_asked_again(
    reference: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probability_server, "_WAITS_S", (0.01,) * 6)
    honest = MarkovServer(CANDIDATE, "fp8")
    faults = {9: Answer([], End.RESET), 12: Answer([whole(b"", "503 T")]), 14: Answer([whole(b"", "429 T")])}

    def script(asked: Asked) -> Answer:
        return faults.get(asked.number) or honest(asked)

    with ScriptedServer(script) as server:
        url = server.base_url
        code, out, err = run(capsys, *compared(url, reference))
    assert (code, out.startswith("Quality, against the reference")) == (0, True)
    assert err.startswith(f"loadgen: {url}: 3 requests sent again, mostly since /")


def test_a_server_that_reports_no_log_probabilities_has_no_verdict(
    reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = MarkovServer(CANDIDATE, "fp8")

    def script(asked: Asked) -> Answer:
        answer = honest(asked)
        body = bytes(answer.pieces[0]).partition(b"\r\n\r\n")[2]  # type: ignore[arg-type]
        if b"prompt_logprobs" not in body:
            return answer
        return Answer([whole(re.sub(rb'"logprob": ?-[0-9.e-]+', b'"logprob": 0.0', body))])

    with ScriptedServer(script) as server:
        code, out, _ = run(capsys, *compared(server.base_url, reference))
    assert code == 1
    assert "every log-probability of the candidate is 0" in " ".join(out.split())


def test_a_kept_reference_gives_the_figures_of_one_that_is_up(
    reference: str, candidate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "ref.jsonl.gz")
    code, out, err = run(capsys, "--base-url", reference, "--save", file)
    assert (code, out) == (0, "")
    assert err == f"{file}: 10 responses of bf16\n"
    kept = measure(capsys, "--base-url", candidate, "--reference", file)
    both = compared(candidate, reference)
    live = measure(capsys, *both)
    same = ("kl", "noise_floor", "agreement", "perplexity", "perplexity_ratio", "bits_per_byte")
    assert {name: getattr(kept, name) for name in same} == {name: getattr(live, name) for name in same}
    assert (require(kept.kl).tokens, require(kept.kl).answers, kept.why) == (160, 10, {})
    # With --save the reference that is up goes on with the file, which has enough.
    assert measure(capsys, *both, "--save", file) == kept


def list_chat_tokens(columns: dict[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """The tokens of a chat's answer, from the columns of a completion."""
    return [
        {"token": name, "logprob": value, "bytes": list(name.encode()) or None,
         "top_logprobs": [{"token": other, "logprob": its} for other, its in top.items()]}
        for name, value, top in zip(names, columns["token_logprobs"], columns["top_logprobs"], strict=True)
    ]  # fmt: skip


def texting(
    model: MarkovModel, name: str, chat: bool = False, names: Callable[[int], str] | None = None
) -> Callable[[Asked], Answer]:
    """A server of texts or chats without token ids; its tokens have names, or it has no log-probabilities."""
    server = MarkovServer(model, name)

    def rename(token: str) -> str:
        return require(names)(int(token.removeprefix("token_id:")))

    def respond(asked: Asked) -> Answer:
        method, path = asked.head.split(" ")[:2]
        if method == "GET":
            return Answer([whole(json.dumps({"data": [{"id": name, "owned_by": "system"}]}).encode())])
        body = json.loads(asked.body)
        if path != ("/v1/chat/completions" if chat else COMPLETIONS):
            return Answer([whole(b"{}", "404 Not Found")])
        prompt = server.tokenize(body["messages"][0]["content"] if chat else body["prompt"])
        if names is None:
            tokens = {"max_tokens": body.get("max_completion_tokens") or body["max_tokens"], "temperature": 0}
            text = "".join(map(chr, server._sample(prompt, tokens)[1:]))
            choice: dict[str, Any] = {"message": {"content": text}} if chat else {"text": text}
            choice["finish_reason"] = "length"
        else:
            if {"return_token_ids", "prompt_logprobs"} & body.keys() or body.get("logprobs", 0) > 5:
                return Answer([whole(b'{"error": "unknown field"}', "400 Bad Request")])
            body["logprobs"] = body["top_logprobs"] if chat else body["logprobs"]
            found = server._choose(0, prompt, body)["logprobs"]
            found["tokens"] = list(map(rename, found["tokens"]))
            found["top_logprobs"] = [
                {rename(key): value for key, value in top.items()} for top in found["top_logprobs"]
            ]
            content = list_chat_tokens(found, found["tokens"])
            choice = {"index": 0, "logprobs": {"content": content} if chat else found}
        return Answer([whole(json.dumps({"choices": [choice]}).encode())])

    return respond


hosted = partial(texting, CANDIDATE, "hosted", names=chr)


def count_same_answers(prompts: int) -> float:
    """The share of a plan's first prompts to which the greedy answers of 16 tokens are the same."""
    plan, same = QualityPlan(quality_text._FILE.read_text("utf-8")), 0
    for number in range(prompts):
        paths = []
        for model in (REFERENCE, CANDIDATE):
            server = MarkovServer(model)
            body = {"max_tokens": 16, "temperature": 0}
            paths.append(server._sample(server.tokenize(plan.cut_prompt(number)), body))
        same += paths[0] == paths[1]
    return same / prompts


@pytest.mark.parametrize("chat", [False, True])
def test_without_log_probabilities_greedy_answers_are_compared(
    chat: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = texting(REFERENCE, "bf16", chat), texting(CANDIDATE, "fp8", chat)
    file = str(tmp_path / "ref.jsonl.gz")
    with ScriptedServer(one) as reference, ScriptedServer(two) as candidate:
        live = measure(capsys, *compared(candidate.base_url, reference.base_url))
        code, _, err = run(capsys, "--base-url", reference.base_url, "--save", file)
        assert (code, err) == (0, f"{file}: 10 greedy responses of bf16\n")
        code, out, _ = run(capsys, "--base-url", candidate.base_url, "--reference", file, "--json")
        assert Quality.model_validate_json(out).same_answers == live.same_answers
    assert require(live.same_answers).mean == pytest.approx(count_same_answers(10))
    assert (live.kl, live.agreement, live.settings["chat"]) == (None, None, chat)
    assert live.why["kl"].endswith(" reports no log-probabilities")


def chatting(model: MarkovModel, name: str) -> Callable[[Asked], Answer]:
    """A vLLM whose chats are their messages, with the ids of prompt and output."""
    server = MarkovServer(model, name)

    def respond(asked: Asked) -> Answer:
        body = json.loads(asked.body) if asked.body else {}
        if asked.head.split(" ")[1] != "/v1/chat/completions":
            told = {**body, "prompt": body["messages"][0]["content"]} if "messages" in body else body
            return server(dataclasses.replace(asked, body=json.dumps(told).encode()))
        ids = server.tokenize(body["messages"][0]["content"])
        found = server._choose(0, ids, {**body, "logprobs": body["top_logprobs"]})
        content = list_chat_tokens(found["logprobs"], [""] * len(found["token_ids"]))
        choice = {"logprobs": {"content": content}, "token_ids": found["token_ids"]}
        return Answer([whole(json.dumps({"choices": [choice], "prompt_token_ids": ids}).encode())])

    return respond


def refusing(path: str, status: str, body: dict[str, Any]) -> Any:
    """A Markov server that answers one path so."""
    server = MarkovServer(REFERENCE, "bf16")

    def respond(asked: Asked) -> Answer:
        refused = asked.head.split(" ")[1] == path
        return Answer([whole(json.dumps(body).encode(), status)]) if refused else server(asked)

    return respond


def markov(model: MarkovModel, name: str, **keys: Any) -> Callable[[], MarkovServer]:
    """What makes a server, as new for each row."""
    return partial(MarkovServer, model, name, **keys)


NO_ID = "two letters {}".format
BF16, FP8 = markov(REFERENCE, "bf16"), markov(CANDIDATE, "fp8")
GGUF = markov(CANDIDATE, "gguf", prompt_logprobs=False)
CHATS = partial(chatting, REFERENCE, "bf16")
OTHER = markov(MarkovModel(normalize(np.eye(40)), "truthful"), "other")
BACK = "candidate‖reference"
MEASURED = [
    # A candidate, a reference, flags, the direction of the KL, and what begins a reason.
    (GGUF, BF16, "", BACK, {"agreement": "vLLM (gguf) scores no text"}),
    (OTHER, BF16, "", None, {"kl": "the vocabularies differ", "agreement": "the vocabularies differ"}),
    (partial(chatting, CANDIDATE, "fp8"), CHATS, "--chat", "reference‖candidate", {}),
    (hosted, CHATS, "", BACK, {}),
    (partial(hosted, True), CHATS, "", BACK, {}),
]  # fmt: skip


@loop_over(("one", "two", "flags", "direction", "why"), MEASURED)
def test_a_server_is_measured_by_what_it_reports(
    one: Any,
    two: Any,
    flags: str,
    direction: str | None,
    why: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ScriptedServer(one()) as candidate, ScriptedServer(two()) as reference:
        quality = measure(capsys, *compared(candidate.base_url, reference.base_url), *flags.split())
    assert {key: quality.why[key][: len(words)] for key, words in why.items()} == why
    assert (quality.kl and quality.kl.direction, quality.doubts) == (direction, ())
    assert quality.kl is None or (quality.kl.tokens == 160 and 0 < quality.kl.low < 0.1)
    assert (quality.agreement is None) is ("agreement" in quality.why)
    assert quality.bits_per_byte is not None or one is not OTHER
    assert quality.settings["chat"] is ("chat" in flags)


REFUSED = [
    # A candidate, a reference if one is up, flags, the exit code, and words of the line.
    (GGUF, GGUF, "", 2, "neither vLLM nor vLLM scores"),
    (GGUF, BF16, "--save /tmp/none.jsonl.gz", 2, "leave out --save"),
    (FP8, BF16, "--reference-model none", 1,
     "loadgen: of --reference-url: vLLM does not serve 'none'; it serves bf16"),
    (partial(hosted, names=NO_ID), BF16, "", 1, "most tokens that hosted samples are none of bf16"),
    (hosted, None, "", 1, "reports no token ids"),
    (partial(texting, CANDIDATE, "fp8", True), partial(texting, REFERENCE, "bf16"), "", 1,
     "/v1/chat/completions: http-status: 404"),
    (partial(refusing, COMPLETIONS, "200 OK", {"choices": 5}), None, "", 1,
     "/v1/completions answers with what is no list of log-probabilities"),
    (partial(refusing, COMPLETIONS, FAILS, {"error": "boom"}), None, "", 1, "answers 500: boom"),
    (partial(refusing, COMPLETIONS, "400 Bad Request", {"error": "no logprobs"}), None, "", 1,
     "/v1/completions: http-status: 400: no logprobs"),
    (partial(refusing, COMPLETIONS, "401 Unauthorized", {}), None, "", 1,
     "needs an API key and none was sent (401)"),
    (partial(refusing, "/tokenize", "404 Not Found", {}), None, "", 1, "pass --tokenizer"),
    (partial(refusing, "/tokenize", "200 OK", {"tokens": []}), None, "", 1, "tokenizes 'The' to nothing"),
    (None, None, "", 1, "http://127.0.0.1:9 is not ready"),
]  # fmt: skip


@loop_over(("one", "two", "flags", "code", "words"), REFUSED)
def test_what_cannot_be_measured_is_one_line(
    one: Any, two: Any, flags: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        urls = [stack.enter_context(ScriptedServer(made())).base_url for made in (one, two) if made]
        ends = ["--reference-url", urls[1]] if two else ["--save", "/tmp/none.jsonl.gz"]
        url = urls[0] if urls else "http://127.0.0.1:9"
        found, out, err = run(capsys, "--base-url", url, *ends, *flags.split())
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert words in err


@loop_over(("flags", "words"), TABLES["wrong"])
def test_a_wrong_command_is_one_line(
    flags: str, words: str, reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: str(tmp_path / name) for name in ("damaged", "newer", "other", "empty")}
    Path(files["damaged"]).write_bytes(b"no gzip")
    Path(files["newer"]).write_bytes(gzip.compress(b'{"version":9}\n'))
    header = {"version": 1, "model": "m", "engine": "vLLM", "text_digest": "00"}
    Path(files["other"]).write_bytes(gzip.compress(json.dumps(header).encode() + b"\n"))
    header["text_digest"] = hashlib.sha256(quality_text._FILE.read_bytes()).hexdigest()
    Path(files["empty"]).write_bytes(gzip.compress(json.dumps(header).encode() + b"\n"))
    flags = flags.format(**files)
    code = cli.main(["quality", "--base-url", reference, "--quiet", *flags.split()])
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert words in printed.err


def ending(requests: int, signals: Sequence[signal.Signals] = ()) -> Callable[[Asked], Answer]:
    """A reference that runs out of memory after so many requests, or raises signals then."""
    server, left = MarkovServer(REFERENCE, "bf16"), list(signals)

    def respond(asked: Asked) -> Answer:
        if left and len(server.posted) >= requests:
            signal.raise_signal(left.pop())
        done = not signals and len(server.posted) > requests
        return Answer([whole(b'{"error":"out of memory"}', "500 Error")]) if done else server(asked)

    return respond


@loop_over(
    ("requests", "signals", "code", "words", "ends"),
    [
        (12, [], 1, "usual KL:", "answers 500: out of memory\n"),
        (3, [], 1, "fp8: no KL: a server failed before two responses were scored\n", "out of memory\n"),
        (12, [signal.SIGINT], 130, "worst response", "loadgen: interrupted: the figures are of "),
    ],
)
def test_the_end_of_a_server_or_command_prints_what_was_measured(
    requests: int,
    signals: list[signal.Signals],
    code: int,
    words: str,
    ends: str,
    candidate: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ScriptedServer(ending(requests, signals)) as up, SIGNALS.catch(stop):
        flags = [*compared(candidate, up.base_url), "--answer-tokens", "8"]
        assert cli.main(["quality", *flags, "--quiet"]) == code
    printed = capsys.readouterr()
    assert words in printed.out
    assert ends in printed.err


def test_a_reference_goes_on_where_it_was_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ref.jsonl.gz"
    with ScriptedServer(ending(3)) as up:
        code, out, said = run(capsys, "--base-url", up.base_url, "--save", str(file))
    assert (code, out) == (1, "")
    assert said.endswith("out of memory; what was measured is kept: the same command goes on with it\n")
    assert read_reference(file).segments
    with ScriptedServer(BF16()) as up:
        assert run(capsys, "--base-url", up.base_url, "--save", str(file))[0] == 0
        file.write_bytes(file.read_bytes()[:-30])  # killed while it wrote
        assert len(read_reference(file).answers) < 10
        code, _, said = run(capsys, "--base-url", up.base_url, "--reference", str(file))
        told = f"loadgen: {file}: what follows its whole lines is left out: its last line is cut off\n"
        assert (code, said) == (0, told)
        assert run(capsys, "--base-url", up.base_url, "--save", str(file))[0] == 0
    again = read_reference(file)
    assert (len(again.answers), bool(again.segments), again.damage) == (10, True, "")


def test_the_call_measures_as_the_command_does(reference: str, candidate: str, tmp_path: Path) -> None:
    few: dict[str, Any] = {"tokens": 160, "answer_tokens": 16}
    file = tmp_path / "ref.jsonl.gz"
    assert loadgen.quality(reference, save=str(file), **few) is None
    kept, live = (loadgen.quality(candidate, place, **few) for place in (file, reference))
    assert kept is not None
    assert (kept.kl, kept.reference, kept.candidate) == (require(live).kl, "bf16", "fp8")
    with pytest.raises(loadgen.LoadgenError, match="nothing to compare with"):
        loadgen.quality(candidate)
    with pytest.raises(loadgen.LoadgenError, match="tokens: expected `int` >= 1"):
        loadgen.quality(candidate, reference, tokens=0)


def test_a_key_is_in_no_message(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    echo = {"error": "no logprobs for sk-secret-0123456789"}
    with ScriptedServer(refusing("/v1/completions", "400 Bad Request", echo)) as server:
        code, out, err = run(capsys, "--base-url", server.base_url, "--save", "/tmp/none.jsonl.gz")
    assert (code, out) == (1, "")
    assert "no logprobs for " in err
    assert "0123456789" not in err


def test_the_call_has_a_keyword_for_each_flag_of_the_command() -> None:
    own = set(QualityKeywords.__annotations__) - set(BenchOptions.__annotations__)
    of_the_command = {"margin"}  # how it prints what the call returns
    flags = {each.name for each in dataclasses.fields(QualityRequest)}
    assert own | {"reference", "reference_url"} | of_the_command == flags
