"""The flags of other clients: vLLM's are accepted or explained, any other gets the nearest, and a page."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from builders.loops import loop_over
from builders.switchers import FLAGS_OF
from fakes.virtual_servers import engine_server
from fakes.virtual_serving import VirtualServing
from loadgen import cli
from loadgen.base.errors import UsageError
from loadgen.run.command.options import bench_parser, parse
from loadgen.settings import request_settings, vllm_flags
from loadgen.study.series.ladder_command import ladder_parser
from loadgen.study.series.limit.limit_command import limit_parser
from loadgen.study.series.sweep_command import sweep_parser

FLAGS = Path(__file__).parents[1] / "data" / "flags"  # as their parsers have them
KNOWN = {option for action in bench_parser()._actions for option in action.option_strings}
SEARCHES = {
    option
    for parser in (sweep_parser(), limit_parser())
    for action in parser._actions
    for option in action.option_strings
}
# As it stands in the recipes of 2025, but for the address.
RECIPE = (
    "--backend vllm --endpoint-type openai-comp --endpoint /v1/completions --model instant "
    "--tokenizer Qwen/Qwen3-8B --dataset-name random --random-input-len 128 --random-output-len 16 "
    "--num-prompts 8 --max-concurrency 4 --percentile-metrics ttft,tpot,itl,e2el "
    "--metric-percentiles 50,90,99 --ignore-eos --trust-remote-code --tokenizer-mode auto --no-stream "
    "--seed 1 --save-result --result-dir out --disable-tqdm"
)


@loop_over("name", FLAGS_OF)
def test_every_flag_of_a_client_stands_in_its_table_once(name: str) -> None:
    flags = (FLAGS / f"{name}.txt").read_text("utf-8").split()
    rows = [flag for flag, *_ in FLAGS_OF[name]]
    assert len(rows) == len(set(rows))
    assert set(flags) <= set(rows)
    older = set(rows) - set(flags)
    assert not older or name == "vllm"


@loop_over("name", FLAGS_OF)
def test_what_a_table_has_of_a_flag_is_what_the_parser_does(name: str) -> None:
    taken = {"same": True, "differs": True, "no effect": True, "another name": False, "refused": False}
    assert {flag for flag, what, _ in FLAGS_OF[name] if (flag in KNOWN) is not taken[what]} == set()


@loop_over("name", FLAGS_OF)
def test_the_flags_of_ours_that_a_table_names_exist(name: str) -> None:
    known = KNOWN | SEARCHES
    known |= {"--html", "--csv", "--jsonl", "--markdown", "--plot", "--alpha", "--max-loras"}
    known |= {"--reference-url", "--lm-eval"}
    named = {word for _, _, words in FLAGS_OF[name] for word in words.replace("`", " ").split()}
    assert {word.strip(".,:;()'") for word in named if word.startswith("--")} <= known


@loop_over("verb", ["bench", "ladder", "sweep", "limit"])
@loop_over(
    ("flag", "near"),
    [
        ("--flush-cache", ""),
        ("--target", ", did you mean '--base-url'?"),
        ("--num-requests", ", did you mean '--num-prompts'?"),
    ],
)
def test_a_flag_of_another_client_gets_the_nearest_and_the_page(verb: str, flag: str, near: str) -> None:
    parsers = {"ladder": ladder_parser, "sweep": sweep_parser, "limit": limit_parser}
    with pytest.raises(UsageError) as raised:
        parse([flag, "x"], parsers[verb]() if verb in parsers else None)
    listed = f"loadgen {verb} --help{'-all' * (verb == 'bench')} lists the flags"
    assert str(raised.value) == (
        f"unknown flag {flag}{near}; {listed}, docs/from-others.md those of other clients"
    )


@loop_over(
    "command",
    ["--api-key sk-12345", "--api-key=sk-12345", "--api_key sk-12345", "--backend kind=a,api_key=sk-1"],
)
def test_a_key_on_the_command_line_is_refused_and_not_shown(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *shlex.split(command)]) == 2
    shown = capsys.readouterr().err
    assert "sk-1" not in shown
    assert "--api-key-env" in shown or "--base-url" in shown


def test_every_name_of_an_api_is_ours_an_alias_or_refused() -> None:
    names = [*request_settings.APIS, *request_settings.API_ALIASES, *request_settings.REFUSED_APIS]
    assert len(names) == len(set(names))
    sent = [*request_settings.APIS, *request_settings.API_ALIASES]
    assert set(map(request_settings.find_backend, sent)) == set(request_settings.APIS)


def test_flags_without_effect_are_noted_with_the_reason() -> None:
    command = (
        "--trust-remote-code --tokenizer-mode slow --best-of 1 --probe-request-rate 0.0 --trust_remote_code"
    )
    given = parse(shlex.split(command)).no_effect
    assert given == (
        "--trust-remote-code", "--tokenizer-mode", "--best-of", "--probe-request-rate", "--trust-remote-code"
    )  # fmt: skip
    once = vllm_flags.explain_no_effects(given[-1:] * 2)
    assert once.startswith("--trust-remote-code: code from a model's repository is never run; ")
    assert once.count("--trust-remote-code") == 1
    assert vllm_flags.explain_no_effects(given).count("; --") == 3


@loop_over("flag", (FLAGS / "vllm.txt").read_text("utf-8").split())
def test_every_flag_of_vllm_has_one_answer(flag: str) -> None:
    """It is one of our parser's, without effect with the reason, or refused with a reason and a way."""
    (what, words), *others = [(what, words) for name, what, words in vllm_flags.list_flags() if name == flag]
    assert not others
    assert (flag in KNOWN) == (what != "refused")
    if what in ("no effect", "refused"):
        assert words
    if what == "refused":
        assert "--" in words or flag == "--use-beam-search"
        with pytest.raises(UsageError, match=f"^{flag} of `vllm bench serve` is not supported: "):
            parse([flag, "1"])


def test_no_help_lists_what_has_no_effect() -> None:
    text = bench_parser().format_help()
    assert [flag for flag in [*vllm_flags.NO_EFFECT, "--endpoint-type"] if f"{flag} " in text] == []


def test_a_recipe_of_2025_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with VirtualServing(engine_server("--preset", "instant")) as server:
        code = cli.main(["bench", "serve", *shlex.split(RECIPE), "--base-url", server.base_url])
    printed = capsys.readouterr()
    assert code == 0
    assert "Successful requests:                     8" in printed.out
    assert [name.name.startswith("openai-infqps-concurrency4-") for name in Path("out").iterdir()] == [True]
    warnings = [line for line in printed.err.splitlines() if "no effect here" in line]
    assert len(warnings) == 1
    assert all(
        f"{flag}: " in warnings[0] for flag in ("--trust-remote-code", "--tokenizer-mode", "--no-stream")
    )
