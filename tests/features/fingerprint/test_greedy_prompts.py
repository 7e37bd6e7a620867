"""Answers: what a server says to the greedy prompts is kept as it said it, or why it did not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builders import recorded
from builders.loops import loop_over, read_tables
from fakes.scripted_server import (
    HEAD,
    LAST,
    Answer,
    Asked,
    End,
    ScriptedServer,
    api,
    chunk,
    closed_port,
    stream,
    token,
    whole,
)
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.base.structs import replace
from loadgen.engines.engine import Engine
from loadgen.engines.engines import find_by_name
from loadgen.facts.run_facts import Fingerprint, GreedyAnswer
from loadgen.features.fingerprint import answer_check, greedy_prompts
from loadgen.features.fingerprint.answer_check import (
    CHAT,
    COMPLETION,
    PROMPTS,
    Flaw,
    describe_difference,
    find_flaw,
    judge_answers,
    make_empty_fingerprint,
)
from loadgen.plan import plan
from loadgen.plan.profile import build
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.report import run_directory
from loadgen.server.exchange import ServerAddress

TABLES = read_tables("greedy_answers")
# Python 3.12 warns of any thread at a fork; the child takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
TOKENIZER = str(Path(__file__).parents[2] / "data" / "tokenizer")
VLLM, SGLANG = find_by_name("vLLM"), find_by_name("SGLang")
COUNT = len(PROMPTS)


def asked_of(
    base_url: str,
    engine: Engine,
    settings: dict[str, Any],
    tokenizer: str | None = None,
    limit_s: float = 30.0,
    **keys: Any,
) -> Fingerprint:
    """The fingerprint of a server, asked in the API of a workload."""
    subject = ModelTarget(engine, "m", tokenizer=tokenizer, vocab_size=100)
    workload = build({"input_len": 8, "output_len": 4, "num_prompts": 1, **settings})
    made = plan.make(workload, subject, Seed(1))
    return greedy_prompts.ask_prompts(ServerAddress(base_url), subject, made, limit_s, **keys)


def saying(*pieces: bytes | float, end: End = End.KEEP) -> Callable[[Asked], Answer]:
    return lambda _: Answer(pieces, end)


@loop_over(("engine", "settings", "name", "text", "ids"), TABLES["kept"])
def test_an_answer_is_kept_as_the_server_gave_it(
    engine: str, settings: dict[str, Any], name: str, text: str, ids: int
) -> None:
    with ScriptedServer(saying(*recorded.reads(name))) as server:
        found = asked_of(server.base_url, find_by_name(engine), settings, TOKENIZER)
    assert [answer.prompt for answer in found.answers] == [prompt.text for prompt in PROMPTS]
    assert len(set(found.answers)) == COUNT
    for answer in found.answers:
        assert (answer.failure, answer.cut, len(answer.token_ids)) == ("", "", ids)
        assert answer.text.startswith(text)
        assert bool(answer.text) == bool(text)
    assert found.form == (CHAT if "backend" in settings and engine == "vLLM" else COMPLETION)


def sent(server: ScriptedServer | VirtualServing) -> list[dict[str, Any]]:
    """Every request's body, its path beside."""
    posts = [asked for asked in server.asked if asked.head.startswith("POST")]
    return [{"path": asked.head.split(" ")[1], **json.loads(asked.body)} for asked in posts]


@loop_over(("engine", "settings", "body"), TABLES["sent"])
def test_prompts_are_sent_greedy_one_at_a_time(
    engine: str, settings: dict[str, Any], body: dict[str, Any]
) -> None:
    with ScriptedServer(saying(HEAD, chunk(token("a", "length")), LAST)) as server:
        asked_of(server.base_url, find_by_name(engine), settings, TOKENIZER)
        bodies = sent(server)
    assert len(bodies) == COUNT
    assert bodies[0] == body
    assert len({json.dumps(body) for body in bodies}) == COUNT


def without_a_tokenizer(asked: Asked) -> Answer:
    """What SGLang says with `--skip-tokenizer-init`."""
    name = "generate_err_text" if b'"text"' in asked.body else "generate_stream"
    return Answer(recorded.reads(f"sglang-0.5.23-skip-tokenizer/{name}"))


def test_a_server_without_a_tokenizer_is_sent_ids_of_ours() -> None:
    with ScriptedServer(without_a_tokenizer) as server:
        found = asked_of(server.base_url, SGLANG, {"backend": "sglang"}, TOKENIZER)
        bodies = sent(server)
        neither = asked_of(server.base_url, SGLANG, {"backend": "sglang"})
    asked = [[key for key in ("text", "input_ids") if key in body] for body in bodies]
    assert asked == [["text"], *[["input_ids"]] * COUNT]
    assert [len(answer.token_ids) for answer in found.answers] == [16] * COUNT
    assert all(answer.text and not answer.failure for answer in found.answers)
    assert (neither.answers, len(server.asked)) == ((), len(bodies) + 1)
    assert neither.missing.startswith("in-band-error: 400: The engine initialized with skip_tokenizer_")
    assert neither.missing.endswith("token ids instead of text need --tokenizer")


def test_a_server_that_is_gone_is_asked_once() -> None:
    found = asked_of(f"http://127.0.0.1:{closed_port()}", VLLM, {})
    assert (found.answers, found.missing[:24]) == ((), "the server is gone: conn")


@pytest.mark.whole
def test_a_slow_machine_costs_the_limit_and_keeps_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_check, "PROMPTS", PROMPTS[:2])
    with ScriptedServer(saying(HEAD, chunk(token("so far")), end=End.HANG)) as server:
        found = asked_of(server.base_url, VLLM, {}, limit_s=3.0)
    assert [(answer.text, answer.failure) for answer in found.answers] == [("so far", "")] * 2
    assert all("does not answer within" in answer.cut for answer in found.answers)


@pytest.mark.whole
def test_an_answer_that_never_begins_is_cut_and_not_empty() -> None:
    with ScriptedServer(saying(end=End.HANG)) as server:
        found = asked_of(server.base_url, VLLM, {}, limit_s=0.6)
    assert all(answer.cut and not answer.usable for answer in found.answers)
    assert answer_check.judge_answers(found) == []


# The whole way.

LOAD = ["--random-input-len", "8", "--random-output-len", "3", "--num-prompts", "4", "--max-concurrency", "2"]


whole_way = pytest.mark.usefixtures("elsewhere")


def bench(server: VirtualServing, *words: str) -> int:
    return cli.main(["bench", "--quiet", "--base-url", server.base_url, *LOAD, *words])


def kept() -> list[Fingerprint | None]:
    results = sorted(Path("runs").glob("**/result.json"))
    return [run_directory.load(path.parent).facts.fingerprint for path in results]


@whole_way
def test_a_session_is_asked_once_and_every_run_keeps_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with VirtualServing(api(lambda _: stream(3))) as server:
        assert bench(server, "--fingerprint", "--repeat", "2") == 0
        texts = [body["prompt"] for body in sent(server)]
    assert [isinstance(prompt, str) for prompt in texts] == [False] * 4 + [True] * COUNT + [False] * 4
    first, second = kept()
    assert first is not None
    assert first == second
    assert [answer.text for answer in first.answers] == ["aaz"] * COUNT
    out = capsys.readouterr().out
    assert out.count("fingerprint: 12 of 12 greedy prompts completed, 0 of 11 plain") == 2
    assert "Successful requests:                     4" in out


@whole_way
def test_a_run_in_which_nothing_was_answered_is_not_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with VirtualServing(api(lambda _: Answer([whole(b"{}", "500 Oops")]))) as server:
        assert bench(server, "--fingerprint") == 1
        assert len(sent(server)) == 4
    assert "fingerprint: none: every request failed" in capsys.readouterr().out


@whole_way
def test_ctrl_c_while_it_is_asked_keeps_the_run_and_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> Fingerprint:
        raise KeyboardInterrupt

    monkeypatch.setattr(greedy_prompts, "ask_prompts", interrupted)
    with VirtualServing(api(lambda _: stream(3))) as server:
        assert bench(server, "--fingerprint", "--repeat", "2") == 130
        assert len(sent(server)) == 4
    out = capsys.readouterr().out
    (path,) = Path("runs").glob("*/report.txt")
    said = " ".join(path.read_text("utf-8").split())
    assert "note: stopped by Ctrl-C after the last request, before the fingerprint was known" in said
    assert "PARTIAL" not in out
    assert "Successful requests:                     4" in out


@whole_way
@pytest.mark.usefixtures("engines")
def test_the_embedded_engine_is_not_asked_for_what_it_makes_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--quiet", "--preset", "instant", *LOAD, "--fingerprint", "--no-observe"]) == 0
    assert "fingerprint: none: the embedded engine's outputs are made up" in capsys.readouterr().out


GENERATED = b'data: {"text":"","output_ids":[%b],"meta_info":{"completion_tokens":1%b}}\n\n'
LENGTH = b',"finish_reason":{"type":"length"}'
NUMBER = "malformed: event 1: Expected `int` "


@pytest.mark.parametrize(
    ("event", "failure"),
    [
        (b'data: {"usage":{"completion_tokens":%d}}\n\n' % 10**30, NUMBER),
        (b'data: {"usage":{"prompt_tokens":-1}}\n\n', NUMBER),
        (b'data: {"x":' + b"[" * 20_000 + b"\n\n", "malformed: event 1: maximum recursion depth"),
        (b'data: {"detail":"worker died"}\n\n', "in-band-error: worker died"),
        (b"data: " + b"x" * (17 << 20), "malformed: /v1/completions answers more than 16 MiB"),
        (GENERATED % (b"5", b'0000000000,"x":1'), NUMBER),
        (GENERATED % (b"-1", LENGTH), "malformed: invalid token ids"),
        (GENERATED % (b"9" * 30, LENGTH), "malformed: invalid token ids"),
        (GENERATED % (b"99999999", LENGTH), ""),
        (GENERATED % (b"[" * 20_000, LENGTH), "malformed: event 1: maximum recursion depth"),
    ],
    ids=["usage", "below 0", "deep", "detail", "long", "count", "id below 0", "id", "unknown id", "deep ids"],
)
def test_one_odd_answer_costs_that_prompt_alone(event: bytes, failure: str) -> None:
    generate = b"output_ids" in event
    good = GENERATED % (b"7", LENGTH) if generate else token("a", "length")

    def script(asked: Asked) -> Answer:
        odd = PROMPTS[3].text[:20].encode() in asked.body
        return Answer([HEAD, chunk(event if odd else good), chunk(b"data: [DONE]\n\n"), LAST])

    with ScriptedServer(script) as server:
        engine, settings = (SGLANG, {"backend": "sglang"}) if generate else (VLLM, {})
        found = asked_of(server.base_url, engine, settings, TOKENIZER)
    said = [answer.failure for answer in found.answers]
    assert said[3].startswith(failure)
    assert bool(said[3]) == bool(failure)
    assert said[:3] + said[4:] == [""] * (COUNT - 1)
    assert all(answer.text or answer.token_ids for answer in found.answers if not answer.failure)


@loop_over("error", [IndexError("piece id"), TypeError("None"), OverflowError()])
def test_ids_that_no_tokenizer_knows_are_that_prompts_failure(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(token_ids: list[int]) -> str:
        raise error

    strict = SimpleNamespace(encode=lambda text, add_special_tokens: [1, 2], decode=decode)
    monkeypatch.setattr(greedy_prompts, "load_tokenizer", lambda *_: strict)
    with ScriptedServer(without_a_tokenizer) as server:
        found = asked_of(server.base_url, SGLANG, {"backend": "sglang"}, TOKENIZER)
    failures = {answer.failure for answer in found.answers}
    assert failures == {"malformed: token ids that the tokenizer does not know"}


def test_a_secret_that_the_server_repeats_is_hidden() -> None:
    with ScriptedServer(saying(HEAD, chunk(token("the key sk-1", "stop")), LAST)) as server:
        found = asked_of(server.base_url, VLLM, {}, hide=lambda said: said.replace("sk-1", "*"))
    assert [answer.text for answer in found.answers] == ["the key *"] * COUNT


# As small instruct models go on, greedily.
HEALTHY = TABLES["healthy"]
LOOP = " the the the the the the the the the the the the the the the the"
SENTENCES = " It is big. It is big. It is big. It is big. It is big. It is big. It is big."
BANGS = "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!"
SALAD = " placeAction V tuplemptyunction_sig oncetk item remaining.test instru"


def of(*texts: str, **more: Any) -> Fingerprint:
    """A fingerprint of these answers, the healthy ones after them."""
    said = [*texts, *HEALTHY[len(texts) :]]
    answers = [
        GreedyAnswer(prompt=prompt.text, text=text) for prompt, text in zip(PROMPTS, said, strict=True)
    ]
    return Fingerprint(version=1, answers=tuple(answers), **more)


def with_ids(*ids: Sequence[int], cut: str = "") -> Fingerprint:
    answers = (
        GreedyAnswer(prompt=f"p{at}", text="t", token_ids=tuple(found), cut=cut)
        for at, found in enumerate(ids)
    )
    return Fingerprint(version=1, answers=tuple(answers))


@loop_over(("answer", "found"), [*(({"text": text}, None) for text in HEALTHY), *TABLES["flaws"]])
def test_an_answer_is_one_or_has_a_flaw(answer: dict[str, Any], found: str | None) -> None:
    assert find_flaw(GreedyAnswer(prompt="p", **answer)) is (None if found is None else Flaw[found])


LOOPING = "outputs are a few tokens repeated to the end"
NOISY = f"12 of 12 outputs are one token throughout, or no text, which NaN logits make: '{BANGS[:24]}'…"
NOISY_BESIDE, NOISY_AS_WELL = (NOISY.replace(": '", f" (of the baseline's: {count}): '") for count in (0, 12))
LOOPS = f"6 of 12 {LOOPING}: 'the the the the the the '…"
CUT = tuple(replace(answer, text=" I", cut="late") for answer in of().answers)
TWO_FAILED = tuple(replace(answer, failure="http-status: 500: \x1b[31mno") for answer in of().answers[:2])
DIFFERENT = "outputs not compared with BF16: "


BROKEN: list[tuple[Fingerprint, Fingerprint | None, list[str]]] = [
    (of(), None, []),
    (of(), of(), []),
    (of(BANGS), None, []),  # one by accident
    (of(*[BANGS] * 12), None, [NOISY]),
    (of(*[BANGS] * 12), of(), [NOISY_BESIDE]),
    (of(*[BANGS] * 12), of(*[BANGS] * 12), [NOISY_AS_WELL]),
    (of(*[LOOP] * 5), None, []),  # small greedy models loop now and then
    (of(*[LOOP] * 6), None, [LOOPS]),
    (of(*[LOOP] * 6), of(*[LOOP] * 5), []),
    (of(*[LOOP] * 6), make_empty_fingerprint("why not"), [LOOPS]),
    (of(*[SENTENCES] * 4), of(LOOP),
     [f"4 of 12 {LOOPING} (of the baseline's: 1): 'It is big. It is big. It'…"]),
    (of("", "", ""), None, []),  # an instruct model may have nothing to add
    (of("", "", "", " \n"), None, ["4 of 12 outputs are empty"]),
    (of("", "", "", ""), of("", "", ""), []),
    (of("", "", ""), of(), ["3 of 12 outputs are empty (of the baseline's: 0)"]),
    (of(*[SALAD] * 12), None, []),
    (of(*[SALAD] * 12), of(*[SALAD] * 12), []),
    (of(*[SALAD] * 5), of(), []),  # half of the questions are enough
    (of(*[SALAD] * 9), of(form=CHAT), []),  # a baseline that was asked otherwise
    (of(*[SALAD] * 9), of(), ["2 right of 11 plain questions that the baseline gets right: "
     "'The capital of France is' → 'placeAction V tuplemptyu'…"]),
    (make_empty_fingerprint("why not"), of(), []),
    (replace(of(), answers=CUT), of(), []),  # before its answer
    # Without what a terminal would obey.
    (replace(of(), answers=TWO_FAILED + of().answers[2:]), None,
     ["2 of 12 prompts failed, the first with http-status: 500:  [31mno"]),
]  # fmt: skip


@loop_over(("own", "baseline", "said"), BROKEN)
def test_what_is_broken_is_named_over_the_set_and_against_the_baseline(
    own: Fingerprint, baseline: Fingerprint | None, said: list[str]
) -> None:
    assert judge_answers(own, baseline) == said


@loop_over("index", range(len(PROMPTS)))
def test_each_prompt_expects_what_a_healthy_model_says_and_no_salad(index: int) -> None:
    prompt = PROMPTS[index]
    right = Fingerprint(version=1, answers=(GreedyAnswer(prompt=prompt.text, text=HEALTHY[index]),))
    wrong = Fingerprint(version=1, answers=(GreedyAnswer(prompt=prompt.text, text=SALAD),))
    of = 1 if prompt.expects else 0
    assert answer_check.count_right(right) == (of, of)
    assert answer_check.count_right(wrong) == (0, of)


def test_the_prompts_are_one_version_and_shorter_than_a_block() -> None:
    """Whoever changes a prompt counts the version up, here too."""
    assert (answer_check.VERSION, answer_check.ANSWER_TOKENS, len(PROMPTS)) == (1, 48, 12)
    assert max(len(prompt.text.encode()) for prompt in PROMPTS) < 40
    assert len({prompt.text for prompt in PROMPTS}) == 12


OTHER_SET = replace(of(), version=2)
FAILED = Fingerprint(
    version=1, answers=tuple(GreedyAnswer(prompt=prompt.text, failure="x") for prompt in PROMPTS)
)


@loop_over(
    ("own", "other", "line"),
    [
        (of(), of(), "the same outputs as BF16 to all 12 prompts"),
        (of(" Paris, of course"), of(" Paris. It is located"),
         "first differs from BF16 after 6 of 21 characters (median of 1 prompt; 11 the same to the end)"),
        (with_ids([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]),
         with_ids([1, 9, 3, 4], [1, 2, 9, 4], [1, 2, 3, 9]),
         "first differs from BF16 after 2 of 4 tokens (median of 3 prompts)"),
        (with_ids([1, 2]), with_ids([1, 2, 3]),
         "first differs from BF16 after 2 of 3 tokens (median of 1 prompt)"),
        (with_ids([1], [2]), with_ids([3], []), "the same outputs as BF16 to all 2 prompts"),  # texts
        # A cut answer is compared as far as it goes.
        (with_ids([1, 2], [1, 9], cut="late"), with_ids([1, 2, 3, 4], [1, 2, 3, 4]),
         "first differs from BF16 after 1 of 2 tokens (median of 1 prompt; 1 the same to the end)"),
        (of(form=CHAT), of(), f"{DIFFERENT}asked as chat here, as completion there"),
        (of(), OTHER_SET, f"{DIFFERENT}other prompts (set 1 here, 2 there)"),
        (of(), make_empty_fingerprint("no tokenizer"), f"{DIFFERENT}no tokenizer"),
        (of(), FAILED, f"{DIFFERENT}no prompt was completed by both"),
    ],
)  # fmt: skip
def test_how_far_two_answers_go_together(own: Fingerprint, other: Fingerprint, line: str) -> None:
    assert describe_difference(own, other, "BF16") == line


def test_the_report_says_what_was_answered_cut_and_broken() -> None:
    cut = replace(of(*[BANGS] * 12).answers[0], cut="no more than 5 s were left for it")
    broken = of(*[BANGS] * 12)
    broken = replace(broken, answers=(cut, *broken.answers[1:]))
    assert answer_check.render_lines(of()) == [
        "fingerprint: 12 of 12 greedy prompts completed, 11 of 11 plain questions as expected"
    ]
    assert answer_check.render_lines(broken) == [
        "fingerprint: 12 of 12 greedy prompts completed, 0 of 11 plain questions as expected; "
        "1 cut: no more than 5 s were left for it",
        f"fingerprint: broken? {NOISY}",
    ]
    assert answer_check.render_lines(make_empty_fingerprint("why not")) == ["fingerprint: none: why not"]
