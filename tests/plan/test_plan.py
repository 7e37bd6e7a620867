"""Plans: a function of seed, profile and repeat; the digest tells two apart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from builders.loops import loop_over
from builders.required import require
from loadgen.base.errors import UsageError
from loadgen.engines.engine import Engine
from loadgen.engines.engines import ENGINES, UNKNOWN, find_by_owner
from loadgen.engines.refusals import Adaptation, AdaptedField
from loadgen.plan import plan, profile
from loadgen.plan.model_files import make_default_vocabulary
from loadgen.plan.plan import Plan
from loadgen.plan.random_prompts import PromptShape, TokenIds
from loadgen.plan.request_sources import ModelTarget, RandomStream, Seed

TOKENIZER = str(Path(__file__).parents[1] / "data" / "tokenizer")
SUBJECT = ModelTarget(UNKNOWN, "m")
TRANSFORMERS = next(engine for engine in ENGINES if engine.name == "transformers serve")


CHOSEN = Seed(7, chosen=True)


def made(seed: Seed = CHOSEN, subject: ModelTarget = SUBJECT, **keys: Any) -> Plan:
    table = {"name": "p", "input_len": 20, "output_len": 4, "num_prompts": 6, **keys}
    return plan.make(profile.build(table), subject, seed)


def prompts(of: Plan) -> list[Any]:
    return [of.payload(i)["prompt"] for i in range(len(of))]


def test_the_same_seed_gives_the_same_plan_and_digest() -> None:
    first, second = made(request_rate=5.0), made(request_rate=5.0)
    assert [first.body(i) for i in range(6)] == [second.body(i) for i in range(6)]
    assert require(first.offsets_ns).tolist() == require(second.offsets_ns).tolist()
    assert first.digest() == second.digest()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(made(Seed(8)), id="seed"),
        pytest.param(made(Seed(7, repeat=1)), id="repeat"),
        pytest.param(made(Seed(7, attempt=1)), id="attempt"),
        pytest.param(made(Seed(-7)), id="sign"),
        pytest.param(made(name="q"), id="profile"),
    ],
)
def test_another_seed_repeat_attempt_or_profile_shares_no_prompt(other: Plan) -> None:
    ours = made()
    assert ours.digest() != other.digest()
    starts = [tuple(prompt[:4]) for prompt in prompts(ours) + prompts(other)]
    assert len(set(starts)) == 12


@pytest.mark.parametrize("attempts", [(0, 1), (1, 2), (0, 2)])
def test_an_attempt_that_is_made_again_has_prompts_of_its_own_and_says_so(attempts: tuple[int, int]) -> None:
    first, other = (made(Seed(7, chosen=True, repeat=2, attempt=attempt)) for attempt in attempts)
    assert set(map(tuple, prompts(first))).isdisjoint(map(tuple, prompts(other)))
    assert first.digest() != other.digest()
    assert [f"attempt {attempts[1] + 1}: " in note for note in other.notes] == [True]
    assert "the plan digest is another" in other.notes[0]
    same = made(Seed(7, chosen=True, repeat=2, attempt=attempts[1]))  # of another checkpoint
    assert [same.body(i) for i in range(6)] == [other.body(i) for i in range(6)]


@loop_over(
    "change",
    [
        {"output_len": 5},
        {"input_len": 21},
        {"temperature": 0.5},
        {"request_rate": 3.0},
        {"ignore_eos": False},
        {"backend": "openai-chat", "prompt_format": "ids"},
        {"extra_body": {"a": 1}},
    ],
)
def test_whatever_changes_a_request_changes_the_digest(change: dict[str, Any]) -> None:
    try:
        other = made(**change)
    except UsageError:
        assert "backend" in change
        return
    assert other.digest() != made().digest()


def test_warm_up_prompts_are_never_measured_ones() -> None:
    workload = profile.build({"name": "p", "input_len": 20, "num_prompts": 50, "max_concurrency": 8,
                              "num_warmups": "wave", "request_rate": 3.0})  # fmt: skip
    warm, measured = (make(workload, SUBJECT, Seed(7)) for make in (plan.make_warmup, plan.make))
    assert len(warm) == 8
    assert warm.offsets_ns is None
    assert warm.profile.max_concurrency == 8
    starts = [tuple(prompt[:4]) for prompt in prompts(warm) + prompts(measured)]
    assert len(set(starts)) == 58


@pytest.mark.parametrize("num_prompts", [None, 40])
def test_a_closed_loop_with_a_duration_draws_prompts_when_needed(num_prompts: int | None) -> None:
    timed = made(duration=60.0, max_concurrency=2, num_prompts=num_prompts)
    counted = made(max_concurrency=2)
    assert (len(timed), timed.total, timed.offsets_ns) == (num_prompts or 1_000_000, None, None)
    assert [timed.body(i) for i in range(6)] == [counted.body(i) for i in range(6)]
    assert counted.total == 6
    assert timed.notes == ("requests are sent for 60 s; those still running then are finished",)


def test_an_open_loop_with_a_duration_has_the_requests_due_in_it() -> None:
    keys: dict[str, Any] = {"request_rate": 2.0, "burstiness": "inf", "duration": 1.8}
    free = made(num_prompts=None, **keys)
    assert (free.total, (require(free.offsets_ns) / 1e8).tolist()) == (4, [0, 5, 10, 15])
    assert len(free.notes) == 1
    exact, short = made(num_prompts=4, **keys), made(num_prompts=3, **keys)
    assert (exact.total, len(exact.notes)) == (4, 1)
    assert (short.total, short.notes[1]) == (3, "the schedule ends after 1.0 s, with the last of 3 prompts")


def test_texts_for_a_duration_need_a_count_warm_up_has_none() -> None:
    pytest.importorskip("transformers")
    subject = ModelTarget(UNKNOWN, "m", tokenizer=TOKENIZER)
    keys: dict[str, Any] = {"duration": 5.0, "prompt_format": "text-vllm"}
    with pytest.raises(UsageError, match="--duration with text-vllm needs --num-prompts"):
        made(subject=subject, num_prompts=None, max_concurrency=2, **keys)
    assert len(made(subject=subject, max_concurrency=2, **keys)) == 6
    assert len(made(subject=subject, num_prompts=None, request_rate=3.0, burstiness="inf", **keys)) == 15
    workload = profile.build({"duration": 5.0, "max_concurrency": 3, "num_warmups": "wave"})
    warm = plan.make_warmup(workload, SUBJECT, Seed(7))
    assert (len(warm), warm.total, warm.profile.duration_ns, warm.notes) == (3, 3, 0, ())


def test_prompts_that_equal_an_earlier_one_are_counted() -> None:
    assert plan.count_repeated_prompts(made(num_prompts=300, prefix_len=50)) == 0
    alike = made(num_prompts=300, input_len=1, subject=ModelTarget(UNKNOWN, "m", vocab_size=1010))
    assert plan.count_repeated_prompts(alike) == 300 - len({tuple(prompt) for prompt in prompts(alike)}) > 0


@pytest.mark.parametrize(
    ("keys", "offsets"),
    [
        ({"max_concurrency": 2}, None),
        ({}, [0] * 6),
        ({"request_rate": 2.0, "burstiness": "inf"}, [5, 10, 15, 20, 25, 30]),
        ({"request_rate": 2.0, "burstiness": "inf", "exact_rate": False}, [0, 5, 10, 15, 20, 25]),
        ({"request_rate": 2.0, "burstiness": "inf", "max_concurrency": 1}, [5, 10, 15, 20, 25, 30]),
    ],
)
def test_a_loop_is_closed_only_where_nothing_but_concurrency_limits_it(
    keys: dict[str, Any], offsets: list[int] | None
) -> None:
    found = made(**keys).offsets_ns
    assert (None if found is None else (found / 1e8).tolist()) == offsets


def test_a_request_says_what_the_profile_says() -> None:
    body = json.loads(
        made(temperature=0.0, top_k=3, extra_body={"top_k": 4, "x": None}, continuous_usage=True).body(2)
    )
    assert len(body.pop("prompt")) == 20
    assert body == {
        "model": "m",
        "max_tokens": 4,
        "temperature": 0.0,
        "top_k": 4,
        "x": None,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
    }


def test_a_whole_answer_is_asked_for_without_stream_options() -> None:
    body = json.loads(made(stream=False).body(0))
    assert body["stream"] is False
    assert "stream_options" not in body


@loop_over(
    ("engine", "keys", "endpoint", "told"),
    [
        (TRANSFORMERS, {"prompt_format": "ids"}, None, "transformers serve takes text, not token ids"),
        (UNKNOWN, {"backend": "openai-chat", "prompt_format": "ids"}, None, "the chat API takes text"),
        (UNKNOWN, {"prompt_format": "ids"}, "/v1/chat/completions", "the chat API takes text"),
        (UNKNOWN, {"backend": "openai-chat"}, "/v1/completions", "/chat/completions, not /v1/completions"),
        (UNKNOWN, {}, "/v1/embeddings", "must end in one of /chat/completions, /completions, /responses"),
        (UNKNOWN, {"backend": "sglang"}, "/v1/completions", "needs an endpoint ending in /generate, not"),
        (UNKNOWN, {"backend": "openai-chat"}, "/generate", "ending in /chat/completions, not /generate"),
        (UNKNOWN, {"chat_template_kwargs": {"a": 1}}, None, "use --backend openai-chat"),
        (UNKNOWN, {"prompt_format": "text-vllm"}, None, "--tokenizer"),
    ],
)
def test_what_profile_and_server_cannot_do_together_is_refused(
    engine: Engine, keys: dict[str, Any], endpoint: str | None, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        made(subject=ModelTarget(engine, "m", endpoint=endpoint), **keys)


def test_without_ignore_eos_an_empty_eos_list_does_the_same() -> None:
    subject = ModelTarget(TRANSFORMERS, "m", tokenizer=TOKENIZER)
    pytest.importorskip("transformers")
    of = made(subject=subject)
    assert "ignore_eos" not in of.fields
    assert json.loads(of.fields["generation_config"]) == {"eos_token_id": [], "pad_token_id": 0}
    assert of.notes == (
        "ignore_eos is not sent: transformers serve refuses it; "
        "its generation_config without an end of sequence does the same",
    )
    assert isinstance(of.payload(0)["prompt"], str)
    assert "generation_config" not in made(subject=subject, ignore_eos=False).fields


def test_an_engine_that_knows_no_other_way_may_answer_shorter() -> None:
    of = made(subject=ModelTarget(replace(UNKNOWN, takes_ignore_eos=False), "m"))
    assert of.fields.keys() == {"stream", "stream_options"}
    assert of.notes == ("ignore_eos is not sent: unknown refuses it, so responses may be shorter",)


@pytest.mark.parametrize("endpoint", [None, "/generate", "generate", "/proxied/generate"])
def test_sglangs_own_api_is_chosen_by_backend_and_by_endpoint(endpoint: str | None) -> None:
    keys: dict[str, Any] = {} if endpoint else {"backend": "sglang"}
    of = made(
        subject=ModelTarget(UNKNOWN, "m", endpoint=endpoint),
        temperature=0.0,
        extra_body={"sampling_params": {"stop": "x"}, "priority": 1},
        **keys,
    )
    body = json.loads(of.body(0))
    assert len(body.pop("input_ids")) == 20
    assert of.path.endswith("/generate")
    assert body == {
        "sampling_params": {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True, "stop": "x"},
        "stream": True,
        "priority": 1,
    }


def test_chat_says_the_length_in_the_engines_own_word() -> None:
    pytest.importorskip("transformers")
    vllm = find_by_owner("vllm")
    words = ((TRANSFORMERS, "max_tokens"), (UNKNOWN, "max_tokens"), (require(vllm), "max_completion_tokens"))
    for engine, word in words:
        subject = ModelTarget(engine, "m", tokenizer=TOKENIZER)
        assert made(subject=subject, backend="openai-chat").payload(0)[word] == 4


@pytest.mark.parametrize(
    ("engine", "keys", "what"),
    [
        (
            UNKNOWN,
            {"backend": "openai-chat", "prompt_format": "text-vllm"},
            "--prompt-format text-vllm sends text, which needs a tokenizer, and",
        ),
        (
            UNKNOWN,
            {"prompt_format": "text-vllm-0.9"},
            "--prompt-format text-vllm-0.9 sends text, which needs",
        ),
        (
            TRANSFORMERS,
            {"prompt_corpus": __file__},
            "--prompt-corpus sends text, which needs a tokenizer, and",
        ),
    ],
)
def test_without_a_tokenizer_what_was_typed_is_named(
    engine: Engine, keys: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=f"^{what}.*pass --tokenizer with a directory or a name of the Hug"):
        made(subject=ModelTarget(engine, "org/m"), **keys)


@pytest.mark.parametrize(
    ("subject", "backend", "path"),
    [
        (ModelTarget(UNKNOWN, "m", prefix="/v4"), "openai", "/v4/completions"),
        (
            ModelTarget(UNKNOWN, "m", prefix="", query="?api-version=1"),
            "openai",
            "/completions?api-version=1",
        ),
        (ModelTarget(UNKNOWN, "m", prefix="/v4"), "sglang", "/generate"),
        (ModelTarget(UNKNOWN, "m", prefix="/v4"), "openai-responses", "/v4/responses"),
        (ModelTarget(UNKNOWN, "m", endpoint="/x/completions?a=1"), "openai", "/x/completions?a=1"),
    ],
)
def test_the_path_is_under_the_version_of_the_base_url(subject: ModelTarget, backend: str, path: str) -> None:
    assert made(subject=subject, backend=backend).path == path


def test_a_plan_that_is_adapted_has_the_same_prompts_and_another_digest() -> None:
    of = made()
    left_out, renamed = AdaptedField(name="ignore_eos"), AdaptedField(name="max_tokens", sent_as="max_new")
    adapted = of.apply_adaptation(Adaptation((left_out, renamed)))
    assert prompts(adapted) == prompts(of)
    assert set(of.payload(0)) - set(adapted.payload(0)) == {"ignore_eos", "max_tokens"}
    assert adapted.payload(0)["max_new"] == 4
    assert adapted.digest() != of.digest()
    assert (of.refuses_ignore_eos(UNKNOWN), adapted.refuses_ignore_eos(UNKNOWN)) == (False, True)


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ROWS: dict[str, Any] = {"dataset_path": str(EXAMPLES / "prompts.jsonl"), "num_prompts": None}


def test_the_warm_up_of_a_file_is_random_prompts_like_its_own() -> None:
    of = made(**ROWS, num_warmups=3)
    first = plan.make_warmup(of.profile, SUBJECT, CHOSEN, like=of)
    assert (first.facts.kind, len(first)) == ("random", 3)
    assert set(first.requests.output_lens.tolist()) == {require(of.facts.output).p50}
    assert set(first.requests.input_lens.tolist()) == {64}  # only the server counts the rows
    assert first.requests.format == "words"
    known = replace(SUBJECT, engine=next(engine for engine in ENGINES if engine.name == "vLLM"))
    assert plan.make_warmup(of.profile, known, CHOSEN, like=of).requests.format == "ids"


def test_a_salt_is_in_each_body_that_has_none_and_not_in_the_digest() -> None:
    plain = made(**ROWS)
    salted = replace(plain, salt={"cache_salt": "s"})
    assert [json.loads(salted.body(i)).pop("cache_salt") for i in range(2)] == ["s", "s"]
    assert {**json.loads(plain.body(0)), "cache_salt": "s"} == json.loads(salted.body(0))
    assert salted.digest() == plain.digest()
    own = replace(made(**ROWS, extra_body={"cache_salt": "mine"}), salt={"cache_salt": "s"})
    assert json.loads(own.body(0))["cache_salt"] == "mine"


def test_each_run_and_each_arm_has_a_salt_of_its_own() -> None:
    seeds = [Seed(7), Seed(8), Seed(7, repeat=1), Seed(7, attempt=1), Seed(7, apart="A"), Seed(7, apart="B")]
    salts = [seed.make_salt(name) for seed in seeds for name in ("p", "q")]
    assert len(set(salts)) == len(salts)
    assert Seed(7, chosen=True).make_salt("p") == salts[0]


def test_prompts_of_a_file_are_recorded_and_those_of_hashes_are_not() -> None:
    trace: dict[str, Any] = {"trace": str(EXAMPLES / "weka.jsonl"), "num_prompts": None}
    assert [made(**keys).sends_recorded for keys in (ROWS, {}, trace)] == [True, False, False]


def test_the_form_of_an_answer_is_taken_from_the_extra_body() -> None:
    text = {"format": {"type": "json_object"}}
    assert json.loads(made(backend="openai-responses", extra_body={"text": text}).body(0))["text"] == text


# Prefix groups.


STREAM = RandomStream(seed=7, profile="high-load")


def token_ids(groups: int, zipf: float = 0.0, n: int = 200) -> TokenIds:
    shape = PromptShape(n, 20, 4, prefix_len=32, prefix_groups=groups, prefix_zipf=zipf)
    return TokenIds(shape, make_default_vocabulary().draw, STREAM)


def prefixes(made: TokenIds) -> list[tuple[int, ...]]:
    return [tuple(made.prompt(i)[:32]) for i in range(len(made.input_lens))]


def test_each_prompt_begins_with_the_prefix_of_its_group() -> None:
    made = token_ids(8)
    assert sorted(Counter(prefixes(made)).values()) == [25] * 8
    assert len({tuple(made.prompt(i)[32:]) for i in range(200)}) == 200
    assert made.input_lens.tolist() == [52] * 200
    assert prefixes(made) != sorted(prefixes(made), key=prefixes(made).index)  # in random order


@pytest.mark.parametrize("zipf", [0.5, 1.0, 2.0])
def test_popularity_follows_zipfs_law(zipf: float) -> None:
    counts = np.array(sorted(Counter(prefixes(token_ids(5, zipf, 5000))).values(), reverse=True))
    shares = np.arange(1, 6) ** -zipf
    expected = 5000 * shares / shares.sum()
    assert float((((counts - expected) ** 2) / expected).sum()) < 18.5  # chi², 4 degrees: one in a thousand


@pytest.mark.parametrize(
    ("groups", "n", "reusable"), [(1, 200, 199), (8, 200, 192), (300, 200, 0), (1, 0, 0)]
)
def test_all_but_the_first_prompt_of_a_group_can_be_reused(groups: int, n: int, reusable: int) -> None:
    assert token_ids(groups, n=n).reusable_tokens == 32 * reusable


def test_more_groups_than_are_kept_are_made_again_the_same() -> None:
    made = token_ids(300, n=600)
    assert prefixes(made) == prefixes(made)
    assert len(set(prefixes(made))) == 300


def test_groups_and_popularity_change_the_digest() -> None:
    digests = {token_ids(groups, zipf).digest() for groups, zipf in [(1, 0), (2, 0), (8, 0), (8, 1)]}
    assert len(digests) == 4
    assert token_ids(8, 1).digest() == token_ids(8, 1).digest()


def built(**keys: object) -> plan.Plan:
    return plan.make(
        profile.build({"name": "p", "input_len": 16, **keys}), ModelTarget(UNKNOWN, "m"), Seed(7)
    )


def test_the_expected_reuse_is_a_fact_where_the_number_of_prompts_is() -> None:
    keys = {"prefix_len": 48, "prefix_groups": 4}
    facts = built(num_prompts=100, **keys).facts
    assert (facts.reusable_tokens, facts.reuse) == (96 * 48, 96 * 48 / (100 * 64))
    assert built(num_prompts=100).facts.reusable_tokens == 0
    assert built(duration=5.0, max_concurrency=2, **keys).facts.reusable_tokens is None


def test_a_schedule_of_rates_is_in_the_offsets_of_the_plan() -> None:
    shaped = made(num_prompts=None, schedule="rate 2 for 3s, 10 for 1s", burstiness=float("inf"))
    assert shaped.offsets_ns is not None
    assert shaped.offsets_ns.tolist() == [
        *range(0, 3 * 10**9, 5 * 10**8), *range(3 * 10**9, 4 * 10**9, 10**8),
    ]  # fmt: skip
    assert (shaped.concurrency, shaped.rate_per_s, shaped.sending_s) == (None, 4.0, 3.9)


def test_a_schedule_of_concurrency_is_the_limits_of_a_closed_loop() -> None:
    stepped = made(num_prompts=None, schedule="concurrency 1 to 2 over 4s, 8 for 1s")
    assert stepped.offsets_ns is None
    assert stepped.concurrency is not None
    assert stepped.concurrency.from_ns.tolist() == [0, 2 * 10**9, 4 * 10**9]
    assert stepped.concurrency.limits.tolist() == [1, 2, 8]
    assert stepped.profile.max_concurrency == 8
    assert stepped.profile.held_concurrency is None


def test_each_request_of_a_mix_is_as_long_as_its_class() -> None:
    classes = [
        {"name": "a", "share": 50, "input_len": 30, "output_len": 3},
        {"name": "b", "share": 50, "input_len": 10, "output_len": 1},
    ]
    mix = plan.make(profile.build({"name": "p", "num_prompts": 40, "classes": classes}), SUBJECT, CHOSEN)
    pairs = {(len(mix.payload(i)["prompt"]), mix.payload(i)["max_tokens"]) for i in range(40)}
    assert pairs == {(30, 3), (10, 1)}
