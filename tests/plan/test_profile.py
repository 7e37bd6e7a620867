"""Profiles: every shipped one loads, and what is wrong in one's own is named."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from builders.loops import loop_over, read_tables
from loadgen.base.errors import UsageError
from loadgen.engines.engines import UNKNOWN, find_by_name
from loadgen.figures import objectives
from loadgen.plan import plan, profile, request_sources
from loadgen.plan.profile import Profile
from loadgen.plan.request_sources import ModelTarget, Seed
from loadgen.settings.validation import ServerSettings

TABLES = read_tables("profile")

CONVERSATION = Path(__file__).parents[1] / "data" / "datasets" / "mlperf_edge_agentic_excerpt.jsonl"
ANSWERS = 7  # in it


@loop_over("name", sorted(profile.list_shipped()))
def test_every_shipped_profile_loads_plans_and_can_be_reported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = profile.load(name, {})
    if loaded.dataset_path:
        shutil.copy(CONVERSATION, loaded.dataset_path)
    assert loaded.name == name
    assert loaded.description
    assert loaded.temperature == 0
    assert loaded.ignore_eos == (not loaded.dataset_path)
    assert loaded.warmups > 0
    objectives.check_profile(loaded)
    made = plan.make(loaded, ModelTarget(UNKNOWN, "m"), Seed(1))
    request_sources.check_files(loaded)
    turns = (loaded.turns or 0) * (loaded.num_sessions or 0)
    assert len(made) == (loaded.num_prompts or turns or ANSWERS)


def test_a_shipped_profile_says_which_file_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        request_sources.check_files(profile.load("agentic-edge", {}))
    assert str(error.value) == (
        "--profile agentic-edge reads agentic_coding_2.5h.jsonl, which is not in this directory: pass "
        "--dataset-path FILE (`loadgen profiles agentic-edge` says where it is from)"
    )
    with pytest.raises(UsageError, match=r"--dataset-path mine\.jsonl: No such file or directory"):
        request_sources.check_files(profile.load("agentic-edge", {"dataset_path": "mine.jsonl"}))
    request_sources.check_files(profile.load("agentic-edge", {"dataset_path": str(CONVERSATION)}))


def test_the_edge_agents_requests_are_mlperfs() -> None:
    loaded = profile.load("agentic-edge", {"dataset_path": str(CONVERSATION)})
    made = plan.make(loaded, ModelTarget(find_by_name("vLLM"), "m"), Seed(1))
    body = made.payload(6)
    assert {key: value for key, value in body.items() if key not in ("messages", "tools")} == {
        "model": "m",
        "max_completion_tokens": 1024,
        "temperature": 0,
        "seed": 42,
        "chat_template_kwargs": {"enable_thinking": False},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert made.turns is not None
    assert (made.profile.max_concurrency, made.profile.turn_timeout) == (1, 600)
    assert (made.turns.delays_ns > 0).tolist() == [False] + [True] * 6


@pytest.mark.parametrize(
    ("name", "lens", "prompts", "concurrency"),
    [("high-load", (2048, 128), 100, 8), ("low-load", (2048, 128), 10, 1)],
)
def test_the_fields_two_loads_are_as_published(
    name: str, lens: tuple[int, int], prompts: int, concurrency: int
) -> None:
    loaded = profile.load(name, {})
    assert (loaded.input_len, loaded.output_len) == lens
    assert (loaded.num_prompts, loaded.max_concurrency) == (prompts, concurrency)


def test_the_defaults_are_those_of_vllm_bench_serve() -> None:
    built = profile.build({})
    assert (built.input_len, built.output_len, built.num_prompts) == (1024, 128, 1000)
    assert (built.max_concurrency, built.request_rate, built.burstiness) == (None, math.inf, 1)
    assert (built.percentile_metrics, built.metric_percentiles) == ("ttft,tpot,itl", "99")
    assert built.ignore_eos
    assert (built.ladder, built.table, built.server) == (None, None, None)


@loop_over(
    ("warmups", "concurrency", "prompts", "sent"),
    [("wave", 8, 100, 8), ("wave", 8, 3, 3), ("wave", None, 100, 8), (0, 8, 100, 0), (5, 8, 3, 5)],
)
def test_a_wave_is_one_request_a_slot(
    warmups: int | str, concurrency: int | None, prompts: int, sent: int
) -> None:
    built = profile.build({"num_warmups": warmups, "max_concurrency": concurrency, "num_prompts": prompts})
    assert built.warmups == sent


SERVER = """
ladder = [1, 6144]
table = "throughput"
backend = "sglang"
[server]
context_len = 32768
memory_fraction = 0.9
skip_tokenizer = true
arguments = "--attention-backend 'torch native'"
environment = { A = "1" }
"""


def test_a_file_says_what_server_it_wants(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SERVER, "utf-8")
    loaded = profile.load(str(path), {})
    assert (loaded.ladder, loaded.table, loaded.backend) == ((1, 6144), "throughput", "sglang")
    assert loaded.server == ServerSettings(
        context_len=32768,
        memory_fraction=0.9,
        skip_tokenizer=True,
        arguments=("--attention-backend", "torch native"),
        environment={"A": "1"},
    )
    assert Profile.model_validate(json.loads(json.dumps(loaded.model_dump(mode="json")))) == loaded


def test_a_key_of_a_file_and_a_flag_over_it_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("input_len = 0\n", "utf-8")
    with pytest.raises(UsageError, match=r"mine\.toml: input_len = 0: .*; --random-output-len 0: "):
        profile.load(str(path), {"output_len": 0}, flags=True)


@loop_over(
    ("file", "flags", "prompts", "most"),
    [
        pytest.param("", {}, 1000, 1000, id="neither"),
        pytest.param("num_prompts = 5", {}, 5, 5, id="a count"),
        pytest.param("duration = 9", {}, None, 1_000_000, id="a duration"),
        pytest.param("duration = 9\nnum_prompts = 5", {}, 5, 5, id="both: the count is the most"),
        pytest.param("num_prompts = 5", {"duration": 9.0}, None, 1_000_000, id="a flag for the file's count"),
        pytest.param("num_prompts = 5", {"duration": 9.0, "num_prompts": 7}, 7, 7, id="two flags"),
        pytest.param("duration = 9", {"num_prompts": 7}, 7, 7, id="a count for a file's duration"),
    ],
)
def test_a_duration_stands_in_place_of_the_count_that_is_not_given(
    file: str, flags: dict[str, object], prompts: int | None, most: int, tmp_path: Path
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"max_concurrency = 2\nnum_warmups = 'wave'\n{file}\n", "utf-8")
    loaded = profile.load(str(path), flags)
    assert (loaded.num_prompts, loaded.most_prompts, loaded.warmups) == (prompts, most, 2)
    stored = json.loads(json.dumps(loaded.model_dump(mode="json"), allow_nan=False))
    assert Profile.model_validate(stored) == loaded


@loop_over(("overrides", "described"), TABLES["described"])
def test_a_description_is_that_of_the_files_own_load(overrides: dict[str, Any], described: bool) -> None:
    loaded = profile.load("high-load", overrides)
    assert loaded.name == "high-load"
    assert bool(loaded.description) is described
