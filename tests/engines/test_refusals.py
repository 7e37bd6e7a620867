"""Refusals: the errors of real APIs, and which field each is about."""

from __future__ import annotations

import json
from typing import Any

from builders.loops import loop_over, loop_over_named, read_tables
from loadgen.engines.refusals import (
    FEATURES,
    FIELDS,
    Adaptation,
    AdaptedField,
    Refusal,
    find_feature,
    format_message,
    is_past_context,
    list_paths,
    read_refusals,
    suggest_fix,
    suggest_removal,
)

# Errors from public reports of each API's answers, with our fields for theirs where those were other ones; of
# LiteLLM, Cohere and the server in Rust from memory, not their exact bytes. An unclear one is about a value,
# or a limit: whether a run may go without is for a person to say.
WORDS = read_tables("refusals")
SENT = list_paths(WORDS["sent"])


def openai(message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def body_of(error: object) -> bytes:
    return error.encode() if isinstance(error, str) else json.dumps(error).encode()


@loop_over_named(("error", "fields"), WORDS["clear"])
def test_the_fields_that_an_api_does_not_take_are_read(error: object, fields: list[str]) -> None:
    assert read_refusals(body_of(error), SENT) == tuple(Refusal(field, clear=True) for field in fields)


@loop_over_named(("error", "field"), WORDS["unclear"])
def test_what_may_be_about_a_value_is_named_and_no_more(error: object, field: str) -> None:
    assert read_refusals(body_of(error), SENT) == ((Refusal(field),) if field else ())


def test_a_field_that_was_not_sent_is_none_of_ours() -> None:
    assert read_refusals(body_of(openai("Unknown parameter: 'store'.")), SENT) == ()


@loop_over("filler", ["a", '"', "'a", "a.", "\\", "unknown field ", "extra_forbidden', 'loc': ('body', '"])
def test_a_long_error_is_read_in_no_time(filler: str) -> None:
    assert read_refusals((filler * (1 << 17)).encode(), SENT) == ()


def adaptation(*names: tuple[str, str]) -> Adaptation:
    return Adaptation(tuple(AdaptedField(name=name, sent_as=sent_as) for name, sent_as in names))


@loop_over(("names", "left"), WORDS["left out"])
def test_what_is_left_out_is_not_in_a_request(names: list[tuple[str, str]], left: dict[str, Any]) -> None:
    fields = {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True, "x": 1}}
    assert adaptation(*names).apply_to(fields) == left


def test_an_adaptation_is_reported_with_its_cost() -> None:
    lines = [
        str(field) for field in adaptation(("ignore_eos", ""), ("max_tokens", "max_completion_tokens")).fields
    ]
    assert lines == [
        "left out: ignore_eos (refused by the server); responses may end early: --min-tokens N holds their "
        "length where the server takes it",
        "renamed: max_tokens is sent as max_completion_tokens (as the server requires)",
    ]


def test_advice_speaks_of_flags() -> None:
    least = "pass --no-ignore-eos, and --min-tokens N where the server takes that"
    assert suggest_removal("ignore_eos") == least
    assert suggest_removal("temperature") == "leave out --temperature, or temperature in the profile"
    assert suggest_removal("min_tokens", {"min_tokens": 1}) == "leave min_tokens out of --extra-body"
    assert all("--" in field.advice for field in FIELDS.values())


def test_a_message_is_one_line_with_the_status() -> None:
    assert format_message(400, body_of(openai("no\nsuch"))) == "400: no such"
    assert format_message(422, b"") == "422"


@loop_over(("detail", "flag"), WORDS["flags"])
def test_a_failure_of_the_run_names_the_flag(detail: str, flag: str) -> None:
    assert suggest_fix(detail).startswith(flag)
    assert bool(suggest_fix(detail)) == bool(flag)


@loop_over(("asked", "error", "name"), WORDS["features"])
def test_what_rows_ask_for_and_a_server_has_not_is_known_by_its_words(
    asked: str, error: str, name: str | None
) -> None:
    found = find_feature(400, body_of(openai(error)), WORDS["asked"][asked])
    assert (found and found.name) == name
    assert find_feature(401, body_of(openai(error)), WORDS["asked"][asked]) is None
    assert find_feature(200, body_of(openai(error)), WORDS["asked"][asked]) is None


def test_the_advice_on_each_feature_names_a_flag() -> None:
    assert all("--" in each.advice for each in FEATURES)


def test_the_advice_on_token_ids_holds_of_traces_too() -> None:
    advice = {each.name: each.advice for each in FEATURES}["token ids"]
    assert advice.startswith("pass --prompt-format words, which sends text")


@loop_over_named("message", WORDS["past the context"])
def test_a_prompt_past_the_context_is_known_by_the_servers_words(message: str) -> None:
    assert is_past_context(f"400: {message}")


@loop_over("message", WORDS["other errors"])
def test_other_errors_are_no_end_of_a_conversation(message: str) -> None:
    assert not is_past_context(message)
